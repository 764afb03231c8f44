"""The study of CIFAR: variants run on both executors, runs can be stopped and judged, the page is the records'."""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fednoil import rounds
from fednoil.errors import UserError
from fednoil.executors.cuda import CudaGraphs
from fednoil.experiment import make_executor, make_experiment

STUDY = Path(__file__).resolve().parents[1] / "experiments" / "cifar"
NAMES = ("study", "table", "pictures", "variants")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    """The scripts as modules, as they find each other when they run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(STUDY))
        others = {name: sys.modules.pop(name) for name in NAMES if name in sys.modules}
        yield {name: importlib.import_module(name) for name in NAMES}
        for name in NAMES:
            sys.modules.pop(name, None)
        sys.modules.update(others)


def tiny(npz: Path) -> tuple[str, ...]:
    """Keys that make any of the study's runs small: four clients, 8×8 images, short turns."""
    return (
        f"data.name=npz:{npz}",
        "noise.kind=symmetric",
        "noise.mode=high",
        "partition.clients=4",
        "partition.samples_per_client=20",
        "train.batch_size=8",
        "run.device=cpu",
    )


def configured(modules: dict[str, ModuleType], name: str, npz: Path, resnet: bool = False) -> Any:
    variants = modules["variants"]
    variant = variants.composed(name)
    more = (*tiny(npz), "model.width=2", *(() if resnet else ("model.name=cnn",)))
    if variant.method == "fedavg":
        more = (*more, "schedule.epochs=1")
    else:
        more = (*more, "schedule.t_max=2", "schedule.t_min=1", "schedule.r_min=2")
        if variant.method != "fednoil-plus" and not any("frac" in one for one in variant.sets):
            more = (*more, "learner.frac=0.35")  # own data would estimate it
    return variants.configured(variant, variants.PLACES["symmetric-high"], 0, 2, False, more)


