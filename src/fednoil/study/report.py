"""What the study adds to a report: the paper's tables, its values beside ours, and its claims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fednoil import pages
from fednoil.records.folder import Roster
from fednoil.report.hook import ReportSection
from fednoil.report.places import Place
from fednoil.report.results import Results
from fednoil.report.text import in_cell
from fednoil.study.claims import SCOPE, UNTESTED, Verdict, is_papers, judge
from fednoil.study.places import command_of, place_of
from fednoil.study.tables import PaperTable, tables


class PaperStudy:
    """The study of the FedNoiL paper, for `fednoil.report`."""

    cites = (
        "Wang, Zhou, Long, Han, Jiang, “FedNoiL: A Simple Two-Level Sampling Method for Federated Learning with Noisy "
        "Labels”, arXiv 2205.10110"
    )

    def place(self, values: dict[str, Any], origin: dict[str, Any] | None, roster: Roster | None) -> Place | None:
        return place_of(values, origin)

    def command(self, values: dict[str, Any], conduct: Sequence[str]) -> list[str] | None:
        return command_of(values, conduct)

    def tables(self, results: Results) -> list[PaperTable]:
        return tables(results)

    def sections(self, results: Results) -> list[ReportSection]:
        """The paper's claims, if there are runs that test one."""
        if not any(is_papers(row) for row in results.rows):
            return []
        verdicts = judge(results)
        return [
            ReportSection("claims", "The paper's claims", _html(verdicts), markdown_claims(results), _lines(verdicts))
        ]


def markdown_claims(results: Results) -> str:
    """The claims with their verdicts, and what they are judged on."""
    lines = ["| verdict | claim | in the paper | support |", "|---|---|---|---|"]
    for verdict in judge(results):
        claim = verdict.claim
        lines.append(f"| {verdict.status} | {in_cell(claim.said)} | {claim.where} | {in_cell(verdict.summary)} |")
    return "\n".join([*lines, "", SCOPE])


def _html(verdicts: Sequence[Verdict]) -> str:
    statuses = dict.fromkeys(v.status for v in verdicts)
    counts = {status: sum(v.status == status for v in verdicts) for status in statuses}
    template = pages.asset("fednoil.study", "claims.html.j2")
    return pages.render(template, verdicts=verdicts, scope=SCOPE, counts=counts)


def _lines(verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    found = [v for v in verdicts if v.status != UNTESTED]
    lines = [f"{v.status}: {v.claim.said} ({v.claim.where}; {v.summary})" for v in found]
    return (*lines, f"({SCOPE})") if lines else ()


STUDY = PaperStudy()
