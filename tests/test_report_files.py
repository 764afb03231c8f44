"""Files of reports: pages, Markdown, LaTeX and records, and what is wrong in those they are made from."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from conftest import fednoil, refused
from made_runs import made_run, results_of, thousand

from fednoil.report.html import page_data, render
from fednoil.report.latex import latex
from fednoil.report.results import Results
from fednoil.report.sheets import sheets
from fednoil.report.text import markdown
from fednoil.study.report import STUDY


def test_the_files(tmp_path: Path) -> None:
    for seed in range(2):
        made_run(tmp_path / f"runs/a{seed}", seed=seed, clients=True)
        made_run(tmp_path / f"runs/b{seed}", "fedavg", [60] * 8, seed=seed)
    files = [tmp_path / f"report.{ending}" for ending in ("html", "md", "tex")]
    options = ["--html", files[0], "--markdown", files[1], "--latex", files[2]]
    status, out, err = fednoil("report", tmp_path / "runs", *options)
    assert (status, err) == (0, "")
    assert [line for line in out.splitlines() if line] == [f"wrote {path}" for path in files]
    page, text, tex = (path.read_text() for path in files)
    assert "82.46 ± 0.54" in page
    assert not re.search(r"https?://(?!github\.com/leeoniya|www\.w3\.org)", page)  # nothing is loaded
    assert "| FedNoiL(Logarithm) | **73.00 ± 0.00** (n = 2) [paper 82.46 ± 0.54, -9.46] |" in text
    assert "\\textbf{73.00 $\\pm$ 0.00}" in tex
    assert tex.count("\\begin{table}") == tex.count("\\end{table}") == 1
    printed = fednoil("report", tmp_path / "runs")[1]
    assert "FedNoiL(Logarithm)" in printed
    assert "warning: fewer than 3 seeds" in printed


def test_latex_puts_settings_over_noises_and_splits_what_is_wide(tmp_path: Path) -> None:
    for noise in ("symmetric-high", "symmetric-low", "pair-high"):
        made_run(tmp_path / noise, where=("paper", "fashion-mnist", "iid", noise))
    made_run(tmp_path / "again", seed=1)
    made_run(tmp_path / "fourth", "fedavg", [60] * 8, where=("paper", "fashion-mnist", "non-iid", "pair-high"))
    whole = latex(results_of(tmp_path))
    assert "FedNoiL and baselines (Table 1 of the paper), fashion-mnist. 1 to 2 seeds.}" in whole
    assert (
        " & \\multicolumn{3}{c}{iid} & \\multicolumn{1}{c}{non-iid} \\\\\n\\cmidrule(lr){2-4}\\cmidrule(lr){5-5}\n"
        "Method & symmetric-high & symmetric-low & pair-high & pair-high \\\\\n" in whole
    )
    made_run(tmp_path / "fifth", where=("paper", "fashion-mnist", "non-iid", "pair-low"))
    split = latex(results_of(tmp_path))
    assert "fashion-mnist, iid. 1 to 2 seeds.}" in split
    assert "fashion-mnist, non-iid. 1 seed.}" in split
    first, second = split.split("\\end{table")[:2]
    assert "FedAvg" not in first  # it has no run there
    assert "Vanilla FedAvg & 60.00 & -- \\\\" in second


def test_latex_is_well_formed(tmp_path: Path) -> None:
    """Every table has as many cells in each line as columns; braces, mathematics and environments are closed."""
    for noise in ("symmetric-high", "pair-high"):
        for method in ("fednoil-logarithm", "fednoil-uniform-clients"):
            where = ("paper", "fashion-mnist", "iid", noise)
            made_run(tmp_path / f"{noise}-{method}", method, [60] * 4 + [90, 50] * 2, where=where, selected_noise=60.0)
    text = latex(results_of(tmp_path))
    for table in re.findall(r"\\begin\{tabular\}.*?\\end\{tabular\}", text, flags=re.DOTALL):
        columns = len(re.match(r"\\begin\{tabular\}\{(\w+)\}", table)[1])  # type: ignore[index]
        for line in table.splitlines():
            if line.endswith("\\\\"):
                spans = sum(int(n) - 1 for n in re.findall(r"multicolumn\{(\d+)\}", line))
                assert len(re.findall(r"(?<!\\)&", line)) + 1 + spans == columns, line
    assert text.count("{") == text.count("}")
    assert text.count("$") % 2 == 0
    opened, closed = (sorted(re.findall(rf"\\{word}\{{(\S+?)\}}", text)) for word in ("begin", "end"))
    assert opened == closed
    assert "{\\small last round" in text


def test_a_record_says_what_the_runs_say(tmp_path: Path) -> None:
    """Tables, claims, page and figures are the same from one small file; it names no folder of this machine."""
    for seed in range(2):
        more = {"precision": "bfloat16", "about": {"command": ["fednoil", "--out", str(tmp_path)]}}
        made_run(tmp_path / f"runs/a{seed}", seed=seed, clients=True, selected_noise=60.0, **more)
        made_run(tmp_path / f"runs/b{seed}", "fedavg", [60.25] * 8, seed=seed, precision="bfloat16")
    record = tmp_path / "record.parquet"
    assert fednoil("report", tmp_path / "runs", "--record", record) == (0, f"wrote {record}\n", "")
    whole, packed = results_of(tmp_path / "runs"), results_of(record)
    assert markdown(packed) == markdown(whole)
    assert [row.conduct for row in packed.rows] == [row.conduct for row in whole.rows]
    for a, b in zip(whole.rows, packed.rows, strict=True):
        assert np.allclose(a.runs[0].curves["test_accuracy"], b.runs[0].curves["test_accuracy"], atol=1e-5)
    assert packed.rows[-1].runs[0].clients == whole.rows[-1].runs[0].clients
    assert not any("command" in run.environment for run in packed.runs)
    before = record.read_bytes()
    assert fednoil("report", record, "--record", record)[0] == 0
    assert record.read_bytes() == before


def test_names_from_outside_are_text(tmp_path: Path) -> None:
    nasty = "<script>alert(1)</script>|&%_$"
    made_run(tmp_path / "a", changes={"data": {"name": f"npz:{nasty}.npz"}})
    found = results_of(tmp_path)
    page = render(found, nasty)
    assert "<script>alert" not in page
    assert "</script>|" not in page
    assert "\\|&%" in markdown(found)
    assert "<script" not in markdown(found)
    assert "\\&\\%\\_\\$" in latex(found)


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    assert "no run in" in refused("report", tmp_path)
    assert "does not exist; give run folders" in refused("report", tmp_path / "none")
    made_run(tmp_path / "a")
    assert "doesn't exist" in refused("report", tmp_path, "--html", tmp_path / "none/page.html")
    page, config = tmp_path / "page", (tmp_path / "a/config.toml").read_text()
    for option in ("--html", "--markdown", "--latex", "--record"):  # what it wrote itself may be replaced
        assert [fednoil("report", tmp_path, option, f"{page}{option}")[0] for _ in range(2)] == [0, 0]
        said = refused("report", tmp_path, option, tmp_path / "a/config.toml")
        assert "config.toml already exists and isn't such a report; choose another name" in said
    assert (tmp_path / "a/config.toml").read_text() == config
    assert "name the same file" in refused("report", tmp_path, "--html", page, "--markdown", page)
    (tmp_path / "a/rounds.jsonl").write_text("")
    assert "no finished round" in refused("report", tmp_path)


def test_code_that_a_run_names_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text("from pathlib import Path\nPath('was here').touch()\n")
    config = made_run(tmp_path / "runs/a") / "config.toml"
    config.write_text(config.read_text().replace('name = "fednoil"', 'name = "evil:Learner"\nown_key = 3'))
    made_run(tmp_path / "runs/b", "fedavg")
    (sheet,) = sheets(results_of(tmp_path / "runs"))
    assert sheet.methods == ["Vanilla FedAvg", "fedavg+evil:Learner (logarithm)"]
    assert not Path("was here").exists()


def test_commands_can_be_pasted(tmp_path: Path) -> None:
    run = made_run(tmp_path / "it's; mine $HOME", changes={"data": {"name": "npz:my data.npz"}})
    command = page_data(results_of(run))["runs"][0]["command"]
    assert shlex.split(command) == ["fednoil", "run", str(run / "config.toml"), "--out", run.name]


def test_a_thousand_runs(tmp_path: Path) -> None:
    """Curves are thinned so that the page stays small."""
    found = Results(thousand(tmp_path), study=STUDY)
    assert len(render(found, "thousand")) < 4_000_000
    data = page_data(found)
    assert len(data["runs"]) == 1000
    assert len(data["configs"]) == len(data["methods"]) == 50
    assert data["runs"][0]["curves"]["round"][-1] == 150
