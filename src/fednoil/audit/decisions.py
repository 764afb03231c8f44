"""What a person decided about labels, as the CSV file that the audit's page exports.

One line per sample: `client, item, index, given, decision, label`. A cell that a spreadsheet would treat as a formula
has a leading apostrophe, which is removed here.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

from fednoil.errors import UserError, nearest

DECISION_COLUMNS = ("client", "item", "index", "given", "decision", "label")
ACTIONS = ("accept", "reject", "change", "drop")
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_GUARDED = re.compile(r"'+[=+\-@\t\r]")


def guard(text: str) -> str:
    """The text as a CSV cell that no spreadsheet runs as a formula; `unguard` reverses it."""
    return f"'{text}" if _FORMULA.match(text) else text


def unguard(cell: str) -> str:
    """The text that `guard` was given."""
    return cell[1:] if _GUARDED.match(cell) else cell


@dataclass(frozen=True)
class Decision:
    """One line of the file: which sample, the label it had, and what becomes of it.

    `label` is the class after the decision: the suggested one (`accept`), another (`change`), the given one (`reject`).
    """

    where: str
    client: str
    item: str
    index: int | None
    given: str
    action: str
    label: str


def read_decisions(path: Path) -> list[Decision]:
    """Every line of a decisions file, each checked by itself; checks against the data come later."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            missing = [
                name for name in DECISION_COLUMNS if header.count(name) != 1 and (name != "client" or name in header)
            ]
            if len(header) == 1 and ";" in header[0]:
                raise UserError(f"{path} has its columns separated by ';'; separate them by commas")
            if missing:
                raise UserError(
                    f"{path} needs the column {missing[0]} exactly once; its first line is "
                    f"'{','.join(header)[:80]}' and must be {','.join(DECISION_COLUMNS)}"
                )
            lines = [(reader.line_num, line) for line in reader if line]
    except OSError as error:
        raise UserError(f"decisions {path} can't be read: {error.strerror or error}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path} can't be read as CSV in UTF-8 ({error}); export it again") from error
    if not lines:
        raise UserError(f"{path} has no decisions; export them from the audit's page")
    return [_decision(f"{path}, line {number}", header, line) for number, line in lines]


def _decision(where: str, header: list[str], line: list[str]) -> Decision:
    if len(line) != len(header):
        raise UserError(f"{where} has {len(line)} cells, the first line {len(header)}; the numbers must agree")
    cells = {name: unguard(cell) for name, cell in zip(header, line, strict=True)}
    action, label, given = cells["decision"], cells["label"], cells["given"]
    if action not in ACTIONS:
        raise UserError(f"{where}: decision '{action}' must be {', '.join(ACTIONS)}{nearest(action, ACTIONS)}")
    if not given:
        raise UserError(f"{where} has no given label; without it the decision can't be checked against the data")
    if not label and action in ("accept", "change"):
        raise UserError(f"{where}: decision '{action}' has no label; write the class that the sample should get")
    if action == "reject" and label not in ("", given):
        raise UserError(f"{where}: 'reject' keeps '{given}', but the label is '{label}'; write 'change' to change it")
    if action == "drop" and label:
        raise UserError(f"{where}: 'drop' removes the sample, but there is a label '{label}'; leave it empty")
    index = cells["index"].strip()
    if index and not re.fullmatch(r"[0-9]{1,18}", index):
        raise UserError(f"{where}: index '{index}' must be a whole number of at least 0")
    return Decision(where, cells.get("client", ""), cells["item"], int(index) if index else None, given, action, label)
