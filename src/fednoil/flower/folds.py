"""A node's part in an audit out of folds: what each run that left a fold out says about that fold.

The runs come one after another, so what they say is kept in the client's folder, for this configuration and these data
only; the audit covers all folds so far.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import Tensor

from fednoil import evidence
from fednoil.audit.cases import Cases, calibrated
from fednoil.experiment import Experiment
from fednoil.flower.memory import case_of
from fednoil.flower.state import make_own
from fednoil.learners.base import Client
from fednoil.records.files import write_tensors
from fednoil.tensors import read_tensors


class FoldLooks:
    """The looks at the folds of one client, in its folder."""

    def __init__(self, folder: Path, experiment: Experiment) -> None:
        left_out = experiment.config.data.left_out
        assert left_out is not None
        self.fold, self.count = left_out
        self.experiment = experiment
        whole = experiment.config.data.without(None)
        config = experiment.config.model_copy(update={"data": whole})
        dataset = experiment.setting.dataset
        made_of = f"{config.hash()} {dataset.hash} {dataset.class_names}"
        self.folder = folder / f"folds-{hashlib.sha256(made_of.encode()).hexdigest()[:8]}"

    def save(self, client: Client, look: Tensor, accuracy: float | None) -> None:
        """Keep the class probabilities [n, C] of a fold's samples, and the accuracy in percent of their model."""
        make_own(self.folder.parent)
        make_own(self.folder)
        known = torch.tensor([] if accuracy is None else [accuracy])
        tensors = {"index": client.index, "given": client.labels, "look": look, "accuracy": known}
        write_tensors(self._file(self.fold), {name: tensor.cpu() for name, tensor in tensors.items()}, private=True)

    def cases(self, client: str, data: str) -> Cases:
        """The client's labels in the folds so far."""
        there = [fold for fold in range(self.count) if self._file(fold).is_file()]
        looks = [read_tensors(self._file(fold)) for fold in there]
        index, given, look = (torch.cat([one[name] for one in looks]) for name in ("index", "given", "look"))
        order = index.argsort()
        bundle = evidence.start([given[order]], look.shape[1])
        bundle = evidence.add_looks(bundle, [len(given)], {0: look[order]})
        known = torch.cat([one["accuracy"] for one in looks])
        accuracy = float(known.mean()) if len(known) == len(looks) else None
        missing = [str(fold + 1) for fold in range(self.count) if fold not in there]
        notices = [f"not audited yet: fold {', '.join(missing)} of {self.count}"] if missing else []
        found = case_of(client, index[order], bundle, data, self.experiment, accuracy, tuple(notices), self.count)
        return calibrated(found)

    def _file(self, fold: int) -> Path:
        return self.folder / f"{fold + 1}-of-{self.count}.safetensors"
