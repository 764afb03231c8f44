"""The audit's page in a real browser: decisions by key and mouse, reloads, filters, phones, 50,000 images."""

from __future__ import annotations

import csv
import time
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from browsing import CHROMIUM, Opened
from conftest import fednoil
from made_audit import CLASSES, ITEMS, hostile_page, made_audit
from PIL import Image

from fednoil.audit.page import write_page

COLUMNS = ("given", "suggested", "p_wrong")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here; apt-get install chromium")


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_page(tmp_path_factory.mktemp("audit"))


class Page(Opened):
    """The audit's page, ready."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        super().__init__(browser, path, **options)
        self.ready()

    def ready(self) -> None:
        """Wait until all pictures are drawn, by polling: the page's policy forbids a waiting script."""
        drawn = (
            "document.querySelectorAll('.tile canvas').length ==="
            " document.querySelectorAll('.tile canvas[data-ready]').length && !!document.querySelector('.tile')"
        )
        end = time.monotonic() + 30
        while not self.page.evaluate(drawn):
            assert time.monotonic() < end, "the page's pictures are not drawn"
            self.page.wait_for_timeout(20)

    def reload(self) -> None:
        """Load the page again. A browser whose storage process dies loses what anyone wrote, not our page alone."""
        mark = "localStorage.getItem('written by the test')"
        self.page.evaluate("try { localStorage.setItem('written by the test', 'yes') } catch {}")
        written = self.page.evaluate(mark)
        self.page.reload()
        self.ready()
        if self.page.evaluate(mark) != written:
            pytest.skip("the browser lost its storage, a key of the test's own included")

    def keys(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def states(self, count: int = 6) -> list[str]:
        return self.page.evaluate("[...document.querySelectorAll('.tile')].map(t => t.dataset.state)")[:count]

    def shown(self) -> list[int]:
        """Index in the data of each image on the page."""
        return self.page.evaluate("Gallery.onPage().map(i => Decisions.data.index[i])")

    def export(self, path: Path) -> list[dict[str, str]]:
        with self.page.expect_download() as download:
            self.page.click("#export")
        download.value.save_as(path)
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))


@needs_browser
def test_keys_decide_and_a_reload_keeps(browser: Any, page_file: Path, tmp_path: Path) -> None:
    visit = Page(browser, page_file)
    page = visit.page
    page.locator(".tile").first.focus()
    visit.keys("a", "r", "d", "c")
    page.keyboard.type("DÖ")
    visit.keys("Enter", "a", "u", "a", "ArrowRight", "a", "ArrowLeft", "x")
    wanted = ["accept", "reject", "drop", "change", "accept", "", ""]
    assert visit.states(7) == wanted
    assert "5 of 101 flagged decided: 2 accepted, 1 kept, 1 changed, 1 dropped" in page.inner_text("#progress-text")
    assert "not decided" in page.inner_text("#live")
    visit.keys("n")
    visit.reload()
    assert (page.input_value("#page"), page.inner_text("#saved")) == ("2", "saved in this browser")
    visit.keys("p")
    assert visit.states(7) == wanted
    visit.keys("Control+z")  # nothing to take back after a reload: it must not lose anything
    assert visit.states(7) == wanted
    lines = visit.export(tmp_path / "d.csv")
    assert [(line["index"], line["decision"], line["label"]) for line in lines] == [
        ("0", "accept", "dög"),
        ("1", "reject", "dög"),
        ("2", "drop", ""),
        ("3", "change", "dög"),
        ("4", "accept", CLASSES[2]),
    ]
    assert [line["client"] for line in lines] == ["0", "2", "10", "0", "2"]
    assert lines[3]["item"] == f"'{ITEMS[3]}3"  # no spreadsheet runs it
    assert lines[3]["given"] == f"'{CLASSES[3]}"
    assert visit.errors == []
    assert len(visit.requests) <= 4, visit.requests  # the file and its empty icon, twice
    assert not [url for url in visit.requests if not url.startswith(("file:", "data:", "blob:"))]


