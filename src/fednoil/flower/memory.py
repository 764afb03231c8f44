"""What a node remembers about its labels from round to round, for its audit; it stays in the node's folder."""

from __future__ import annotations

from torch import Tensor

from fednoil import evidence
from fednoil.audit.cases import Case, Cases, duplicates, item_names
from fednoil.audit.pictures import galleries
from fednoil.experiment import Experiment
from fednoil.flower.state import NodeState
from fednoil.learners.base import Client
from fednoil.tensors import Tensors


class Memory:
    """One client's evidence; a round that is asked for twice counts once."""

    def __init__(self, state: NodeState, client: Client, experiment: Experiment) -> None:
        self.state, self.client = state, client
        self.sizes, self.num_classes = [len(client)], experiment.task.num_classes
        self.checkpoint_every = experiment.config.run.checkpoint_every

    def look(self, round_idx: int, probabilities: Tensor) -> None:
        """Record the class probabilities [n, C] behind a score."""
        self._save(round_idx, self._looked(round_idx, probabilities))

    def turn(self, round_idx: int, epochs: int, found: Tensors, scored: bool) -> None:
        """Record what training found; in a round without scores a learner may have looked at its samples itself."""
        before = self._before(round_idx)
        if scored:
            after = self._before(round_idx + 1)  # with this round's look
        else:
            after = self._looked(round_idx, found["probabilities"]) if "probabilities" in found else before
        if "drawn" in found:
            after = {**after, "drawn": before["drawn"], "epochs": before["epochs"]}
            after = evidence.add_draws(after, self.sizes, {0: found["drawn"].cpu()}, epochs)
        if "drawn" in found or "probabilities" in found:
            self._save(round_idx, after)

    def case(
        self, round_idx: int, look: Tensor, client: str, data: str, experiment: Experiment, accuracy: float | None
    ) -> Cases:
        """The client's labels for an audit, with a last look [n, C] and the model's accuracy in percent, if known."""
        return case_of(client, self.client.index, self._looked(round_idx, look), data, experiment, accuracy)

    def _before(self, round_idx: int) -> Tensors:
        found = self.state.evidence_before(round_idx)
        return found or evidence.start([self.client.labels.cpu()], self.num_classes)

    def _looked(self, round_idx: int, probabilities: Tensor) -> Tensors:
        return evidence.add_looks(self._before(round_idx), self.sizes, {0: probabilities.cpu()})

    def _save(self, round_idx: int, bundle: Tensors) -> None:
        self.state.save_evidence(round_idx, bundle, self.checkpoint_every)


def case_of(
    client: str,
    index: Tensor,
    bundle: Tensors,
    data: str,
    experiment: Experiment,
    accuracy: float | None,
    notices: tuple[str, ...] = (),
    folds: int = 0,
) -> Cases:
    """A node's samples, rows `index` [n] of its data, and their evidence, for an audit; it knows no true labels."""
    dataset, rows = experiment.setting.dataset, index.cpu().numpy()
    names, images = item_names(dataset), dataset.train.images
    items = tuple(names[row] for row in rows)
    same = duplicates(items, [images[row] for row in rows])
    given = bundle["given"].numpy()
    case = Case(client, items, rows, given, bundle, None, accuracy, notices=notices, duplicates=same)
    pictures = galleries(images.__getitem__, dataset.about.columns, dataset.mean, dataset.std)
    return Cases(data, dataset.class_names, [case], *pictures, folds=folds)
