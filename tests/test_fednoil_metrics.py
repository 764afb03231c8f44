"""What is recorded of FedNoiL's selections, and when it is absent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from made_fednoil import make
from torch.nn import functional as F

from fednoil import metrics, rounds
from fednoil.experiment import make_executor

CPU = torch.device("cpu")


def test_ranking_of_clients_by_hand() -> None:
    """The cleanest client has half of the chances, the noisiest 30 %. Ranks 2, 1, 0 and 0, 2, 1 differ by 2, 1 and 1:
    Spearman's correlation is 1 − 6 · 6 / 24."""
    found = metrics.client_ranking([0.5, 0.3, 0.2], np.array([0.2, 0.6, 0.4]))
    assert found == pytest.approx({"best_client_share": 50, "worst_client_share": 30, "rank_correlation": -0.5})
    assert metrics.client_ranking([0.5, 0.5], None) == {}


def test_selection_metrics_by_hand() -> None:
    """Two epochs, four samples, D^x of two; sample 3 was accepted once with the right and once with a wrong class."""
    given_labels, true = np.array([0, 1, 2, 0]), np.array([0, 1, 1, 2])
    drawn = np.array([2, 1, 1, 0])
    votes = np.zeros((4, 3), dtype=int)
    votes[3, 2], votes[3, 0], votes[2, 1] = 1, 1, 1
    got = metrics.selection(drawn, votes, given_labels, true, epochs=2)
    assert got == pytest.approx(
        {
            "label_precision": 75.0,  # 3 of 4 draws are clean
            "label_recall": 75.0,  # 3 of 2 epochs × 2 clean samples
            "effective_precision": 100 * 5 / 7,
            "effective_recall": 100 * 5 / 8,
            "pseudo_accept": 75.0,  # 3 of 4 chances
            "pseudo_accuracy": 100 * 2 / 3,
        }
    )


def test_recall_is_absent_without_clean_labels() -> None:
    got = metrics.selection(np.array([1, 0]), None, np.array([0, 1]), np.array([1, 0]), epochs=1)
    assert "label_recall" not in got
    assert got["label_precision"] == 0
    assert metrics.mean_of([{"a": 1.0}, {"a": 3.0, "b": 5.0}]) == {"a": 2.0, "b": 5.0}


def test_rank_correlation() -> None:
    assert metrics.rank_correlation(np.array([4, 3, 2, 1.0]), np.array([0.1, 0.2, 0.3, 0.9])) == pytest.approx(-1)
    assert metrics.rank_correlation(np.array([1, 2, 2, 3.0]), np.array([1, 2, 3, 4.0])) == pytest.approx(
        0.948683, abs=1e-6
    )
    assert metrics.rank_correlation(np.array([1.0, 1.0]), np.array([1.0, 2.0])) is None


def test_shifted_accuracy_is_recorded_for_pair_noise(fednoil_values: dict[str, Any]) -> None:
    fednoil_values["noise"] = {"kind": "pair", "map": "shared"}
    experiment = make(fednoil_values)
    _, record = rounds.play(experiment, make_executor(experiment, CPU), rounds.start(experiment))
    assert 0 <= record.shifted_accuracy <= 100
    experiment = make({**fednoil_values, "noise": {"kind": "symmetric"}})
    _, record = rounds.play(experiment, make_executor(experiment, CPU), rounds.start(experiment))
    assert record.shifted_accuracy is None
    logits = F.one_hot(torch.tensor([1, 2, 0]), 3).float()
    assert metrics.score_logits(logits, torch.tensor([0, 1, 2])).shifted == 100
    assert metrics.score_logits(logits, torch.tensor([1, 2, 0])).shifted == 0


def test_without_truth_nothing_that_needs_it_is_recorded(fednoil_values: dict[str, Any]) -> None:
    fednoil_values["noise"] = {"kind": "unknown"}
    experiment = make(fednoil_values, frac=0.4)
    _, record = rounds.play(experiment, make_executor(experiment, CPU), rounds.start(experiment))
    absent = {"selected_noise", "label_precision", "label_recall", "rank_correlation", "pseudo_accuracy"}
    assert not absent & set(record.to_json())
    assert "client_scores" in record.to_json()
    assert len(record.selected) == 2
    assert record.labelled_share == pytest.approx(40)  # eight of each client's 20
