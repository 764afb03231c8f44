"""An audit on disk: labels.parquet and labels.csv with one row per sample, summary.json with one entry per client."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from fednoil import evidence, metrics
from fednoil.audit.cases import Case, Cases
from fednoil.audit.decisions import guard
from fednoil.errors import UserError
from fednoil.estimation.doubts import doubts
from fednoil.estimation.wrong import Estimate
from fednoil.files import write_bytes
from fednoil.records.files import write_json

FORMAT = 1
LABELS, CSV, SUMMARY, PAGE = "labels.parquet", "labels.csv", "summary.json", "audit.html"
_CONFUSED = 5  # pairs of classes listed for a client

SCHEMA = pa.schema(
    [
        ("client", pa.string()),
        ("item", pa.string()),
        ("index", pa.int64()),
        ("given", pa.string()),
        ("suggested", pa.string()),
        ("p_wrong", pa.float64()),
        ("flagged", pa.bool_()),
        ("rank", pa.int64()),
        # what the probabilities are based on
        ("looks", pa.int64()),
        ("confidence", pa.float64()),
        ("trend", pa.float64()),
        ("margin", pa.float64()),
        ("agreed", pa.float64()),
        ("drawn", pa.float64()),
    ]
)


def check_folder(out: Path) -> None:
    """Refuse an --out that is not a folder."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file; give a folder")


def check_out(out: Path, force: bool) -> None:
    """Refuse a folder that an audit must not write to; nothing is changed."""
    check_folder(out)
    if not out.is_dir() or not any(out.iterdir()):
        return
    whole = (out / SUMMARY).is_file() and (out / LABELS).is_file()
    begun = any((out / name).is_file() for name in (PAGE, f"{PAGE}.part"))  # the page is written first
    if not whole and not begun:
        raise UserError(f"--out {out} is not empty and holds no audit; choose another folder")
    if not force:
        what = "an audit already" if whole else "an audit that was not finished"
        raise UserError(f"{out} holds {what}; add --force to write it again, or choose another --out")


def check_outside(out: Path, data: str) -> None:
    """Refuse a folder inside a site's pictures, where it would become another class."""
    form, _, path = data.partition(":")
    if not path.strip():  # reported when it is read
        return
    try:
        top = Path(path).expanduser().resolve()
    except (OSError, RuntimeError):  # reported when it is read
        return
    if form == "folder" and out.resolve().is_relative_to(top):
        raise UserError(f"--out {out} is inside the data {data}, which must not change; choose another folder")


def make_table(cases: Cases, estimates: Sequence[Estimate]) -> pa.Table:
    """All clients' rows, the most suspicious of each first."""
    tables = [_rows(case, found, cases.class_names) for case, found in zip(cases.clients, estimates, strict=True)]
    return pa.concat_tables(tables)


def summarise(cases: Cases, estimates: Sequence[Estimate], method: str) -> dict[str, Any]:
    """The content of summary.json: each client's estimated noise and, if true labels are known, how good it is."""
    clients = [_client(case, found, cases.class_names) for case, found in zip(cases.clients, estimates, strict=True)]
    samples = sum(entry["samples"] for entry in clients)
    overall: dict[str, Any] = {
        "samples": samples,
        "noise_ratio": round(sum(e["noise_ratio"] * e["samples"] for e in clients) / samples, 6),
        "flagged": sum(entry["flagged"] for entry in clients),
        "skipped": sum(len(entry["skipped"]) for entry in clients),
        "duplicates": sum(len(entry["duplicates"]) for entry in clients),
    }
    if cases.clients[0].true is not None:
        overall |= _quality(cases, estimates, clients)
    return {
        "format": FORMAT,
        "classes": list(cases.class_names),
        "data": cases.data,
        "source": cases.source or cases.data,
        "method": method,
        **({"folds": cases.folds} if cases.folds else {}),
        "clients": clients,
        "overall": overall,
    }


