"""An audit in Python: which labels are wrong, and how many of each client's."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from fednoil.api.table import Table
from fednoil.api.words import in_python
from fednoil.audit import ESTIMATORS, estimates, files, write
from fednoil.audit.cases import Cases, client_number, of_state, source_of
from fednoil.audit.folds import USUAL, of_folds, why_folds
from fednoil.errors import UserError, counted
from fednoil.experiment import Experiment
from fednoil.reporters import reporter_for
from fednoil.rounds import RunState


class Audit:
    """An estimate for every given label, from the final model and the rounds before it."""

    def __init__(self, cases: Cases, rows: pa.Table, summary: dict[str, Any]) -> None:
        self._cases, self._rows, self._summary = cases, rows, summary

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        state: RunState,
        client: str | int | None,
        method: str,
        device: torch.device,
        folds: int | None = None,
        path: Path | None = None,
        seconds: float | None = None,
    ) -> Audit:
        """The audit of a run's state, or with `folds` of its runs without one, which are kept in the run's folder.
        Without `folds`, whichever is better for a run that took so many seconds."""
        if method not in ESTIMATORS:
            raise UserError(f"method = {method!r} is unknown; choose {' or '.join(ESTIMATORS)}")
        if folds is not None and (isinstance(folds, bool) or not isinstance(folds, int)):
            raise UserError(f"folds = {folds!r}: must be a whole number, 0 or at least 2")
        number = client_number(experiment, client, "the run")
        cases = None if folds else of_state(experiment, state, number, device)
        if cases is not None and folds is None and why_folds(experiment, cases, seconds):
            folds = USUAL
        if cases is None or folds:
            place = None if path is None else path / f"folds-{folds}"
            cases = of_folds(experiment, folds or USUAL, number, device, lambda _: reporter_for(None), place)
        cases = replace(cases, source=source_of(experiment, path))
        found = estimates(cases, method)
        return cls(cases, files.make_table(cases, found), files.summarise(cases, found, method))

    @property
    def summary(self) -> dict[str, Any]:
        """All numbers by client, as in an audit's summary.json; with true labels also the quality of the audit."""
        return self._summary

    @property
    def table(self) -> Table:
        """One row per label, the most suspicious of each client first.

        `client` and `sample` say which (the sample's place in the client's arrays, its number in the dataset, or its
        file), `given` and `suggested` are class names, `p_wrong` is the probability that the given label is wrong and
        `flagged` whether that is more likely than not. The other columns are what this is based on.
        """
        rows = self._rows.drop_columns(["index"])
        names = ["sample" if name == "item" else name for name in rows.column_names]
        rows = rows.rename_columns(names)
        return Table(_numbers(_numbers(rows, "client"), "sample"))

    @property
    def flagged(self) -> Table:
        """The rows of `table` that are flagged, the most suspicious first."""
        rows = self.table.to_arrow()
        return Table(rows.filter(rows.column("flagged")).sort_by([("p_wrong", "descending")]))

    @property
    def noise_ratios(self) -> dict[str | int, float]:
        """The estimated share of wrong labels of each client, in 0..1; `notices` say how far to trust them."""
        clients = _numbers(pa.table({"client": [entry["client"] for entry in self.summary["clients"]]}), "client")
        ratios = [entry["noise_ratio"] for entry in self.summary["clients"]]
        return dict(zip(clients.column("client").to_pylist(), ratios, strict=True))

    @property
    def notices(self) -> list[str]:
        """What limits the audit: a model that is too weak, labels that it has memorised. `summary` has an `interval`
        for each client besides."""
        return files.noticed(self.summary["clients"])

    @in_python
    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write the audit to a folder, as `fednoil audit` does, with the page to review the images; returns that
        page."""
        folder = Path(path)
        files.check_out(folder, force)
        write(self._cases, self._rows, self.summary, folder)
        return folder / files.PAGE

    def __repr__(self) -> str:
        overall, count = self.summary["overall"], len(self.summary["clients"])
        ratio = f"about {100 * overall['noise_ratio']:.1f} % of {overall['samples']:,} labels wrong"
        doubts = f"; {counted(len(self.notices), 'notice')}" if self.notices else ""
        return f"<fednoil.Audit of {count} client{'s' * (count > 1)}: {ratio}, {overall['flagged']:,} flagged{doubts}>"

    def _repr_html_(self) -> str:
        """For notebooks."""
        return f"<p><code>{escape(repr(self))}</code></p>{self.flagged._repr_html_()}"


def _numbers(rows: pa.Table, name: str) -> pa.Table:
    """The table with a column of strings converted to numbers, if all are whole numbers."""
    texts = rows.column(name).to_pylist()
    if not all(isinstance(text, str) and text.isdecimal() for text in texts):
        return rows
    return rows.set_column(rows.column_names.index(name), name, pa.array(map(int, texts), pa.int64()))