@needs_browser
def test_the_mouse_decides_and_takes_back(browser: Any, page_file: Path) -> None:
    visit = Page(browser, page_file)
    page, tile = visit.page, visit.page.locator(".tile").nth(1)
    for kind in ("accept", "reject", "drop"):
        tile.locator(f"[data-do={kind}]").click()
        assert visit.states(3) == ["", kind, ""]
    tile.locator("[data-do=drop]").click()
    assert visit.states(3) == ["", "", ""]
    tile.locator("[data-do=change]").click()
    page.select_option("#change-list", label=CLASSES[0])
    page.click("#change-take")
    assert visit.states(3) == ["", "change", ""]
    assert tile.locator(".outcome").inner_text() == "changed to cat"
    page.click("#accept-page")
    assert visit.states(3) == ["accept", "change", "accept"]
    page.click("#undo")
    assert visit.states(3) == ["", "change", ""]
    for _ in range(5):
        page.click("#undo")
    assert visit.states(3) == ["", "", ""]
    assert page.is_disabled("#undo")
    assert page.is_disabled("#export")
    assert visit.errors == []


@needs_browser
def test_import_gives_exported_decisions_back(browser: Any, page_file: Path, tmp_path: Path) -> None:
    first = Page(browser, page_file)
    first.page.locator(".tile").first.focus()
    first.keys("a", "r", "d", "c")
    first.page.keyboard.type("cat")
    first.keys("Enter", "Shift+R")
    exported = first.export(tmp_path / "a.csv")
    assert len(exported) == 60
    second = Page(browser, page_file)  # another context: nothing is stored there
    assert set(second.states(60)) == {""}
    second.page.set_input_files("#file", tmp_path / "a.csv")
    second.wait_for("#alert:has-text('60 decisions read')", 1)
    assert second.states(60) == first.states(60)
    assert second.export(tmp_path / "b.csv") == exported
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    (tmp_path / "c.csv").write_text("client,item,index,given,decision,label\n0,other.png,7,cat,accept,cat\n")
    second.page.set_input_files("#file", tmp_path / "c.csv")
    second.wait_for("#alert:has-text('1 line not of this audit')", 1)
    (tmp_path / "d.csv").write_text("a;b\n1;2\n")
    second.page.set_input_files("#file", tmp_path / "d.csv")
    second.wait_for("#alert:has-text('no column client')", 1)
    head, one, *rest = (tmp_path / "a.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "e.csv").write_text("".join([head, one, '0,a"b.png,7,cat,accept,cat\n', *rest]), encoding="utf-8")
    third = Page(browser, page_file)
    third.page.set_input_files("#file", tmp_path / "e.csv")
    third.wait_for("#alert:has-text('Nothing was read')", 1)  # and not the lines up to there alone
    assert set(third.states(60)) == {""}
    assert second.states(60) == first.states(60)
    assert second.errors == []


@needs_browser
def test_filter_and_sort(browser: Any, page_file: Path) -> None:
    visit = Page(browser, page_file)
    page = visit.page
    assert visit.shown() == list(range(60))  # the most suspicious first
    assert page.inner_text("#filtered") == "(flagged images)"
    visit.wait_for("#count:has-text('101 of 200 images')", 1)
    page.locator("#filters summary").click()
    page.select_option("#flagged", "all")
    page.select_option("#sort", "least")
    assert visit.shown()[:3] == [199, 198, 197]
    page.select_option("#per", "240")
    for by in ("given", "suggested"):
        page.select_option("#sort", by)
        names = visit.texts(f".tile .{by}")
        assert (len(names), len([*groupby(names)])) == (200, 4)
    page.select_option("#sort", "client")
    assert [name for name, _ in groupby(i % 3 for i in visit.shown())] == [0, 1, 2]  # clients 0, 2, 10 in this order
    page.select_option("#sort", "item")
    assert [i for i in visit.shown() if i % 5 == 0] == list(range(0, 200, 5))  # a.png5 before a.png10
    page.select_option("#given", label="dög")
    page.select_option("#client", label="2")
    assert sorted(visit.shown()) == [i for i in range(200) if i % 4 == 1 and i % 3 == 1]
    assert set(visit.texts(".tile .given")) == {"dög"}
    page.fill("#from", "50")
    visit.wait_for("#count:has-text('9 of 200 images')", 1)
    assert max(visit.shown()) <= 100
    page.fill("#name", "HYPERLINK")
    visit.wait_for("#count:has-text('2 of 200 images')", 1)
    page.fill("#name", "no such name")
    visit.wait_for("#nothing:visible", 1)
    visit.keys("Escape")
    page.click("#reset")
    page.locator(".tile").first.focus()
    visit.keys("a", "r")
    page.select_option("#state", "undecided")
    assert visit.shown()[0] == 2
    page.select_option("#state", "reject")
    assert visit.shown() == [1]
    page.click("#reset")
    assert page.locator("#clients [aria-selected]").count() == 0  # nothing is highlighted that isn't filtered by
    assert page.locator("#matrix > *").count() == 0
    page.locator("#clients tbody tr").nth(1).press("Enter")
    assert [i % 3 for i in visit.shown()] == [1] * 34  # the flagged ones
    assert page.locator("#clients [aria-selected]").count() == 1
    page.locator("#clients tbody tr").nth(0).click()
    assert [i % 3 for i in visit.shown()] == [0] * 34
    page.locator("#matrix .pairs button").first.click()
    assert {(t, s) for t, s in zip(visit.texts(".given"), visit.texts(".suggested"), strict=True)} == {("cat", "dög")}
    assert visit.errors == []


@needs_browser
def test_a_full_storage_is_reported_and_nothing_is_lost(browser: Any, page_file: Path, tmp_path: Path) -> None:
    visit = Page(browser, page_file)
    page = visit.page
    page.evaluate("""() => { window.kept = Storage.prototype.setItem;  // as a browser does at its limit
      Storage.prototype.setItem = () => { throw new DOMException("exceeded the quota", "QuotaExceededError"); } }""")
    page.locator(".tile").first.focus()
    visit.keys("a", "a")
    assert "export them before you close" in page.inner_text("#alert")
    assert len(visit.export(tmp_path / "d.csv")) == 2
    page.evaluate("() => { Storage.prototype.setItem = window.kept; }")
    visit.keys("r")
    assert page.is_hidden("#alert")
    visit.reload()
    assert visit.states(4) == ["accept", "accept", "reject", ""]
    page.evaluate("localStorage.setItem(Object.keys(localStorage).find(k => k.endsWith('/0')), '{damaged')")
    visit.reload()
    assert visit.states(2) == ["", ""]
    assert visit.errors == []


@needs_browser
def test_the_first_key_selects_and_nothing_unseen_is_decided(browser: Any, page_file: Path) -> None:
    visit = Page(browser, page_file)
    page = visit.page
    assert page.locator(".tile.current").count() == 0
    visit.keys("ArrowRight")
    assert page.evaluate("[...Gallery.tiles()].indexOf(document.activeElement)") == 0
    visit.keys("ArrowRight")
    assert page.evaluate("[...Gallery.tiles()].indexOf(document.activeElement)") == 1
    visit.reload()
    visit.keys("a")
    assert visit.states(2) == ["", ""]
    visit.keys("a")
    assert visit.states(2) == ["accept", ""]


@needs_browser
def test_images_are_in_the_first_window_and_precision_is_counted(browser: Any, page_file: Path) -> None:
    visit = Page(browser, page_file, viewport={"width": 1280, "height": 720})
    page = visit.page
    assert page.inner_text("#progress-text") == "0 of 101 flagged decided"
    second_row = page.evaluate("Gallery.tiles()[Gallery.columns()].getBoundingClientRect().top")
    assert second_row < 720
    visit.keys("ArrowRight", "a", "r", "a", "d")
    assert page.inner_text("#precision") == "2 of 3 flags were correct (67 %)"


@needs_browser
def test_a_picture_opens_beside_trusted_examples(browser: Any, tmp_path: Path) -> None:
    table, summary, images = made_audit(40, ["a", "b", "c"], ["x"], lambda i: f"{i}.png")
    right = pa.array(
        [s if w > 0.5 else g for g, s, w in zip(*(table.column(n).to_pylist() for n in COLUMNS), strict=True)]
    )
    table = table.set_column(4, "suggested", right)

    def large(i: int) -> np.ndarray:
        return np.full((700, 350, 3), (i, 0, 0), np.uint8)

    visit = Page(
        browser, write_page(tmp_path, table, {**summary, "source": "folder:my photos"}, images, originals=large)
    )
    page = visit.page
    page.locator(".tile .picture").nth(1).click()
    size = page.locator("#viewer-picture img").evaluate(
        "async img => { await img.decode(); return [img.naturalWidth, img.naturalHeight]; }"
    )
    assert size == [256, 512]
    assert page.locator("#viewer-examples figcaption").all_inner_texts() == [
        "trusted, as given: b",
        "trusted, as suggested: c",
    ]
    trusted = page.locator("#viewer-examples img").evaluate_all("all => all.map(img => img.title)")
    assert trusted == ["37.png", "34.png", "38.png", "35.png"]  # the least suspicious of b and of c
    visit.keys("a", "r")
    assert visit.states(4) == ["", "accept", "reject", ""]
    assert "3.png: given a" in page.inner_text("#viewer-title")
    visit.keys("ArrowLeft", "Escape")
    page.locator("#viewer").wait_for(state="hidden")
    visit.wait_for(".tile:nth-child(3):focus", 1)  # a dialog reports that it was closed a moment later
    visit.keys("Enter")
    page.click("#viewer [data-do=drop]")
    assert visit.states(4) == ["", "accept", "drop", ""]
    visit.keys("Escape")
    visit.wait_for(".tile:nth-child(3):focus", 1)
    page.click("#apply-open")
    found = page.inner_text("#command")
    audit = page.evaluate("Decisions.data.id")
    assert (
        found
        == f"fednoil relabel --data 'folder:my photos' --decisions decisions-{audit}.csv --out 'my photos-relabelled'"
    )
    page.click("#copy")
    visit.wait_for("#copied:text-is('copied')", 1)
    assert visit.errors == []


@needs_browser
def test_two_windows_agree(browser: Any, page_file: Path) -> None:
    visit = Page(browser, page_file)
    other = visit.context.new_page()
    other.goto(page_file.as_uri())
    other.locator(".tile").first.focus()
    other.keyboard.press("d")
    visit.wait_for(".tile[data-state=drop]", 1)
    visit.page.locator(".tile").nth(1).focus()
    visit.keys("a")
    other.wait_for_selector(".tile[data-state=accept]")
    assert "2 of 101 flagged decided" in other.inner_text("#progress-text")


@needs_browser
def test_it_can_be_used_without_seeing_or_pointing(browser: Any, page_file: Path) -> None:
    visit = Page(browser, page_file)
    page = visit.page
    assert page.locator("#gallery > li").first.get_attribute("aria-label").startswith("train/a.png0: given cat")
    assert page.locator("canvas:not([aria-label])").count() == 0
    assert page.locator("button:not([title]):not(dialog button):not([aria-label])").count() == 0
    assert page.locator("#gallery [tabindex='0']").count() == 5  # one image and its four buttons
    page.locator("#reject-page").focus()
    visit.keys("Tab", "Tab", "Enter")  # past the image to its first button
    assert visit.states(2) == ["accept", ""]
    visit.keys("u")
    page.locator(".tile").first.focus()
    columns = page.evaluate("Gallery.columns()")
    visit.keys("ArrowDown", "ArrowRight", "End", "Home", "ArrowDown")
    assert page.evaluate("[...Gallery.tiles()].indexOf(document.activeElement)") == columns
    visit.keys("?")
    assert page.locator("#help").is_visible()
    visit.keys("a")  # no decision behind the dialog
    visit.keys("Escape")
    assert page.locator("#help").is_hidden()
    assert page.inner_text("#progress-text") == "0 of 101 flagged decided"
    page.locator("#filters summary").click()
    page.focus("#name")
    page.keyboard.type("a")
    assert page.inner_text("#progress-text") == "0 of 101 flagged decided"


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_on_a_phone(browser: Any, page_file: Path, scheme: str) -> None:
    visit = Page(browser, page_file, color_scheme=scheme, viewport={"width": 360, "height": 740}, is_mobile=True)
    shade = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(n) for n in shade.strip("rgb()").split(",")) > 400) == (scheme == "light")
    visit.page.evaluate("document.getElementById('found').open = true")
    assert visit.page.evaluate("document.documentElement.scrollWidth") == 360
    assert visit.page.evaluate("Gallery.columns()") == 2
    assert visit.errors == []


