"""Many runs as one small file: what reports and figures need from each, to be committed, sent, or read again.

A parquet file with one row per run: configuration, summary, environment, clients and labels as JSON, and a few curves
with every round, to two decimals. The command line is left out, because it names folders of the machine.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fednoil.errors import UserError
from fednoil.files import write_bytes
from fednoil.records.folder import Roster
from fednoil.report.checks import Environment, Summary, check
from fednoil.report.clients import Clients
from fednoil.report.hook import Study
from fednoil.report.runs import RecordedRun, completed, placed

_KEPT = (
    "test_accuracy",
    "train_batches",
    "selected_noise",
    "label_precision",
    "label_recall",
)  # of tables and figures
_FORMERLY = {"selected_noise": "noise_ratio"}  # columns that used to have another name
MEANS = "means"  # a column of records that leave curves out: JSON of `RecordedRun.means`
_TEXTS = ("config", "summary", "environment", "clients", "confusion")
SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("finished", pa.bool_()),
        ("federated", pa.bool_()),
        *((text, pa.string()) for text in _TEXTS),
        *((key, pa.list_(pa.float64() if key == "train_batches" else pa.float32())) for key in _KEPT),
    ]
)


def write_record(runs: Sequence[RecordedRun], path: Path) -> None:
    """Write the runs to a file; the same runs give the same bytes."""
    buffer = pa.BufferOutputStream()
    rows = sorted((_row(run) for run in runs), key=lambda row: (row["name"], row["config"]))
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), buffer, compression="zstd")
    write_bytes(path, buffer.getvalue().to_pybytes())


def read_record(path: Path, study: Study | None = None) -> list[RecordedRun]:
    """The runs of a file; what was left out of it is absent in reports."""
    try:
        there = pq.read_schema(path).names
        names = [name if name in there else _FORMERLY.get(name, name) for name in SCHEMA.names]
        schema = pa.schema([field.with_name(name) for field, name in zip(SCHEMA, names, strict=True)])
        rows = pq.read_table(path, schema=schema).rename_columns(SCHEMA.names).to_pylist()
        means = pq.read_table(path, columns=[MEANS])[MEANS].to_pylist() if MEANS in there else [None] * len(rows)
        return [_run({**row, MEANS: of_run}, path, study) for row, of_run in zip(rows, means, strict=True)]
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} is not a record of runs from `fednoil report --record`: {error}") from None


def _row(run: RecordedRun) -> dict[str, Any]:
    config = {section: {k: v for k, v in keys.items() if v is not None} for section, keys in run.values.items()}
    environment = {k: v for k, v in run.environment.items() if k not in ("command", "started")}
    return {
        "name": run.path.name,
        "finished": run.finished,
        "federated": run.federated,
        "config": _text(config),
        "summary": _text(run.summary),
        "environment": _text(environment),
        "clients": _text(_rounded(asdict(run.clients))),
        "confusion": _text(run.confusion),
        **{key: run.curves[key].round(2).tolist() if key in run.curves else None for key in _KEPT},
    }


def _run(row: dict[str, Any], path: Path, study: Study | None) -> RecordedRun:
    values = completed(json.loads(row["config"]))
    known: dict[str, Any] = {text: json.loads(row[text]) for text in _TEXTS[1:]}
    check(Summary, known["summary"], path / row["name"])
    check(Environment, known["environment"], path / row["name"])
    curves = {key: np.array(row[key], dtype=float) for key in _KEPT if row[key] is not None}
    clients = Clients(**known["clients"])
    roster = None if clients.founders is None else Roster({}, {}, clients.founders)
    return RecordedRun(
        path / row["name"],
        placed(values, known["environment"], roster, study, len(clients.samples or ()) or None),
        values,
        row["finished"],
        known["summary"],
        curves,
        clients,
        known["confusion"],
        known["environment"],
        row["federated"],
        means={key: (mean, std) for key, (mean, std) in json.loads(row[MEANS] or "{}").items()},
    )


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _rounded(clients: dict[str, Any]) -> dict[str, Any]:
    """Shares in percent to one decimal, as the page shows them; names and unknown values unchanged."""
    return {
        key: [round(x, 1) if isinstance(x, float) else x for x in values] if isinstance(values, list) else values
        for key, values in clients.items()
    }
