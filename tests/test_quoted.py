"""Sentences with numbers on the pages of the studies: what no table has, and the records say."""

from __future__ import annotations

import csv
import re
import statistics
from types import ModuleType

import pytest
from studies import EXPERIMENTS, ROOT, script

from fednoil.bench.ranking import ranking
from fednoil.bench.record import figures_in, key_of, read_record
from fednoil.report.chance import CHANCE, sample_of, unpaired_p


@pytest.fixture(scope="module")
def record() -> ModuleType:
    return script(EXPERIMENTS / "record.py", "experiments_record")


def quoted(page: str, *sentences: str) -> None:
    """A study's page, or the one at this path, has these sentences; their numbers are differences that no table has."""
    path = ROOT / page if page.endswith(".md") else EXPERIMENTS / page / "README.md"
    text = " ".join(path.read_text(encoding="utf-8").split())
    for sentence in sentences:
        assert sentence in text, (page, sentence)


def mean(rows: list[dict[str, str]], figure: str, **where: str) -> float:
    return statistics.mean(float(r[figure]) for r in rows if all(r[key] == value for key, value in where.items()))


def test_the_demos_sentences_quote_its_record(record: ModuleType) -> None:
    rows = record.read(EXPERIMENTS / "demo/results.csv")

    def ahead(setting: str, method: str = "fednoil") -> int:
        ours, fedavg = (mean(rows, "final", setting=setting, method=m) for m in (method, "fedavg"))
        return round(ours - fedavg)

    high, few = "50 to 80 % wrong", "50 to 80 % wrong, pad 4"
    quoted(
        "demo",
        f"The default is {ahead(high, 'default')} points ahead, and FedNoiL as published {ahead(high)}.",
        f"with 4 pixels the leads are {ahead(few, 'default')} and {ahead(few)} points.",
        f"the published share of 0.55 loses {-ahead('clean')} points to FedAvg",
        f'`frac = "auto"` loses {-ahead("clean", "auto")}, and the default is within chance of it.',
    )
    ours, fedavg = (
        [float(row["final"]) for row in rows if (row["setting"], row["method"]) == ("clean", method)]
        for method in ("default", "fedavg")
    )
    chance = unpaired_p(sample_of(ours), sample_of(fedavg))
    assert chance is not None
    assert chance > CHANCE


def test_the_sentences_about_human_labels_quote_their_record(record: ModuleType) -> None:
    rows = record.read(EXPERIMENTS / "human/results.csv")
    leads = [
        [
            mean(rows, "final", setting=setting, method="default") - mean(rows, figure, setting=setting, method=method)
            for setting in ("cnn worst iid", "cnn worst non-iid", "cnn aggregate iid")
        ]
        for method, figure in (("fedavg", "final"), ("fedavg", "best"), ("published", "final"))
    ]
    last, best, published = ("{:.0f}, {:.0f} and {:.0f}".format(*points) for points in leads)
    clean = mean(rows, "label_precision", setting="cnn worst iid", method="default")
    quoted(
        "human",
        f"The default ends {last} points above FedAvg, {best} above FedAvg's best round, and {published} above FedNoiL "
        "(*worst* IID, *worst* β = 1, *aggregate*).",
        f"last ten rounds of *worst*, IID, {clean:.0f} % of the labels in D^x are correct, where 60 % of all are.",
    )


def test_the_sentences_about_protocols_quote_their_record(record: ModuleType) -> None:
    rows = record.read(EXPERIMENTS / "protocols/results.csv")
    late = {row["method"]: float(row["last10"]) for row in rows if row["setting"] == "fnbench/cifar10"}
    order = sorted(late, key=late.__getitem__, reverse=True)
    assert order[:6] == ["fednoil-plus-9", "fednoil-plus-9-both", "fedcorr", "fednoil", "gce", "fednoil-plus"]
    assert len(order) == 8 + 2
    ahead = [late[method] - late["fednoil-plus"] for method in order[2:5]]
    (own,) = (row for row in rows if row["setting"] == "fedcorr/cifar10")
    steps = {row["method"]: f"{round(int(row['batches']), -3):,}" for row in rows if row["batches"]}
    quoted(
        "protocols",
        "{:.1f} points behind FedCorr, {:.1f} behind FedNoiL and {:.1f} behind GCE".format(*ahead),
        f"FedAvg is {late['fednoil-plus'] - late['fedavg']:.0f} points behind the default",
        f"five epochs are {steps['fednoil-plus']} client-steps",
        f"With nine epochs, {steps['fednoil-plus-9']} client-steps, "
        f"it is {late['fednoil-plus-9'] - late['fedcorr']:.1f} points above",
        f"its best round is {92.50 - float(own['best']):.1f} points below 92.50",
        f"after round {own['rounds']} of {int(own['planned']):,}",
    )
    more = next(int(row["batches"]) for row in rows if row["method"] == "fednoil-plus-9") / (120 * 10 * 5 * 8) - 1
    quoted(
        "README.md",
        f"fourth of eight with {late['fednoil-plus']:.1f}, and FedCorr is first with {late['fedcorr']:.1f};",
        f"{more:.0%} more client-steps than FedAvg's".replace("%", " %"),
        f"`fednoil-plus` has {late['fednoil-plus-9']:.1f}.",
    )
    ranked = re.findall(
        r"^\| ([a-z-]+) \|", (EXPERIMENTS / "ranking/README.md").read_text(encoding="utf-8"), flags=re.M
    )
    assert (ranked.index("fedlsr"), ranked.index("fedcorr")) == (2, 6)  # the first is the heading