@needs_browser
def test_fifty_thousand_images_stay_at_hand(browser: Any, tmp_path: Path) -> None:
    """A page of 50,000 opens, sorts and turns in bounded memory."""
    path = write_page(tmp_path, *made_audit(50_000, ["a", "b", "c"], [str(k) for k in range(20)], side=32))
    assert path.stat().st_size < 60e6
    visit = Page(browser, path)
    page = visit.page
    page.evaluate("document.getElementById('sort').value = 'client'; document.getElementById('sort').onchange()")
    visit.ready()
    page.evaluate("for (let page = 0; page < 42; page++) Gallery.turn(page)")  # pictures of all 500 sheets
    assert page.evaluate("[Gallery.kept(), Gallery.room]") == [245, 245]
    page.locator(".tile").first.focus()
    visit.keys("Shift+A", "u", "a")
    assert "1 of 25,003 flagged decided" in page.inner_text("#progress-text")
    assert visit.errors == []


@needs_browser
def test_from_the_page_to_relabelled_pictures(browser: Any, tmp_path: Path) -> None:
    names = ["=1+1", "cat", "<b>"]
    paths = [f"train/{names[i % 3]}/{i}.png" for i in range(9)]
    for i, name in enumerate([*paths, *(p.replace("train", "test") for p in paths)]):
        file = tmp_path / "photos" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), i, np.uint8)).save(file)
    visit = Page(browser, write_page(tmp_path, *made_audit(9, names, [None], lambda i: paths[i])))
    visit.page.locator(".tile").first.focus()
    visit.keys("a", "r", "d")
    visit.export(tmp_path / "d.csv")
    args = ("--data", f"folder:{tmp_path}/photos", "--decisions", tmp_path / "d.csv", "--out", tmp_path / "fixed")
    status, out, err = fednoil("relabel", *args)
    assert status == 0, err
    assert "1 changed, 1 kept, 1 dropped, 15 not decided" in out
    assert (tmp_path / "fixed/train/cat/0.png").is_file()
    assert len(list((tmp_path / "fixed/train").rglob("*.png"))) == 8


@needs_browser
def test_an_audit_without_samples_is_a_page_too(browser: Any, tmp_path: Path) -> None:
    table, summary, images = made_audit(4, ["a", "b"], ["x"])
    visit = Opened(browser, write_page(tmp_path, table.slice(0, 0), {**summary, "clients": [], "overall": {}}, images))
    visit.wait_for("#nothing:visible", 1)
    visit.page.keyboard.press("a")
    assert visit.page.inner_text("#progress-text") == "0 of 0 decided"
    assert visit.errors == []


@needs_browser
def test_a_label_that_seems_right_stays_when_accepted(browser: Any, tmp_path: Path) -> None:
    table, summary, images = made_audit(4, ["a", "b"], ["x"])
    table = table.set_column(4, "suggested", table.column("given"))
    visit = Page(browser, write_page(tmp_path, table, summary, images))
    assert visit.texts(".names") == ["a seems right", "b seems right", "a seems right"]  # the flagged ones
    visit.page.locator(".tile").first.focus()
    visit.keys("a")
    assert visit.export(tmp_path / "d.csv") == [
        {"client": "x", "item": "0", "index": "0", "given": "a", "decision": "accept", "label": "a"}
    ]
