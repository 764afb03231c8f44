"""How a run is shown: bars on a terminal, one changing line in a notebook, lines elsewhere, JSON for programs."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fednoil import findings
from fednoil.data.sites import doubtful
from fednoil.errors import UserError, counted, few_of
from fednoil.experiment import Experiment
from fednoil.history import ACCURACY, RoundRecord
from fednoil.runner import Reporter, Silent
from fednoil.terminal import output


def reporter_for(progress: bool | Reporter | None) -> Reporter:
    """The reporter of a run started from Python: None shows progress where somebody is watching, on a terminal or in a
    notebook; True everywhere."""
    if not isinstance(progress, bool | None):
        if not hasattr(progress, "round"):
            raise UserError(f"progress = {progress!r}: must be True, False, None or a reporter")
        return progress
    console = output()
    if progress is False:
        return Silent()
    if console.is_jupyter:
        return Notebook()
    if console.is_terminal:
        return Bars(console)
    return Plain(console) if progress else Silent()


_MANY = 10_000  # images that take a while to decode


class JsonLines(Silent):
    """One JSON object a round on standard output (`--json`)."""

    def round(self, record: RoundRecord) -> None:
        print(json.dumps(record.to_json()), flush=True)


class Plain(Silent):
    """One line a round, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.rounds = 0
        self.decoded = False
        self.advice = ""

    def say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def start(self, experiment: Experiment, done: list[RoundRecord]) -> None:
        self.rounds = experiment.config.train.rounds
        self.advice = experiment.config.learner.lost_class_advice()
        for line in headline(experiment, done):
            self.say(line)

    def decoding(self, done: int, total: int) -> None:
        if total >= _MANY and not self.decoded:
            self.decoded = True
            self.say(f"decoding {total:,} images, once for all runs")

    def round(self, record: RoundRecord) -> None:
        self.say(f"round {record.round}/{self.rounds}  {_numbers(record)}  {record.wall_s:.1f} s")
        for line in alarms(record):
            self.say(line)

    def finish(self, summary: dict[str, Any], folder: Path | None) -> None:
        self.say(closing(summary, folder, self.advice))


class Bars(Silent):
    """Live bars for rounds and for the local work of the round, with accuracy and time left."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
        )
        self._images: TaskID | None = None
        self._rounds: TaskID | None = None
        self._local: TaskID | None = None
        self.advice = ""

    def say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False)

    def start(self, experiment: Experiment, done: list[RoundRecord]) -> None:
        self.advice = experiment.config.learner.lost_class_advice()
        if self._images is not None:
            self.progress.stop()
            self.progress.remove_task(self._images)
        for line in headline(experiment, done):
            self.say(line)
        total = experiment.config.train.rounds
        self._rounds = self.progress.add_task("rounds", total=total, completed=len(done), note="")
        self._local = self.progress.add_task("clients' work", total=100, note="")
        self.progress.start()

    def decoding(self, done: int, total: int) -> None:
        if self._images is None:
            self._images = self.progress.add_task("decoding images", total=total, note="")
            self.progress.start()
        self.progress.update(self._images, completed=done)

    def local(self, share: float) -> None:
        if self._local is not None:
            self.progress.update(self._local, completed=int(100 * share))

    def round(self, record: RoundRecord) -> None:
        if self._rounds is not None and self._local is not None:
            self.progress.update(self._rounds, completed=record.round, note=self._note(record))
            self.progress.reset(self._local)
        for line in alarms(record):
            self.say(line)

    def _note(self, record: RoundRecord) -> str:
        """All numbers if there is room, otherwise only the accuracy: bars and time left come first."""
        accuracy = record.test_accuracy
        return _numbers(record) if self.console.width >= 130 or accuracy is None else f"{accuracy:.1f} %"

    def finish(self, summary: dict[str, Any], folder: Path | None) -> None:
        self.close()
        self.say(closing(summary, folder, self.advice))

    def close(self) -> None:
        self.progress.stop()


class Notebook(Plain):
    """One line in a notebook's output that changes as the run progresses."""

    def __init__(self) -> None:
        super().__init__(Console())
        from IPython.display import display  # pyright: ignore[reportMissingImports]

        self._lines: list[str] = []
        self._last, self._share = "", 0.0
        self._display = display(_Text(""), display_id=True)

    def say(self, line: str) -> None:
        self._lines += line.splitlines()
        self._show()

    def decoding(self, done: int, total: int) -> None:
        self._show(f"decoding images: {done:,} of {total:,}")

    def local(self, share: float) -> None:
        if share - self._share >= 0.05 or share < self._share:
            self._share = share
            self._show(f"{self._last}  next round: {100 * share:.0f} %")

    def round(self, record: RoundRecord) -> None:
        for line in alarms(record):
            self.say(line)
        self._last = f"round {record.round}/{self.rounds}  {_numbers(record)}"
        self._show(self._last)

    def _show(self, more: str = "") -> None:
        self._display.update(_Text("\n".join([*self._lines, *filter(None, [more])])))