def test_the_sentences_about_levels_quote_their_record(record: ModuleType) -> None:
    rows = record.read(EXPERIMENTS / "levels/results.csv")

    def gain(data: str, level: int, figure: str, other: str) -> float:
        ours, theirs = (mean(rows, figure, setting=f"{data}{level} %", method=m) for m in ("default", other))
        return ours - theirs

    def gains(data: str, figure: str, digits: int, other: str = "fedavg") -> str:
        found = [f"{gain(data, level, figure, other):.{digits}f}" for level in (20, 40, 60, 80)]
        return f"{', '.join(found[:-1])} and {found[-1]} points"

    for data in ("", "cifar10 "):
        quoted("levels", f"and {gains(data, 'final', 1, 'published')} above FedNoiL")
    assert {round(gain("", 0, "final", other)) for other in ("fedavg", "published")} == {1}
    clean = [f"{gain('cifar10 ', 0, 'final', other):.1f}" for other in ("fedavg", "published")]
    steps = {
        level: [
            mean(rows, "batches", setting=f"cifar10 {level} %", method=m) for m in ("default", "published", "fedavg")
        ]
        for level in (0, 20, 40, 60, 80)
    }
    assert all(ours < min(others) for ours, *others in steps.values())
    most = mean(rows, "label_precision", setting="cifar10 80 %", method="default")
    assert 49 < most < 51
    quoted(
        "levels",
        "(at 40 % {:,.0f}, {:,.0f} and {:,.0f})".format(*(round(count, -3) for count in steps[40])),
        "with clean labels it is {} points above FedAvg and {} above FedNoiL".format(*clean),
        f"it is a point above both others on clean labels, {gains('', 'final', 0)} above FedAvg at 20, 40, 60 and 80 %",
        f"with wrong ones it is {gains('cifar10 ', 'final', 0)} above FedAvg",
        f"the gains are {gains('', 'chosen', 1)} on Fashion-MNIST and {gains('cifar10 ', 'chosen', 1)} on CIFAR-10",
        f"the default is at {mean(rows, 'final', setting='cifar10 80 %', method='default'):.1f} %",
    )


