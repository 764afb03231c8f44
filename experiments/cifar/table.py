"""README.md's tables, from results.csv and curves.csv; `study.py table` calls it."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass
from pathlib import Path

from variants import GROUPS, NO_SSL, PLACES, composed, reference

from fednoil.pages.marked import fill
from fednoil.paper.names import preset_of
from fednoil.paper.tables import cells

HERE = Path(__file__).resolve().parent
RESULTS, CURVES = HERE / "results.csv", HERE / "curves.csv"
Row = dict[str, str]
LEVELS = (0, 20, 40, 60, 80)
SCREENED = "symmetric-high"  # the setting in which variants are compared
TABLES = {"symmetric-high": False, "no-ssl": True}  # with semi-supervision, and without


def mean(rows: list[Row], name: str) -> str:
    """Mean over seeds, with the standard deviation where there is more than one; – where it is not known."""
    values = [float(row[name]) for row in rows if row.get(name)]
    if not values:
        return "–"
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


def averaged(rows: list[Row], name: str, last: str) -> str:
    """The mean of a figure, and in brackets that of the last model where the averaged one was scored."""
    before = mean(rows, last)
    return mean(rows, name) if before == "–" else f"{mean(rows, name)} (last model {before})"


@dataclass(frozen=True)
class Group:
    """The runs of one line, which differ by their seed: variant, its keys as they were run, planned rounds."""

    variant: str
    sets: str
    planned: str
    rows: tuple[Row, ...]

    @property
    def more(self) -> frozenset[str]:
        """Keys beyond the variant's own."""
        return frozenset(self.sets.split()) - frozenset(composed(self.variant).sets)

    @property
    def label(self) -> str:
        """Variant, rounds and seeds, for a legend."""
        longest = max((row["rounds"] for row in self.rows), key=int)
        rounds = self.planned if longest == self.planned else f"{longest} of {self.planned}"
        return f"{self.variant}, {rounds} rounds ({len(self.rows)} seed{'s' if len(self.rows) > 1 else ''})"

    @property
    def start(self) -> str:
        """The run whose model this one goes on from; empty for one that begins by itself."""
        return next((key.partition("=")[2] for key in self.more if key.startswith("model.start=")), "")


def together(
    results: list[Row], setting: str, full: bool = False, no_ssl: bool | None = None, started: bool | None = None
) -> list[Group]:
    """The runs of a setting, the best agreement first, or the best accuracy where there is none; `no_ssl`: only those
    without semi-supervision, or only the others; `started`: only those that go on from another run, or the others."""
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in results:
        if (row["setting"], row["full"]) != (setting, str(full)):
            continue
        if no_ssl is None or no_ssl == (composed(row["variant"]).method == NO_SSL):
            found.setdefault((row["variant"], row["sets"], row["planned"]), []).append(row)
    order = "test_accuracy" if full else "val_accuracy"
    groups = [Group(*key, tuple(rows)) for key, rows in found.items()]
    groups = [group for group in groups if started is None or started == bool(group.start)]
    return sorted(groups, key=lambda group: -statistics.fmean(float(row[order] or 0) for row in group.rows))


Agreed = dict[str, dict[int, float]]  # agreement with validation labels by run and round


def agreement(curves: list[Row]) -> Agreed:
    found: Agreed = {}
    for row in curves:
        if row["val_accuracy"]:
            found.setdefault(row["run"], {})[int(row["round"])] = float(row["val_accuracy"])
    return found