def all_variants() -> list[str]:
    """Their names, without leaving the scripts imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(STUDY))
        variants = importlib.import_module("variants")
        sys.modules.pop("variants")
    return list(variants.VARIANTS)


def play_on_both(config: Any) -> None:
    """The first round client after client, the second as on a GPU, where clients lie side by side."""
    experiment = make_experiment(config)
    reference, state = make_executor(experiment, CPU), rounds.start(experiment)
    stacked = CudaGraphs(
        lambda: make_executor(experiment, CPU).bench, reference.clients, reference.test_images, 2, reference.validation
    )
    for executor in (reference, stacked):
        state, record = rounds.play(experiment, executor, state)
        assert 0 <= record["val_accuracy"] <= 100
        assert all(bool(t.isfinite().all()) for t in state.server.tensors.values())
    assert stacked.reason is None


JOINED = (
    "no-ssl+x-strong+ra-always",
    "no-ssl+wd-5e-4+turn-cosine",
    "no-ssl+lr-cosine+keep-momentum",
    "no-ssl+group-norm",
    "no-ssl+bn-measured+step-0.5",
    "lr-cosine+wd-5e-4+x-strong+views-turns",
    "plus+lr-cosine+wd-5e-4",
)


@pytest.mark.parametrize("name", [*all_variants(), *JOINED])
def test_every_variant_runs_on_both_executors(modules: dict[str, ModuleType], name: str, tiny_npz: Path) -> None:
    resnet = any(part in ("bn-measured", "group-norm") for part in name.split("+"))
    play_on_both(configured(modules, name, tiny_npz, resnet=resnet))


@pytest.mark.slow
@pytest.mark.parametrize("name", all_variants())
def test_every_variant_trains_a_narrow_resnet(modules: dict[str, ModuleType], name: str, tiny_npz: Path) -> None:
    play_on_both(configured(modules, name, tiny_npz, resnet=True))


def test_a_variant_differs_by_its_sets_alone(modules: dict[str, ModuleType], tiny_npz: Path) -> None:
    published, changed = (configured(modules, name, tiny_npz) for name in ("published", "lr-cosine+wd-5e-4"))
    assert changed.train == published.train.model_copy(update={"lr_rounds": "cosine", "weight_decay": 5e-4})
    for section in ("data", "partition", "noise", "model", "server", "learner", "schedule", "run"):
        assert getattr(changed, section) == getattr(published, section)


def test_screening_trains_on_as_many_samples_as_the_paper(modules: dict[str, ModuleType]) -> None:
    variants = modules["variants"]
    for setting, place in variants.PLACES.items():
        screened = variants.configured(variants.composed("published"), place, 0, 40, False, ())
        full = variants.configured(variants.composed("published"), place, 0, None, True, ())
        kept = screened.partition.samples_per_client * (1 - screened.data.validation)
        assert kept == full.partition.samples_per_client, setting
        assert full.data.validation == 0


def test_no_variant_is_another_by_a_second_name(modules: dict[str, ModuleType]) -> None:
    variants = modules["variants"]
    place = variants.PLACES["symmetric-high"]
    found = [variants.configured(v, place, 0, 40, False, ()) for v in variants.VARIANTS.values()]
    assert len({(config.hash(), config.run.precision) for config in found}) == len(found)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lr-cosin", "unknown variant 'lr-cosin'"),
        ("no-ssl+plus", "fednoil-no-ssl and fednoil-plus are two methods"),
        ("no-ssl+wd-5e-4+mu-7", "mu-7 changes nothing without semi-supervision"),
        ("no-ssl+ra-always", "ra-always changes nothing without semi-supervision"),
    ],
)
def test_a_wrong_name_gets_one_clear_line(modules: dict[str, ModuleType], name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        modules["variants"].composed(name)


def test_a_run_is_stopped_after_a_round_and_goes_on(
    modules: dict[str, ModuleType],
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "runs" / "small--published--seed0--2"
    run = ["run", "published", "--setting", "small", "--rounds", "2", *words]
    for _ in range(2):  # and once more it has nothing to do
        command(modules, monkeypatch, *run, "--until", "1")
        assert "enough after round 1" in capsys.readouterr().out
        assert len((folder / "rounds.jsonl").read_text().splitlines()) == 1
    command(modules, monkeypatch, *run, "--until", "2")  # which is all of it
    assert "lost_classes" in capsys.readouterr().out
    assert (folder / "summary.json").is_file()


def test_runs_need_no_matplotlib(tmp_path: Path) -> None:
    """Where runs are made it may be missing; only `study.py table` draws."""
    (tmp_path / "matplotlib.py").write_text("raise ImportError")
    script = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(STUDY)!r}]; import study; study.show()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "settings: symmetric-high" in done.stdout


def test_a_list_whose_reader_leaves_ends_quietly() -> None:
    """As in `study.py list | head -3`; the reader is gone long before the first line is written."""
    command = [sys.executable, str(STUDY / "study.py"), "list"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1


def test_strong_views_of_labelled_samples_have_their_operations(modules: dict[str, ModuleType]) -> None:
    assert modules["variants"].composed("no-ssl+x-strong+ra-always").method == "fednoil-no-ssl"


def test_a_rate_falls_over_the_rounds_that_are_run(modules: dict[str, ModuleType]) -> None:
    variants = modules["variants"]
    variant, place = variants.composed("no-ssl+lr-cosine"), variants.PLACES["symmetric-high"]
    for length in (30, 40, 200):
        train = variants.configured(variant, place, 0, length, False, ()).train
        assert (train.round_share(1), train.round_share(length)) == pytest.approx((1, 0.01))


def command(modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["study.py", *map(str, words)])
    modules["study"].main()


@pytest.fixture
def words(tiny_npz: Path, tmp_path: Path) -> list[str]:
    sets = [*tiny(tiny_npz), "model.width=2", "model.name=cnn", "schedule.t_max=2", "schedule.t_min=1"]
    return ["--out", str(tmp_path / "runs"), *(word for one in sets for word in ("--set", one))]


@pytest.mark.parametrize("ctrl_c", [signal.default_int_handler, signal.SIG_IGN], ids=["heard", "ignored"])
def test_a_run_stops_in_time_goes_on_and_is_collected(
    ctrl_c: Any,
    modules: dict[str, ModuleType],
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    study, table, folder = modules["study"], modules["table"], tmp_path / "runs" / "small--published--seed0--3"
    run = ["run", "published", "--setting", "small", "--rounds", "3", *words]
    with pytest.MonkeyPatch.context() as patch:  # time is up when round 2 is half-way

        def late(watcher: Any, share: float) -> None:
            if watcher.agreed:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.raise_signal(signal.SIGALRM)

        patch.setattr(study.Watcher, "local", late)
        before = signal.signal(signal.SIGINT, ctrl_c)  # a shell's job in the background ignores it
        try:
            command(modules, monkeypatch, *run, "--seconds", "100")
        finally:
            signal.signal(signal.SIGINT, before)
    assert "time is up" in capsys.readouterr().out
    assert len((folder / "rounds.jsonl").read_text().splitlines()) == 1
    command(modules, monkeypatch, *run)
    assert "goes on after round 1" in capsys.readouterr().out
    command(modules, monkeypatch, *run)
    assert "done before" in capsys.readouterr().out
    for module in (study, table):
        monkeypatch.setattr(module, "RESULTS", tmp_path / "results.csv")
        monkeypatch.setattr(module, "CURVES", tmp_path / "curves.csv")
    for _ in range(2):  # taken in again it replaces itself
        command(modules, monkeypatch, "collect", tmp_path / "runs")
    results, curves = study.rows(tmp_path / "results.csv"), study.rows(tmp_path / "curves.csv")
    assert [row["round"] for row in curves] == ["1", "2", "3"]
    assert [(row["variant"], row["seed"], row["rounds"], row["planned"]) for row in results] == [
        ("published", "0", "3", "3")
    ]
    assert results[0]["val_accuracy"] == curves[-1]["val_accuracy"]  # a quarter of three rounds is one
    groups = table.together(results, "small")
    assert modules["pictures"].draw(groups, curves, "small", tmp_path / "small.png")
    assert modules["pictures"].draw_final(groups, curves, "small", tmp_path / "final.png")
    assert not modules["pictures"].draw_final([], curves, "small", tmp_path / "none.png")
    assert "`train.batch_size=8` | 1 | 3 | " in table.screening(groups, {})  # keys of --set are told


def test_a_wrong_key_is_told_before_the_first_run(
    modules: dict[str, ModuleType], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match=r"unknown key 'schedule\.t_max'"):  # FedAvg has no such key
        command(modules, monkeypatch, "run", "published", "fedavg", "--setting", "small", "--rounds", "1", *words)
    assert not (tmp_path / "runs").exists()


def test_a_run_with_other_keys_is_not_taken_for_this_one(
    modules: dict[str, ModuleType],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = ["run", "published", "--setting", "small", "--rounds", "1", *words]
    command(modules, monkeypatch, *run)
    with pytest.raises(SystemExit, match="1 of 1 runs failed"):
        command(modules, monkeypatch, *run, "--set", "train.lr=0.01")
    assert "has other keys than are asked for now" in capsys.readouterr().out


def test_runs_of_one_name_with_other_keys_stand_beside_each_other(
    modules: dict[str, ModuleType], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, table = modules["study"], modules["table"]
    monkeypatch.setattr(study, "RESULTS", tmp_path / "results.csv")
    monkeypatch.setattr(study, "CURVES", tmp_path / "curves.csv")
    sets = words[2:]  # without --out
    run = ["run", "published", "--setting", "small-noise-0", "--rounds", "1", *sets, "--out"]
    command(modules, monkeypatch, *run, tmp_path / "a")
    start = tmp_path / "a" / "small-noise-0--published--seed0--1" / "model.safetensors"
    command(modules, monkeypatch, *run, tmp_path / "b", "--set", f"model.start={start}")
    for folder in ("a", "b", "b"):
        command(modules, monkeypatch, "collect", tmp_path / folder)
    first, second = study.rows(study.RESULTS)
    told = f"model.start={start.parent.name}"
    assert (told in first["run"], told in second["run"]) == (False, True)
    assert str(start) not in study.RESULTS.read_text()
    lines = table.levels([first, second], "small-").splitlines()[2:]
    assert [f"`{told}`" in line for line in lines] == [False, True]


def test_what_is_far_behind_is_given_up(
    modules: dict[str, ModuleType], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = modules["study"]
    monkeypatch.setattr(study, "FIRST_JUDGED", 5)
    monkeypatch.setattr(study, "agreed", lambda folder: [101.0 + 200] * 6)
    run = ["run", "wd-5e-4", "--setting", "small", "--rounds", "6", "--lost", "5", *words]
    command(modules, monkeypatch, *run)
    folder = tmp_path / "runs" / "small--wd-5e-4--seed0--6"
    assert "points behind in round 5" in (folder / "lost.txt").read_text()
    records = (folder / "rounds.jsonl").read_text().splitlines()
    assert len(records) == 5
    command(modules, monkeypatch, *run)  # and is not begun again
    assert (folder / "rounds.jsonl").read_text().splitlines() == records
    row = study.result(folder, study.RunFolder(folder).records())
    assert (row["rounds"], row["planned"], bool(row["given_up"])) == ("5", "6", True)


def test_the_page_is_what_the_records_say(modules: dict[str, ModuleType]) -> None:
    """`python experiments/cifar/study.py table` writes it."""
    study, table = modules["study"], modules["table"]
    text = (STUDY / "README.md").read_text(encoding="utf-8")
    assert table.fill(text, table.parts(study.rows(study.RESULTS), study.rows(study.CURVES))) == text


def test_a_table_by_hand(modules: dict[str, ModuleType]) -> None:
    table = modules["table"]
    common = {"setting": "symmetric-high", "full": "False", "planned": "40", "given_up": "", "seconds": "100.0"}
    figures = {"label_precision": "70.00", "pseudo_accuracy": "60.00", "pseudo_accept": "50.00"}
    rows = [
        {**common, **figures, "variant": v, "seed": s, "rounds": r, "val_accuracy": a, "test_accuracy": t}
        | {"run": f"{v}-{s}", "final_test": t, "sets": " ".join(modules["variants"].composed(v).sets)}
        for v, s, r, a, t in (
            ("published", "0", "40", "24.00", "50.00"),
            ("published", "1", "40", "26.00", "52.00"),
            ("wd-5e-4", "0", "20", "27.00", "55.00"),
            ("x-none", "1", "40", "28.50", "56.00"),
            ("no-ssl", "0", "40", "23.00", "48.00"),
            ("no-ssl+x-none", "0", "40", "22.00", "47.00"),
        )
    ]
    # The one that got to round 20 is compared with rounds 11 to 20 of the reference, where that had two points less.
    curves = [
        {"run": row["run"], "round": str(r), "val_accuracy": str(float(row["val_accuracy"]) - less * (r <= 20))}
        for row in rows
        for less in (2 * (row["variant"] == "published"),)
        for r in range(1, int(row["rounds"]) + 1)
    ]
    agreed = table.agreement(curves)
    lines = table.screening(table.together(rows, "symmetric-high", no_ssl=False), agreed).splitlines()[2:]
    assert lines[:2] == [
        "| x-none | `learner.x_augment=none` | 1 | 40 | 28.5 | +2.5 | 56.0 | 56.0 | 70.0 | 60.0 (50.0) | 100.0 |",
        "| wd-5e-4 | `train.weight_decay=5e-4` | 1 | 20 of 40 | 27.0 | +5.0 | 55.0 | 55.0 | 70.0 | 60.0 (50.0) "
        "| 100.0 |",
    ]
    assert lines[2].startswith("| published | – | 2 | 40 | 25.0 ± 1.4 | – | 51.0 ± 1.4 | 51.0 ± 1.4 | 70.0 ± 0.0 |")
    alone = table.screening(table.together(rows, "symmetric-high", no_ssl=True), agreed).splitlines()[2:]
    assert [line.split(" | ")[:6:5] for line in alone] == [["| no-ssl", "–"], ["| no-ssl+x-none", "-1.0"]]
    assert table.screening(table.together(rows, "cifar100"), agreed) == "Not run yet."
    later = {**rows[0], "run": "later", "sets": "model.start=published-1"}
    assert [g.start for g in table.together([*rows, later], "symmetric-high", started=True)] == ["published-1"]
    assert len(table.together([*rows, later], "symmetric-high", started=False)) == 5
    assert table.counted(rows) == (
        "Looked at so far on CIFAR: 5 variants, 1 of them joined from others, in 6 runs, 0 of them given up; "
        "10 minutes of rounds."
    )


def test_the_papers_numbers_stand_beside_the_final_rows(modules: dict[str, ModuleType]) -> None:
    printed = modules["table"].printed
    assert printed("symmetric-high") == (" (paper: FedNoiL(Cosine) 74.07, FedNoiL(Logarithm) 74.62, FedNoiL† 63.44)")
    assert printed("noise-40") == printed("small") == ""


def test_levels_by_hand(modules: dict[str, ModuleType], tmp_path: Path) -> None:
    """Means over the runs that have ended; a level without any is told as such."""
    table = modules["table"]
    rows = [
        {"setting": f"small-noise-{level}", "variant": "auto", "rounds": done, "planned": "8", "final_test": test}
        | {"val_accuracy": "20.00", "sets": "learner.frac=auto"}
        for level, done, test in ((0, "8", "80.00"), (0, "8", "84.00"), (40, "8", "70.00"), (80, "3", "10.00"))
    ]
    line = table.levels(rows, "small-").splitlines()[2]
    assert line == "| auto | 1–2 | 82.0 ± 2.8 (20.0 ± 0.0) | – | 70.0 (20.0) | – | – |"
    assert table.levels(rows, "") == "Not run yet."
    assert modules["pictures"].draw_levels(rows, "small-", tmp_path / "levels.png")
    assert not modules["pictures"].draw_levels(rows, "", tmp_path / "none.png")