def test_the_sentences_about_the_default_quote_its_record() -> None:
    module = script(EXPERIMENTS / "default/table.py", "default_table")
    rows, counted, slower = module.read(), {"whole-fedavg": 0, "whole-fednoil": 0}, set()
    cells = [("fashion-mnist", s, n) for s in module.SPLITS for n in module.NOISES]
    cells += [("fashion-mnist", split, "symmetric-high") for split in module.OTHERS]
    for cell in cells:
        ours = [row for row in rows if tuple(row[name] for name in module.KEY[:4]) == (*cell, "whole")]
        for variant in counted:
            own = [row for row in rows if tuple(row[name] for name in module.KEY[:4]) == (*cell, variant)]
            if theirs := own or module.elsewhere(*cell, module.METHODS[variant]):
                counted[variant] += 1
                assert mean(ours, "final") > mean(theirs, "final")
                slower |= {cell[1]} if mean(ours, "batches") > mean(theirs, "batches") else set()
    assert slower == {"clients100"}
    assert {*counted.values()} == {len(cells)}

    def final(split: str, noise: str, dataset: str = "fashion-mnist") -> list[float]:
        where = {"dataset": dataset, "split": split, "noise": noise, "variant": "whole"}
        return [float(row["final"]) for row in rows if where.items() <= row.items()]

    missed = {cell: float(goal) - statistics.mean(final(*cell[1:], cell[0])) for cell, goal in module.GOALS.items()}
    behind = {cell: by for cell, by in missed.items() if by > 0}
    assert list(behind) == [("fashion-mnist", split, "symmetric-high") for split in ("iid", "b1")]
    iid, beta = behind.values()
    seeds = final("b.1", "pair-high")
    now = f"{statistics.mean(seeds[:3]):.1f} ± {statistics.stdev(seeds[:3]):.1f}"
    hard = {"dataset": "fashion-mnist", "split": "b.1", "noise": "clean", "variant": "whole-fedavg", "seed": "4"}
    fresh = {  # by how much seeds 3 to 5 differ from seeds 0 to 2
        split: [
            statistics.mean(of[3:]) - statistics.mean(of[:3]) for noise in module.NOISES if (of := final(split, noise))
        ]
        for split in module.SPLITS
    }
    alike = fresh["iid"] + fresh["b1"]
    with (EXPERIMENTS / "paper/results.csv").open(encoding="utf-8", newline="") as file:
        setting, method = "fashion-mnist iid symmetric-high", "DMix (centralized)"
        (pooled,) = (row for row in csv.DictReader(file) if (row["setting"], row["method"]) == (setting, method))
    quoted(
        "default",
        f"above FedAvg and FedNoiL in all {len(cells)} cells (many of theirs with one seed)",
        f"it is {iid:.1f} points (IID) and {beta:.1f} points (β = 1) below DivideMix",
        f"ends at {float(pooled['final']):.1f} on the same images and labels, IID, one seed",
        f"seeds end between {min(seeds):.0f} and {max(seeds):.0f}",
        f"(record at 1370b69), and have {now} now.",
        f"({min(alike):.1f} to {max(alike):+.1f} points). With β = 0.1".replace("-", "−"),
        f"are {-max(fresh['b.1']):.1f} to {-min(fresh['b.1']):.1f} points lower; seed 4's",
        f"it ends at {final('b.1', 'clean')[4]:.1f} and FedAvg at {mean(rows, 'final', **hard):.1f}.",
        f"alone it is also {78 - statistics.mean(final('b.1', 'symmetric-high')[3:]):.1f} below the goal with β = 0.1.",
    )
    uneven, iid = (final(split, "symmetric-high", "cifar10")[0] for split in ("b.1", "iid"))
    quoted(
        "docs/fednoil.md",
        f"seeds end up to {max(seeds) - min(seeds):.0f} points apart on Fashion-MNIST",
        f"with β = 0.1 ends at {uneven:.0f} %, with IID clients at {iid:.0f} %",
    )


def test_the_sentences_about_the_paper_quote_their_record(record: ModuleType) -> None:
    rows = record.read(EXPERIMENTS / "paper/results.csv")

    def ours(noise: str, method: str = "FedNoiL(Logarithm)") -> float:
        return mean(rows, "final", setting=f"fashion-mnist iid {noise}", method=method)

    wrong = {m: ours("pair-high-shared", f"FedNoiL({m})") for m in ("Logarithm", "Cosine")}
    low = sorted(ours("pair-low-shared", f"FedNoiL({m})") for m in wrong)
    clean = round(ours("clean", "Vanilla FedAvg") - ours("clean"))
    assert max(wrong.values()) < 6
    quoted(
        "paper",
        "ends at {:.1f} and {:.1f} % (pair-high) or {:.1f} and {:.1f} % (pair-low;".format(*wrong.values(), *low),
        f"The method as published loses {clean} points to FedAvg",
    )
    quoted("docs/fednoil.md", f"That costs [{clean} points]")
    quoted("docs/noise.md", f"at {ours('pair-high'):.0f} % with a map per client and below 6 % with the shared one")


def test_the_sentences_about_the_readings_quote_their_record() -> None:
    module = script(EXPERIMENTS / "readings/table.py", "readings_table")

    def leads(method: str) -> dict[str, float]:
        """By noise, in points; 0 where chance explains it."""
        where = {"dataset": "fashion-mnist", "setting": "non-iid-1", "method": method, "reading": "each"}
        found = {}
        for noise in module.NOISES:
            seeds = [float(r["final"]) for r in module.read() if (where | {"noise": noise}).items() <= r.items()]
            printed = module._paper("fashion-mnist", "non-iid-1", noise, method)["accuracy"]
            found[noise] = 0.0 if module._alike(seeds, *printed) else statistics.mean(seeds) - printed[0]
        return found

    found = leads("fednoil-logarithm")
    assert set(leads("fednoil-cosine").values()) == {0.0}  # "can't be distinguished from it under any noise"
    assert (found["pair-low"], found["symmetric-high"] > 0, found["pair-high"] > 0) == (0.0, True, True)
    quoted("readings", f"from it under pair-low, and {-found['symmetric-low']:.1f} points below it under symmetric-low")


