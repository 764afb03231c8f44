"""How good a round's model is: on the test set, and on validation samples.

Validation samples are part of the clients' own data, kept out of training (`data.validation`). They have given labels
only, so their accuracy is agreement with labels of which many are wrong: far below the accuracy, but higher for a
better model, and known without a true label or a test image. It is what a choice between settings should rest on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch

from fednoil import metrics
from fednoil.errors import Diverged
from fednoil.executors.base import Executor, Job
from fednoil.experiment import Experiment
from fednoil.measures import Measures
from fednoil.servers.base import ServerState
from fednoil.tensors import Tensors

JobOf = Callable[[int], Job]  # what a client would be given next


@dataclass(frozen=True)
class Evaluation:
    """A round's accuracy in percent and loss, and accuracy by class where it is known.

    Where the evaluated model is an average over rounds, `last` is the accuracy of the last one; `beside` has
    those of other models, and `held_out` what a federation's clients found, both by name.
    """

    accuracy: float
    loss: float
    per_class: tuple[float | None, ...] = ()
    shifted: float | None = None
    last: float | None = None
    beside: dict[str, float] = field(default_factory=dict)
    held_out: dict[str, dict[str, float]] | None = None
    measures: Measures | None = None


def evaluate(
    experiment: Experiment,
    executor: Executor,
    server_state: ServerState,
    keep: Mapping[int, Tensors],
    round_idx: int,
) -> Evaluation:
    """Score the models on the test set."""
    labels = torch.from_numpy(experiment.setting.dataset.test.labels).long()
    scored = experiment.server.scored(server_state, keep)
    scores = [metrics.score_logits(executor.test_logits(s.tensors), labels) for s in scored]
    counted = [(score, model.weight) for score, model in zip(scores, scored, strict=True) if model.weight > 0]
    score = metrics.mean_score([s for s, _ in counted], [weight for _, weight in counted])
    beside = {f"{m.name}_accuracy": s.accuracy for s, m in zip(scores, scored, strict=True) if m.weight == 0}
    if not math.isfinite(score.loss):
        raise Diverged(
            f"training diverged: the test loss is {score.loss} in round {round_idx}; "
            f"lower train.lr (now {experiment.config.train.lr})"
        )
    return Evaluation(
        score.accuracy, score.loss, score.per_class, score.shifted, beside=beside, measures=score.measures
    )


def validate(experiment: Experiment, executor: Executor, job_of: JobOf) -> tuple[float | None, float | None]:
    """Agreement with the given labels of all clients' validation samples, each client with the model that is its own:
    accuracy in percent and loss; None where there are no such samples."""
    if experiment.setting.validation is None:
        return None, None
    jobs = [job_of(k) for k in range(experiment.setting.num_clients)]
    own = [replace(job, received=experiment.server.own_model(job.received, job.keep)) for job in jobs]
    return metrics.mean_held_out(list(executor.held_out(own).values()))
