"""What a client keeps on its node between messages, readable by its owner only: its networks and α by round, its
evidence about its labels, what the last model that it received predicts for its samples, and its last noisy update.

Several versions of the first two may exist: a server that was stopped resumes from its last checkpoint, and the client
must then continue from the same round. A version is removed once no checkpoint can need it.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

from fednoil.errors import UserError
from fednoil.files import make_private
from fednoil.flower.messages import BadMessage
from fednoil.records.files import write_tensors
from fednoil.tensors import Tensors, read_tensors

_LOOK, _SENT = "look.safetensors", "sent.safetensors"
_RUN = re.compile(r"[0-9a-f]{32}")


def make_own(folder: Path) -> None:
    """Make a folder that only its owner can read; one from an earlier version is changed accordingly."""
    make_private(folder)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)


class NodeState:
    """The folder of one client in one run, below the client's own."""

    def __init__(self, client: Path, run: str) -> None:
        if not _RUN.fullmatch(run):  # it comes from outside and names a folder: a path could lead anywhere
            raise BadMessage("the name of its run is invalid")
        self.folder = client / run

    def keep_before(self, round_idx: int) -> Tensors:
        """What the client kept of its last turn before this round, or of its last review, if that was later."""
        return self._kept(round_idx, round_idx)

    def keep_of(self, round_idx: int) -> Tensors:
        """What the client has for its turn in this round: the same, or what it kept of a review in this round."""
        return self._kept(round_idx, round_idx + 1)

    def _kept(self, turns_before: int, reviews_before: int) -> Tensors:
        turns = [(r, 1, "keep") for r in self._versions("keep") if r < turns_before]
        reviews = [(r, 0, "review") for r in self._versions("review") if r < reviews_before]
        last = max([*turns, *reviews], default=None)
        return read_tensors(self._file(last[2], last[0])) if last else {}

    def save_review(self, round_idx: int, keep: Tensors, checkpoint_every: int) -> None:
        """Write what the client keeps of the review before this round."""
        self._save("review", round_idx, keep, checkpoint_every)

    def evidence_before(self, round_idx: int) -> Tensors:
        """What the client has recorded about its labels before this round."""
        return self._before("evidence", round_idx)

    def save_keep(self, round_idx: int, keep: Tensors, checkpoint_every: int) -> None:
        """Write what the client keeps of this round; the server's last checkpoint is at most `checkpoint_every` old."""
        self._save("keep", round_idx, keep, checkpoint_every)

    def save_evidence(self, round_idx: int, bundle: Tensors, checkpoint_every: int) -> None:
        """Write the evidence after this round."""
        self._save("evidence", round_idx, bundle, checkpoint_every)

    def save_look(self, logits: Tensor, of: str) -> None:
        """Write the logits [n, C] of the client's samples by the model with digest `of`, in place of earlier ones."""
        self._make()
        name = torch.tensor(list(bytes.fromhex(of)), dtype=torch.uint8)
        write_tensors(self.folder / _LOOK, {"logits": logits, "of": name}, private=True)

    def take_look(self, of: str, shape: tuple[int, int]) -> Tensor | None:
        """The logits by the model with digest `of`, which are then removed; None if there are none."""
        try:
            found = read_tensors(self.folder / _LOOK)
        except UserError:  # none, or none that can be read
            return None
        (self.folder / _LOOK).unlink(missing_ok=True)
        same = bytes(found["of"].tolist()).hex() == of and found["logits"].shape == shape
        return found["logits"] if same else None

    def save_sent(self, round_idx: int, update: Tensors, of: str) -> None:
        """Write the update that is about to leave, for the model with digest `of`, in place of the one before."""
        self._make()
        about = {"of": torch.tensor(list(bytes.fromhex(of)), dtype=torch.uint8), "round": torch.tensor(round_idx)}
        write_tensors(self.folder / _SENT, {**update, **about}, private=True)

    def sent(self) -> tuple[int, str, Tensors] | None:
        """The last update that was written to be sent, with its round and the digest of its model; None: there is
        none."""
        if not (self.folder / _SENT).is_file():
            return None
        found = read_tensors(self.folder / _SENT)
        return int(found.pop("round")), bytes(found.pop("of").tolist()).hex(), found

    def _before(self, kind: str, round_idx: int) -> Tensors:
        earlier = [r for r in self._versions(kind) if r < round_idx]
        return read_tensors(self._file(kind, earlier[-1])) if earlier else {}

    def _save(self, kind: str, round_idx: int, tensors: Tensors, checkpoint_every: int) -> None:
        self._make()
        write_tensors(self._file(kind, round_idx), tensors, private=True)
        old = [r for r in self._versions(kind) if r <= round_idx - checkpoint_every]
        for version in old[:-1]:
            self._file(kind, version).unlink(missing_ok=True)

    def _make(self) -> None:
        make_own(self.folder.parent)
        make_own(self.folder)

    def _versions(self, kind: str) -> list[int]:
        files = self.folder.iterdir() if self.folder.is_dir() else []
        name = re.compile(rf"{kind}-(\d{{6}})\.safetensors")
        return sorted(int(match[1]) for path in files if (match := name.fullmatch(path.name)))

    def _file(self, kind: str, round_idx: int) -> Path:
        return self.folder / f"{kind}-{round_idx:06d}.safetensors"