def test_the_sentences_about_sites_quote_their_record(record: ModuleType) -> None:
    rows = record.read(EXPERIMENTS / "sites/results.csv")
    digits, table, icons, pages = dict.fromkeys(row["data"] for row in rows)

    def of(figure: str, data: str) -> float:
        return mean(rows, figure, data=data)

    precision = [of("precision", data) for data in (digits, table, icons, pages)]
    gains = [of("fedavg_after", data) - of("fedavg", data) for data in (table, pages, icons)]
    leads = [of("fednoil", data) - of("fedavg", data) for data in (icons, table, pages)]
    own = [of("fednoil_after", data) - of("fednoil", data) for data in (table, icons, pages)]
    assert (round(min(own), 1), round(of("fednoil_after", digits) - of("fednoil", digits), 1)) == (0.5, -0.5)
    assert all(of("precision", data) > of("cleanlab_precision", data) for data in (digits, table, icons, pages))
    recall = [of("recall", data) for data in (digits, table, icons)]
    first, second, third = (f"{gain:.0f}" for gain in gains)
    quoted(
        "sites",
        f"{min(precision):.0f} to {max(precision):.0f} % of the flags are correct",
        f"finds {min(recall):.0f} to {max(recall):.0f} % of the wrong labels",
        f"but {of('recall', pages):.0f} % in the manual pages",
        f"there cleanlab finds {of('cleanlab_recall', pages):.0f} %.",
        f"by {first} points on the table, by {second} on the manual pages and by {third} on the icons",
        f"gains {min(own):.1f} to {max(own):.1f} points, and loses half a point on the digits",
        "{:.0f}, {:.0f} and {:.0f} points ahead on the icons, the table and the manual pages".format(*leads),
    )


def test_the_sentences_about_the_ranking_quote_its_record() -> None:
    rows = read_record(EXPERIMENTS / "ranking/results.csv")
    methods, settings = ([*dict.fromkeys(row[name] for row in rows)] for name in ("method", "setting"))
    ranked = ranking({key_of(row): figures_in(row) for row in rows}, methods, settings, dict.fromkeys(methods, False))
    first = next(row for row in ranked if row.method == "fednoil-plus")
    assert all(first.steps < row.steps for row in ranked if row is not first)
    assert first.worst is not None
    setting, by = first.worst
    best = {row.method: found.mean for row in ranked if (found := row.by_setting.get(setting))}
    assert (setting, max(best, key=best.__getitem__)) == ("iid/two-level", "fedcorr")
    late = [found.mean for row in ranked if (found := row.accuracy["best"])]
    quoted(
        "ranking",
        f"iid/two-level (some clients are clean), where FedCorr is {by:.1f} points ahead",
        f"the methods differ by about {max(late) - min(late):.0f} points",
    )
    for row in ranked[1:]:
        assert all(row.by_setting[name].mean < first.by_setting[name].mean for name in settings if name != setting)


def test_the_recipes_sentences_for_clients_that_differ_quote_the_record(record: ModuleType) -> None:
    rows = record.read(EXPERIMENTS / "cifar/results.csv")

    def lead(noise: str) -> float:
        setting = f"cifar10 non-iid {noise}"
        ours = mean(rows, "final", setting=setting, method="x-strong+wd-2e-3+ssl-160+by-class")
        return ours - float(record.printed(setting, "FedNoiL(Logarithm)").split()[0])

    high, low = lead("symmetric-high"), lead("symmetric-low")
    quoted(
        "cifar",
        f"the recipe is {-high:.1f} and {-low:.1f} points below the paper under symmetric-high and -low noise, and "
        f"{lead('pair-high'):.1f} and {lead('pair-low'):.1f} above it under pair-high and -low, in one seed.",
    )


