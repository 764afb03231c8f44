"""The report's page in a real browser: no error, tables sort, the filter works, light and dark, on a phone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from browsing import CHROMIUM, Opened
from made_runs import made_run, results_of, thousand

from fednoil.report.html import render
from fednoil.report.results import Results
from fednoil.study.report import STUDY

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here; apt-get install chromium")


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two settings, two seeds, an ablation; one run with all that a run can record."""
    folder = tmp_path_factory.mktemp("page")
    for noise in ("symmetric-high", "pair-high"):
        where = ("paper", "fashion-mnist", "iid", noise)
        for seed in range(2):
            same = {"seed": seed, "where": where, "precision": "float32"}
            made_run(folder / f"{noise}-a{seed}", clients=noise == "symmetric-high", **same)
            made_run(folder / f"{noise}-b{seed}", "fedavg", [60 + seed] * 8, **same)
            made_run(folder / f"{noise}-c{seed}", "fednoil-uniform-local", [65, 64, 60, 66, 59, 61], **same)
    path = folder / "report.html"
    path.write_text(render(results_of(folder), "Tested in a browser"))
    return path


class Visit(Opened):
    """The report's page."""

    def scroll(self) -> None:
        """Bring every section into view, so that it is drawn."""
        for name in ("curves", "clients", "confusion", "runs"):
            self.page.locator(f"#{name}").scroll_into_view_if_needed()
            self.page.wait_for_timeout(30)
        self.page.wait_for_selector("#runs-table tbody tr")

    def cells(self, table: str) -> list[list[str]]:
        return [row.split() for row in self.texts(f"{table} tbody tr")]


def opened(browser: Any, run: Path) -> Visit:
    path = run.parent / "report.html"
    path.write_text(render(results_of(run), "One run"))
    visit = Visit(browser, path)
    visit.scroll()
    return visit


def test_the_page_works(browser: Any, page_file: Path) -> None:
    visit = Visit(browser, page_file)
    visit.scroll()
    page = visit.page
    assert page.title() == "Tested in a browser"
    assert page.locator("#curve-chart canvas").count() == 1
    assert page.locator("#client-chart circle").count() == 3
    assert page.locator("#confusion-table td").count() == 16
    assert "12 of 12 runs" in page.inner_text("#runs-note")
    page.locator("#runs-table tbody tr").first.click()
    details = page.inner_text("#run-details")
    assert "fednoil run paper/fashion-mnist/iid/" in details
    assert "rounds = 150" in details
    page.select_option("#curve-over", "train_batches")
    page.select_option("#curve-lines", "each")
    assert visit.errors == []
    assert len(visit.requests) <= 2, visit.requests  # the file itself and its empty icon


def test_tables_sort(browser: Any, page_file: Path) -> None:
    visit = Visit(browser, page_file)
    heading = visit.page.locator(".sheet").first.locator("thead th").nth(1)
    rows = ".sheet >> nth=0 >> tbody tr:visible td:nth-child(2)"
    heading.click()
    first = visit.texts(rows)
    assert heading.get_attribute("aria-sort") == "descending"
    heading.press("Enter")
    assert visit.texts(rows) == first[::-1]
    assert [t[:5] for t in first] == sorted((t[:5] for t in first), reverse=True)
    assert len(first) > 1
    visit.scroll()
    visit.page.locator("#runs-table thead th", has_text="final").click()
    finals = [float(t) for t in visit.texts("#runs-table tbody td:nth-child(5)")]
    assert finals == sorted(finals, reverse=True)
    assert len(set(finals)) > 1


def test_the_filter_works(browser: Any, page_file: Path) -> None:
    visit = Visit(browser, page_file)
    visit.scroll()
    everything = visit.page.locator("#runs-table tbody tr:visible").count()
    visit.page.fill("#filter", "fedavg PAIR-high")
    visit.wait_for("#runs-table tbody tr:not([hidden])", 2)
    assert everything == 12
    assert all("FedAvg" in text for text in visit.texts(".sheet tbody tr:visible th"))
    visit.page.fill("#filter", "nothing has this name")
    visit.wait_for("#curve-note:text-is('no run matches')", 1)
    visit.page.fill("#filter", "")
    visit.wait_for("#runs-table tbody tr:not([hidden])", 12)
    assert visit.errors == []


def test_classes_have_their_names(browser: Any, tmp_path: Path) -> None:
    known = {"classes": ["cat", "dog", "<b>", "eel"]}
    visit = opened(browser, made_run(tmp_path / "a", clients=True, known=known))
    assert visit.texts("#confusion-table tbody th") == ["cat", "dog", "<b>", "eel"]
    assert visit.errors == []


def test_clients_have_what_is_known_of_them_and_no_empty_columns(browser: Any, tmp_path: Path) -> None:
    known = {"noise_ratios": {"0": 0.125, "2": 0.4}}
    visit = opened(browser, made_run(tmp_path / "a", changes={"data": {"name": "folder:photos"}}, known=known))
    assert visit.texts("#client-table thead th") == ["client", "labels wrong, estimated, %", "rounds selected"]
    assert visit.cells("#client-table") == [["0", "12.5", "10"], ["1", "–", "3"], ["2", "40", "3"]]
    assert visit.errors == []