def notices(clients: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """The notices of all clients, each once, with the clients that it is about."""
    found: dict[str, list[str]] = {}
    for entry in clients:
        for notice in entry.get("notices") or []:
            found.setdefault(notice, []).append("this site" if entry["client"] is None else entry["client"])
    return found


def noticed(clients: Sequence[dict[str, Any]]) -> list[str]:
    """The notices as lines."""
    found = notices(clients).items()
    names = [(notice, f"client{'s' if len(whose) > 1 else ''} {', '.join(whose)}: ", whose) for notice, whose in found]
    return [notice if len(whose) == len(clients) else name + notice for notice, name, whose in names]


def write_audit(out: Path, table: pa.Table, summary: dict[str, Any]) -> None:
    """Write the files; the summary comes last, because it marks the audit as complete."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    write_bytes(out / LABELS, buffer.getvalue())
    buffer = io.BytesIO()
    csv.write_csv(_guarded(table), buffer)
    write_bytes(out / CSV, buffer.getvalue())
    write_json(out / SUMMARY, summary)


def _guarded(table: pa.Table) -> pa.Table:
    """The table with text that no spreadsheet runs as formulas, as in decisions."""
    for place, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            texts = [text if text is None else guard(text) for text in table.column(place).to_pylist()]
            table = table.set_column(place, field, pa.array(texts, field.type))
    return table


def _rows(case: Case, found: Estimate, class_names: Sequence[str]) -> pa.Table:
    names = np.array(class_names, dtype=object)
    order = np.argsort(-found.p_wrong, kind="stable")
    count, bundle = len(order), case.bundle
    looks, epochs = int(bundle["looks"][0]), int(bundle["epochs"][0])
    votes = bundle["votes"].numpy()[np.arange(count), case.given]
    columns = {
        "client": [case.client] * count,
        "item": [case.items[row] for row in order],
        "index": case.index[order],
        "given": names[case.given[order]],
        "suggested": names[found.suggested[order]],
        "p_wrong": found.p_wrong[order],
        "flagged": found.flagged[order],
        "rank": np.arange(1, count + 1),
        "looks": np.full(count, looks),
        "confidence": bundle["confidence"].double().numpy()[order] / looks,
        "trend": evidence.trend(bundle).numpy()[order] if looks > 1 else [None] * count,
        "margin": bundle["margin"].double().numpy()[order] / looks,
        "agreed": votes[order] / looks,
        "drawn": bundle["drawn"].double().numpy()[order] / epochs if epochs else [None] * count,
    }
    return pa.table([pa.array(columns[name], SCHEMA.field(name).type) for name in SCHEMA.names], schema=SCHEMA)


def _client(case: Case, found: Estimate, class_names: Sequence[str]) -> dict[str, Any]:
    flagged = np.flatnonzero(found.flagged)
    pairs = Counter((class_names[case.given[i]], class_names[found.suggested[i]]) for i in flagged)
    entry: dict[str, Any] = {
        "client": case.client,
        "samples": len(case.given),
        "noise_ratio": round(found.ratio, 6),
        "interval": [round(end, 6) for end in found.interval],
        "flagged": len(flagged),
        "matrix": np.round(found.matrix, 3).tolist(),
        "confused": [[given, suggested, n] for (given, suggested), n in pairs.most_common(_CONFUSED)],
        "looks": int(case.bundle["looks"][0]),
        "skipped": [list(pair) for pair in case.skipped],
        "duplicates": [list(group) for group in case.duplicates],
        "notices": [
            *case.notices,
            *doubts(case.probabilities, case.given, found.ratio, case.accuracy, case.by_class, len(flagged)),
        ],
    }
    if case.true is not None:
        wrong = case.given != case.true
        entry["true_noise_ratio"] = round(float(wrong.mean()), 6)
        entry["quality"] = _rounded(metrics.detection(found.p_wrong, found.flagged, wrong))
    return entry


def _quality(cases: Cases, estimates: Sequence[Estimate], clients: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How good the audit is over all clients: `quality` of all samples together, errors of the noise ratios."""
    wrong = np.concatenate([case.given != case.true for case in cases.clients])
    together = metrics.detection(
        np.concatenate([found.p_wrong for found in estimates]), np.concatenate([f.flagged for f in estimates]), wrong
    )
    errors = [abs(e["noise_ratio"] - e["true_noise_ratio"]) for e in clients]
    covered = [e["interval"][0] <= e["true_noise_ratio"] <= e["interval"][1] for e in clients]
    return {
        "quality": _rounded(together),
        "ratio_error": {
            "mean": round(float(np.mean(errors)), 6),
            "largest": round(max(errors), 6),
            "in_interval": sum(covered),
        },
    }


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 6) for name, value in values.items()}
