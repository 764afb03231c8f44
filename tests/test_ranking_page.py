"""The ranking's page in a real browser: tables sort, filters work, a click draws a curve, light, dark, on a phone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import CHROMIUM, Opened

from fednoil.bench import pages
from fednoil.bench.ranking import RunFigures, ranking
from fednoil.bench.settings import DEFAULT_METHODS, settings_of

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here; apt-get install chromium")
SETTINGS = list(settings_of("paper"))


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All methods and settings in three seeds: the later a method in the list, the better; the last lacks a run."""
    rng, runs, curves = np.random.default_rng(0), {}, {}
    for place, method in enumerate(DEFAULT_METHODS):
        for setting in SETTINGS:
            for seed in range(3):
                mean = 60 + place + rng.normal(0, 0.1)
                runs[method, setting, seed] = RunFigures(mean, mean, mean + 1, mean - 1, 76_500, 10**8, 12.0)
            curves[method, setting] = (60 + place - 20 * np.exp(-np.arange(100) / 20)).tolist()
    del runs[DEFAULT_METHODS[-1], SETTINGS[0], 0]
    path = tmp_path_factory.mktemp("ranking") / "ranking.html"
    path.write_text(pages.html(ranking(runs, DEFAULT_METHODS, SETTINGS, {}), SETTINGS, "", "runs.html", curves))
    return path


def test_the_page_answers_and_sorts(browser: Any, page_file: Path) -> None:
    visit = Opened(browser, page_file)
    best, without = DEFAULT_METHODS[-2], DEFAULT_METHODS[-1]
    assert visit.texts("header strong")[0].startswith(f"{best} has the best mean rank (1.00 ± 0.00)")
    first = "section:first-of-type"
    assert visit.texts(f"{first} tbody th") == [*DEFAULT_METHODS[-2::-1], without]
    visit.page.locator(f"{first} thead th", has_text="last round").click()
    assert visit.texts(f"{first} tbody th")[0] == without
    visit.page.locator(f"{first} thead th", has_text="mean rank").press("Enter")
    assert visit.texts(f"{first} tbody th")[0] == DEFAULT_METHODS[0]  # the largest rank first
    visit.page.locator(f"{first} thead th", has_text="mean rank").press("Enter")
    assert visit.texts(f"{first} tbody th")[0] == best
    assert visit.errors == []
    assert visit.requests == [page_file.as_uri()]


def test_filters(browser: Any, page_file: Path) -> None:
    visit = Opened(browser, page_file)
    visit.page.fill("#filter", "fednoil")
    assert visit.texts("#accuracies tbody tr:visible th") == ["fednoil", "fednoil-plus"]
    visit.page.select_option("#part", "two-level")
    assert visit.texts("#accuracies thead th:visible") == ["method", "iid/two-level", "non-iid/two-level"]
    visit.page.select_option("#part", "iid")
    assert len(visit.texts("#accuracies thead th:visible")) == 7
    visit.page.fill("#filter", "")
    assert len(visit.texts("#accuracies tbody tr:visible")) == len(DEFAULT_METHODS)


def test_a_click_draws_a_curve(browser: Any, page_file: Path) -> None:
    visit = Opened(browser, page_file)
    cell = visit.page.locator("#accuracies tr[data-method='fedcorr'] td").nth(2)
    assert not visit.page.locator("#curves").is_visible()
    cell.click()
    visit.page.locator("#accuracies tr[data-method='elr'] td").nth(0).press("Enter")
    assert visit.page.locator("#chart canvas").count() == 1
    labels = visit.texts("#chart .u-legend .u-label")
    assert labels == ["%", "fedcorr, iid/pair-high", "elr, iid/symmetric-low"]
    assert cell.get_attribute("aria-pressed") == "true"
    cell.click()
    assert visit.texts("#chart .u-legend .u-label")[1:] == ["elr, iid/symmetric-low"]
    visit.page.click("#clear")
    assert not visit.page.locator("#curves").is_visible()
    assert visit.errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_dark_and_phone(browser: Any, page_file: Path, scheme: str) -> None:
    visit = Opened(browser, page_file, color_scheme=scheme, viewport={"width": 390, "height": 800})
    visit.page.locator("#accuracies tbody td").first.click()
    body = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (body == "rgb(255, 255, 255)") == (scheme == "light")
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert visit.page.locator("#chart canvas").bounding_box()["width"] <= 390
    assert visit.errors == []
