"""What a record says about the selection of clients and labels; most of it only if true labels are known."""

from __future__ import annotations

from typing import Any

import numpy as np

from fednoil import metrics
from fednoil.experiment import Experiment
from fednoil.rounds.played import Played

_LISTED = 200  # clients whose scores are listed one by one: a record must not grow with those who only answer


def selection_quality(experiment: Experiment, played: Played) -> dict[str, Any]:
    """Noise and ranking of the clients, and the quality of the labels that were trained on, by the record's names."""
    setting, chosen, epochs = experiment.setting, played.chosen, played.epochs
    found: dict[str, Any] = {}
    # Only of clients that take part: a round must not take longer with those who don't.
    if chosen.clients and (ratios := metrics.noise_ratios(setting.labels, setting.truth, chosen.clients)) is not None:
        found["selected_noise"] = 100.0 * float(np.mean(ratios))
    if chosen.scores is not None:
        # In a federation the candidates may be other clients, of the same number.
        if chosen.candidates == list(range(setting.num_clients)):
            found |= _scores(chosen.scores)
        if chosen.candidates:
            ratios = metrics.noise_ratios(setting.labels, setting.truth, chosen.candidates)
            found |= metrics.client_ranking(chosen.shares, ratios)
    with_draws = [r for r in played.results if "drawn" in r.evidence]
    if with_draws:
        sizes = [float(r.evidence["drawn"].sum()) / (epochs * len(r.evidence["drawn"])) for r in with_draws]
        found["labelled_share"] = 100.0 * sum(sizes) / len(sizes)
    if setting.truth.known:
        counts = {}
        for r in with_draws:
            drawn, votes = (r.evidence[n].cpu().numpy() if n in r.evidence else None for n in ("drawn", "votes"))
            assert drawn is not None
            counts[r.client] = drawn, votes
        found |= metrics.mean_selection(setting.labels, setting.truth, counts, epochs)
    return found


def _scores(scores: list[float]) -> dict[str, list[float]]:
    """All clients' scores or, with many clients, their quartiles."""
    if len(scores) <= _LISTED:
        return {"client_scores": scores}
    return {"score_quartiles": np.quantile(scores, (0, 0.25, 0.5, 0.75, 1)).tolist()}