def test_the_sentences_about_cifar_quote_their_record(record: ModuleType) -> None:
    rows, high = record.read(EXPERIMENTS / "cifar/results.csv"), "cifar10 iid symmetric-high"

    def early(method: str, figure: str = "final") -> float:
        return mean(rows, figure, setting=f"{high}, half held out", method=method, rounds="30")

    def late(method: str, figure: str = "final") -> float:
        return mean(rows, figure, setting=high, method=method)

    base = "x-strong+wd-2e-3"
    seeds = [float(row["final"]) for row in rows if (row["setting"], row["method"]) == (high, f"no-ssl+{base}")]
    quoted(
        "cifar",
        f"{early('no-ssl+x-strong'):.0f} instead of {early('no-ssl'):.0f} after 30 rounds without pseudo-labels.",
        f"{early(base, 'pseudo_accuracy'):.0f} % of those accepted over 30 rounds are correct",
        f"the run ends at {early(base):.0f} instead of {early(f'no-ssl+{base}'):.0f}.",
        f"From round 161 on, {late(f'{base}+ssl-160+by-class', 'pseudo_accuracy'):.0f} % are correct",
        f"they add {late(f'{base}+ssl-160') - late(f'no-ssl+{base}'):.0f} points.",
        f"ends at about {late('published'):.0f} % on CIFAR-10",
        f"that seed is up to {max(seeds) - min(seeds):.0f} points below the others.",
        f"add {late(f'mixup+{base}+ssl-160+by-class+average') - late(f'{base}+ssl-160+by-class'):.0f} points.",
    )
    titles = {
        "base": "no change",
        "strong": "strong views",
        "mix": "mixup",
        "strong-mix": "both",
        "penalty": "(0.8 and 0.4, `screens.py`)",
        "strong-penalty": "these with strong views",
        "each-strong": "strong views with *each*",
    }
    for name, title in titles.items():
        quoted("cifar", f"{title} {early(f'untried {name}', 'validation'):.1f} ({early(f'untried {name}'):.1f})")
    (full,) = (row for row in rows if row["method"] == "total+x-strong+penalties")
    quoted("cifar", f"at round {full['rounds']}, where the time ended, {float(full['final']):.1f}, above")
    (labelled,) = (row for row in rows if row["method"] == "total+x-strong+penalties+ssl")
    precision, accepted = (float(labelled[name]) for name in ("label_precision", "pseudo_accuracy"))
    quoted(
        "cifar",
        f"stopped at round {labelled['rounds']}, at {float(labelled['final']):.1f}, where {precision:.0f} % of the "
        f"labels in D^x and {accepted:.0f} % of the accepted pseudo-labels were correct.",
    )


def test_the_sentences_about_liars_quote_their_record(record: ModuleType) -> None:
    rows = record.read(EXPERIMENTS / "liars/results.csv")

    def lost(attack: str, server: str = "fedavg", limits: str = "no") -> int:
        honest, spoilt = (mean(rows, "accuracy", attack=a, server=server, limits=limits) for a in ("none", attack))
        return round(honest - spoilt)

    wrong_way, high = "update × -10", "largest score, all labels wrong"
    quoted(
        "liars",
        f"{lost('constant weights')} points to constant weights, {lost(high)} to clients that report",
        f"all wrong, and {lost('replay of round 1')} to replays.",
        f"still costs {lost(wrong_way, limits='yes')} points on average",
        f"which with wrong labels costs {lost(high, limits='yes')}.",
        f"they lose {lost(wrong_way, 'median', 'yes')} and {lost(high, 'median', 'yes')} points, and the median alone "
        f"{lost(wrong_way, 'median')} and {lost(high, 'median')}.",
    )


def test_the_sentences_about_cleaning_quote_their_record(record: ModuleType) -> None:
    rows = record.read(EXPERIMENTS / "cleaning/results.csv")
    budgets = ("10.0", "20.0", "40.0", "60.0")

    def found(percent: str) -> float:
        """Wrong labels found in the audit's order, as a multiple of those found in random order."""
        before = mean(rows, "noise_ratio", order="none")
        ours, random = (mean(rows, "noise_ratio", order=o, percent=percent) for o in ("suspicious", "random"))
        return (before - ours) / (before - random)

    def gains(method: str, order: str = "suspicious") -> list[float]:
        before = mean(rows, "final_accuracy", method=method, order="none")
        return [mean(rows, "final_accuracy", method=method, order=order, percent=p) - before for p in budgets]

    ahead = [ours - theirs for ours, theirs in zip(gains("FedAvg"), gains("FedAvg", "random"), strict=True)][2:]
    assert [round(found(percent)) for percent in budgets[:2]] == [2, 2]
    quoted(
        "cleaning",
        "twice as many wrong labels as random order if 10 or 20 % of the labels are checked",
        f"and {found('60.0'):.1f} times as many at 60 %",
        f"FedAvg gains most, up to {max(gains('FedAvg')):.0f} points",
        f"FedAvg gains less, by {min(ahead):.0f} to {max(ahead):.0f} points at 40 and 60 %",
        f"gains {min(gains('FedNoiL')):.0f} to {max(gains('FedNoiL')):.0f}.",
    )