def test_lines_have_bands_over_seeds(browser: Any, page_file: Path) -> None:
    visit = Visit(browser, page_file)
    visit.scroll()
    chart = visit.page.locator("#curve-chart")
    assert chart.get_attribute("data-bands") == "1"  # of three methods one has seeds that differ
    visit.page.select_option("#curve-lines", "each")
    assert chart.get_attribute("data-bands") == "0"
    assert visit.errors == []


def test_a_printed_page_has_its_charts(browser: Any, page_file: Path, tmp_path: Path) -> None:
    """Nothing was scrolled to before."""
    visit = Visit(browser, page_file)
    assert visit.page.locator("#client-chart circle").count() == 0
    opened = """addEventListener("beforeprint", () => { window.seen = [
        document.querySelectorAll("details:not([open])").length,
        document.querySelector("#curve-chart canvas").clientWidth]; })"""
    visit.page.evaluate(opened)
    closed = visit.page.locator("details:not([open])").count()
    visit.page.pdf(path=tmp_path / "page.pdf")
    left, wide = visit.page.evaluate("window.seen")
    assert (left, wide <= 620 < visit.page.locator("#curve-chart canvas").evaluate("c => c.clientWidth")) == (0, True)
    assert visit.page.locator("details:not([open])").count() == closed
    assert visit.page.locator("#curve-chart canvas").count() == 1
    assert visit.page.locator("#client-chart circle").count() == 3
    assert visit.page.locator("#runs-table tbody tr").count() == 12
    assert visit.errors == []


def test_light_and_dark(browser: Any, page_file: Path) -> None:
    shades = {}
    for scheme in ("light", "dark"):
        visit = Visit(browser, page_file, color_scheme=scheme)
        visit.scroll()
        back, ink = (
            visit.page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color")
        )
        shades[scheme] = [sum(int(n) for n in c.strip("rgb()").split(",")) for c in (back, ink)]
        assert visit.errors == []
    assert shades["light"][0] > 600 > 200 > shades["light"][1]
    assert shades["dark"][0] < 150 < 600 < shades["dark"][1]
    visit.page.emulate_media(media="print")  # which is light
    assert visit.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_phone_width(browser: Any, page_file: Path) -> None:
    """The page itself never scrolls sideways; wide tables do, each in its own box."""
    visit = Visit(browser, page_file, viewport={"width": 360, "height": 740}, is_mobile=True)
    visit.scroll()
    assert visit.page.evaluate("document.documentElement.scrollWidth") == 360
    plain = visit.page.locator(".sheet tbody th", has_text="FedNoiL(Logarithm)").first  # a word is never broken
    lines = "cell => { const r = document.createRange(); r.selectNodeContents(cell); return r.getClientRects().length }"
    assert plain.evaluate(lines) == 1
    wide = visit.page.locator(".scroll.more")  # says so, until it is scrolled to its end
    assert wide.count() > 0
    first = wide.first.element_handle()
    first.evaluate("box => box.scrollTo(box.scrollWidth, 0)")
    visit.page.wait_for_function("box => !box.classList.contains('more')", arg=first)
    box = visit.page.locator("#curve-chart canvas").bounding_box()
    assert box["width"] <= 360
    assert visit.errors == []


def test_a_thousand_runs_open(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "thousand.html"
    path.write_text(render(Results(thousand(tmp_path), study=STUDY), "Thousand"))
    visit = Visit(browser, path)
    visit.scroll()
    assert visit.page.locator("#runs-table tbody tr").count() == 1000
    assert visit.errors == []


def test_measures_beside_accuracy(browser: Any, tmp_path: Path) -> None:
    """Of the test set, of each class and of each client; what is not known is a dash."""
    known = {"classes": ["cat", "dog"], "macro_f1": 61.234, "auroc": 0.71239}
    run = made_run(tmp_path / "a", changes={"data": {"name": "folder:photos"}}, known=known)
    by_class = {"recall": [75.0, 50.0], "precision": [60.0, 66.66], "f1": [66.66, 57.1], "auroc": [0.7, None]}
    clients = {"0": {"accuracy": 62.5, "balanced_accuracy": 61.0}, "2": {"accuracy": 50.0, "balanced_accuracy": None}}
    measures = {"test": {"per_class": by_class, "confusion": [[3, 1], [2, 2]]}, "clients": clients}
    (run / "measures.json").write_text(json.dumps({**measures, "clients_on": "test samples"}))
    visit = opened(browser, run)
    assert visit.cells("#measures") == [
        ["macro", "F1,", "%", "61.23"],
        ["AUROC", "0.712"],
    ]
    rows = visit.cells("#tested-table")
    assert rows[:2] == [["cat", "75", "25"], ["dog", "50", "50"]]
    assert rows[2:] == [["cat", "75.0", "60.0", "66.7", "0.700"], ["dog", "50.0", "66.7", "57.1", "–"]]
    assert visit.texts("#client-table thead th")[-2:] == ["own test samples, %", "balanced, %"]
    assert [row.split()[-2:] for row in visit.texts("#client-table tbody tr")] == [
        ["62.5", "61"], ["–", "–"], ["50", "–"]
    ]  # fmt: skip
    assert visit.errors == []