def gain(group: Group, groups: list[Group], agreed: Agreed) -> str:
    """Points of validation above the reference, mean over the seeds that both have, in the last rounds that the variant
    has played, however far it got; – without any."""
    name = reference(composed(group.variant))
    gains = []
    for other in groups:
        if (other.variant, other.planned, other.more) != (name, group.planned, group.more) or other is group:
            continue
        for mine, theirs in itertools.product(group.rows, other.rows):
            ours, others = (agreed.get(row["run"], {}) for row in (mine, theirs))
            last = sorted(ours)[-max(1, min(10, int(group.planned) // 4)) :]
            if mine["seed"] == theirs["seed"] and last and set(last) <= others.keys():
                gains.append(statistics.fmean(ours[r] - others[r] for r in last))
    return f"{statistics.fmean(gains):+.1f}" if gains else "–"


def screening(groups: list[Group], agreed: Agreed, full: bool = False) -> str:
    """A table with a line for each group."""
    heads = ["variant", "`--set`", "seeds", "rounds", *([] if full else ["validation", "gain"]), "test", "final test"]
    heads += ["D^x right", "pseudo right (used)", "s a run"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for group in groups:
        rows = list(group.rows)
        least = min(int(row["rounds"]) for row in rows)
        rounds = group.planned if least == int(group.planned) else f"{least} of {group.planned}"
        rounds += " (given up)" if any(row["given_up"] for row in rows) else ""
        sets = " ".join(f"`{one}`" for one in group.sets.split()) or "–"
        judged = [] if full else [mean(rows, "val_accuracy"), gain(group, groups, agreed)]
        figures = [
            averaged(rows, *names) for names in (("test_accuracy", "last_accuracy"), ("final_test", "final_last"))
        ]
        figures.append(mean(rows, "label_precision"))
        used = (
            "–"
            if mean(rows, "pseudo_accept") == "–"
            else (f"{mean(rows, 'pseudo_accuracy')} ({mean(rows, 'pseudo_accept')})")
        )
        cells = [group.variant, sets, str(len(rows)), rounds, *judged, *figures, used, mean(rows, "seconds")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) if groups else "Not run yet."


def paper_values(setting: str) -> dict[str, float]:
    """The paper's numbers for a setting: FedNoiL with both schedules, and without semi-supervision."""
    return {
        cell.method: cell.mean
        for cell in cells()
        if cell.method in ("FedNoiL(Cosine)", "FedNoiL(Logarithm)", "FedNoiL†")
        and (cell.metric, preset_of(cell).rpartition("/")[0]) == ("accuracy", PLACES[setting].folder)
    }


def printed(setting: str) -> str:
    """The same as words, where the setting is one of the paper's."""
    found = [f"{method} {value:.2f}" for method, value in paper_values(setting).items()]
    return f" (paper: {', '.join(found)})" if found and not PLACES[setting].sets else ""


def line_of(row: Row) -> str:
    """A run's variant, and its keys beyond it."""
    more = sorted(set(row["sets"].split()) - set(composed(row["variant"]).sets))
    return ", ".join((row["variant"], *(f"`{key}`" for key in more)))


def levels(results: list[Row], prefix: str) -> str:
    """Test accuracy, and validation in brackets, by variant and noise level."""
    lines = [f"| variant | seeds | {' | '.join(f'noise {n} %' for n in LEVELS)} |", f"|---|---|{'---|' * len(LEVELS)}"]
    names = dict.fromkeys(line_of(row) for row in results if row["setting"].startswith(f"{prefix}noise-"))
    order = [v.name for group in GROUPS.values() for v in group]
    for variant in sorted(names, key=lambda n: order.index(n) if n in order else len(order)):
        cells, seeds = [], set()
        for level in LEVELS:
            mine = [r for r in results if (r["setting"], line_of(r)) == (f"{prefix}noise-{level}", variant)]
            whole = [r for r in mine if r["rounds"] == r["planned"]]
            seeds |= {len(whole)} if whole else set()
            cells.append(f"{mean(whole, 'final_test')} ({mean(whole, 'val_accuracy')})" if whole else "–")
        if seeds:
            many = "–".join(dict.fromkeys(str(n) for n in (min(seeds), max(seeds))))
            lines.append(f"| {variant} | {many} | {' | '.join(cells)} |")
    return "\n".join(lines) if len(lines) > 2 else "Not run yet."


def parts(results: list[Row], curves: list[Row]) -> dict[str, str]:
    """What stands between `<!-- NAME -->` and `<!-- end -->` in README.md."""
    agreed = agreement(curves)
    screened = [setting for setting in PLACES if "noise-" not in setting]
    others = [
        f"**{s}**{printed(s)}\n\n{screening(together(results, s), agreed)}"
        for s in screened
        if s != SCREENED and together(results, s)
    ]
    whole = [
        f"**{s}**{printed(s)}\n\n{screening(together(results, s, full=True), agreed, full=True)}"
        for s in PLACES
        if together(results, s, full=True)
    ]
    found = {
        name: screening(together(results, SCREENED, no_ssl=only, started=False), agreed)
        for name, only in TABLES.items()
    }
    found["later"] = screening(together(results, SCREENED, started=True), agreed)
    for name in found:
        if found[name] != "Not run yet.":
            found[name] += f"\n\n![Validation agreement and test accuracy over rounds]({name}.png)"
    final = "\n\n".join(whole) or "Not run yet."
    if together(results, SCREENED, full=True):
        final = f"![Test accuracy over rounds, with the paper's values](full.png)\n\n{final}"
    return found | {
        "others": "\n\n".join(others) or "Not run yet.",
        "full": final,
        **{f"{prefix}levels": levels(results, prefix) for prefix in ("", "fashion-", "small-")},
        "count": counted([row for row in results if not row["setting"].startswith(("fashion", "small"))]),
    }


def counted(rows: list[Row]) -> str:
    """How much was looked at, which is what any best of it has to be read with."""
    variants = {row["variant"] for row in rows}
    joined = sum("+" in name for name in variants)
    lost, seconds = sum(bool(row["given_up"]) for row in rows), sum(float(row["seconds"]) for row in rows)
    return (
        f"Looked at so far on CIFAR: {len(variants)} variants, {joined} of them joined from others, in {len(rows)} "
        f"runs, {lost} of them given up; {seconds / 60:.0f} minutes of rounds."
    )


def write_page(results: list[Row], curves: list[Row]) -> None:
    """README.md with its tables as the records are."""
    readme = HERE / "README.md"
    readme.write_text(fill(readme.read_text(encoding="utf-8"), parts(results, curves)), encoding="utf-8")