class _Text:
    """Plain text as a notebook shows it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"<pre style='margin:0'>{escape(self.text)}</pre>"


def headline(experiment: Experiment, done: list[RoundRecord]) -> list[str]:
    """What is about to run, what was done to its images, and where it continues."""
    config, setting = experiment.config, experiment.setting
    sizes = [len(p) for p in setting.parts]
    each = counted(sizes[0], "sample")
    spread = f"{each} each" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)} samples"
    named = f" ({few_of(setting.names)})" if setting.names else ""
    clients = f"{len(sizes)} clients{named}, {spread}" if len(sizes) > 1 else f"1 client, {each}"
    chosen = experiment.sampling.count(len(sizes))
    trained = "" if len(sizes) == 1 else f"{'all' if chosen == len(sizes) else chosen} train in a round, "
    noise = "no" if config.noise.kind == "none" else config.noise.kind
    first = (
        f"{config.server.name} × {config.learner.name} on {setting.dataset.name}: {clients}, {trained}"
        f"{noise} noise, seed {config.run.seed}"
    )
    counts = np.bincount(setting.dataset.train.labels, minlength=setting.dataset.num_classes).tolist()
    lines = [first, *setting.dataset.about.notices, *doubtful(setting.dataset.class_names, setting.names, counts)]
    if left_out := config.data.left_out:
        lines.append(f"fold {left_out[0] + 1} of {left_out[1]} of each client's samples is left out (data.validation)")
    return [*lines, f"{len(done)} of {counted(config.train.rounds, 'round')} done already"] if done else lines


def alarms(record: RoundRecord) -> list[str]:
    """Lines about what went wrong in a round."""
    return [f"warning: round {record.round}: {text}" for text in record.warnings or ()]


def closing(summary: dict[str, Any], folder: Path | None, advice: str = "") -> str:
    """How a run ended: its accuracy, the classes it has lost, and its findings."""
    known = summary["final_accuracy"] is not None
    chosen = f" (round {summary['final_round']}, chosen by held-out labels)" if "final_round" in summary else ""
    best = f", best {summary['best_accuracy']:.2f} %" if known else ""
    accuracy = f"{summary['final_accuracy']:.2f} %{chosen}{best}" if known else "not known"
    where = "" if folder is None else f"; results in {folder}"
    cost = f"ε = {summary['epsilon']:.3g} at δ = {summary['delta']:g}, " if "epsilon" in summary else ""
    line = f"final {summary.get('measure', ACCURACY)} {accuracy}, {cost}{summary['wall_s']:.1f} s{where}"
    return "\n".join([line, *findings.sentences(summary, advice)])


def _numbers(record: RoundRecord) -> str:
    parts = []
    if record.test_accuracy is not None:
        parts += [f"{record.measure.split()[0]} {record.test_accuracy:.2f} %", f"loss {record.test_loss:.3f}"]
    if record.selected_noise is not None:
        parts.append(f"noise of selected {record.selected_noise:.1f} %")
    epochs = record.local_epochs
    parts.append(f"{epochs} epoch{'' if epochs == 1 else 's'}")
    if record.epsilon is not None:
        parts.append(f"ε = {record.epsilon:.3g}")
    if record.trained is not None:
        parts.append(f"{len(record.trained)} of {len(record.nodes or ())} nodes trained")
    parts += [f"{name} failed: {why}" for name, why in (record.failed or {}).items()]
    return "  ".join(parts)
