"""The page in a real browser: from lines to assembly and back, keys, themes, sizes, strange text, lists."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from morok.viewer.columns import Column
from morok.viewer.page import read_page, write_page
from tests.viewer import browser
from tests.viewer.recorded import PRODUCT, SOFTMAX, record
from tests.viewer.test_page import NASTY

pytestmark = pytest.mark.skipif(bool(browser.why_not()), reason=browser.why_not() or "there is one")

NORM = """import numpy as np
from morok import Tensor
x = Tensor(np.linspace(-3, 3, 4 * 8 * 10 * 10, dtype=np.float32).reshape(4, 8, 10, 10))
w = Tensor(np.linspace(-1, 1, 8 * 8 * 9, dtype=np.float32).reshape(8, 8, 3, 3))
y = x.conv2d(w, padding=1)
z = y.layer_norm() if hasattr(y, "layer_norm") else (y - y.mean()) / y.std()
z.relu().realize()
"""
PROGRAMS = {"softmax": SOFTMAX, "product": PRODUCT, "norm": NORM}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {name: record(folder, text, name=f"{name}.py") for name, text in PROGRAMS.items()}
    found["nasty"] = record(folder, NASTY.replace("LONG", "x" * 10_000_000), name="nasty.py")
    return found


@pytest.fixture(scope="module")
def started() -> Iterator[Any]:
    with browser.browser() as found:
        yield found


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_from_a_line_to_its_assembly_in_three_clicks_and_back_in_one(
    pages: dict[str, Path], started: Any, name: str
) -> None:
    tab = browser.Tab(started, pages[name])
    index, _ = read_page(pages[name])
    for line in sorted({row["at"][1] for row in index["rows"]}):
        tab.go("page=code")
        tab.page.click(f".line[data-line='{line}']")
        tab.page.click(f".line[data-line='{line}'] + .details a.button >> nth=0")
        tab.page.wait_for_selector(".pane.assembly .coderow.chosen")
        assert tab.page.locator(f".sourcebox .coderow.chosen[data-place$=':{line}']").count() == 1
        row = tab.page.locator(".pane.assembly .coderow.chosen").first.get_attribute("data-assembly")
        # and back: another line is chosen, then this one again
        tab.page.click(".pane.assembly .coderow:not(.chosen) >> nth=0")
        tab.page.click(f".pane.assembly .coderow[data-assembly='{row}']")
        # Rows of long lists are made when they are scrolled to, which a browser says a moment later.
        for chosen in (".sourcebox .coderow.chosen", ".pane.instructions .coderow.chosen"):
            tab.page.wait_for_selector(chosen)
            assert tab.page.locator(chosen).count() == 1
        assert ".py:" in tab.page.inner_text("div.status")
    tab.close()


def test_every_page_and_both_themes(pages: dict[str, Path], started: Any) -> None:
    for theme in ("light", "dark"):
        tab = browser.Tab(started, pages["product"], color_scheme=theme)
        assert tab.page.evaluate("document.documentElement.dataset.theme") == theme
        grounds = {tab.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")}
        for target, text in (
            ("page=code", "What costs most"),
            ("page=kernels", "Roofline"),
            ("kernel=0", "Why this kernel"),
            ("kernel=0&stage=all", "every change"),
            ("kernel=0&stage=14", "devectorise"),
            ("kernel=0&stage=all&removes=THREEFRY", "No change fits"),
            ("kernel=2", "the fastest call"),
            ("kernel=0&view=code", "Instructions"),
            ("page=timeline", "Timeline"),
            ("page=rules", "mathematics"),
            ("page=search", "No search was made"),
            ("page=compare", "Two runs"),
            ("find=nowhere to be found", "Nothing has"),
            ("kernel=99", "There is no kernel 99"),
            ("kernel=0&stage=99", "has no stage 99"),
            ("page=nowhere", "There is no page"),
        ):
            tab.go(target)
            assert text in tab.page.inner_text("main"), target
        tab.page.click("#theme")
        grounds.add(tab.page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
        assert len(grounds) == 2
        tab.close()


def test_keys(pages: dict[str, Path], started: Any) -> None:
    tab = browser.Tab(started, pages["product"])
    press = tab.page.keyboard.press
    press("2")
    tab.page.wait_for_selector("table.kernels")
    tab.go("kernel=0")
    press("j")
    tab.until("location.hash === '#kernel=1'")
    for _ in range(30):  # one that comes before the page is drawn goes from where it was
        press("k")
        tab.page.wait_for_timeout(200)
        if tab.page.evaluate("location.hash === '#kernel=0'"):
            break
    tab.until("location.hash === '#kernel=0'")
    tab.page.wait_for_timeout(150)
    press("s")
    tab.page.wait_for_selector(".changes")
    tab.page.focus(".changes")
    press("ArrowDown")
    press("ArrowDown")
    assert tab.page.locator(".change.chosen").get_attribute("data-row") == "2"  # the first one was chosen
    tab.page.focus("main")
    press("c")
    tab.page.wait_for_selector(".pane.assembly")
    tab.go("kernel=0&stage=8")
    press("]")
    tab.until("location.hash !== '#kernel=0&stage=8'")
    press("?")
    assert tab.page.locator("dialog[open]").count() == 1
    press("Escape")
    assert tab.page.locator("dialog[open]").count() == 0
    press("/")
    tab.page.keyboard.type("a @ b")
    tab.page.wait_for_selector("text=Your lines")
    assert "product.py:5" in tab.page.inner_text("main")
    # lines can be reached and opened without a mouse
    tab.go("page=code")
    tab.page.focus(".line.live")
    press("Enter")
    assert tab.page.locator(".details").count() == 1
    tab.close()


def test_a_line_of_a_long_file_is_reached(tmp_path: Path, started: Any) -> None:
    page = record(tmp_path, SOFTMAX.replace("y = ", "\n" * 5000 + "y = "), name="long.py")
    tab = browser.Tab(started, page)
    assert tab.page.locator(".line").count() < 200
    tab.page.click(".line[data-line='5004']")
    assert tab.page.locator(".line[data-line='5004'] + .details a.button").count() == 1
    tab.close()


def test_strange_text_is_text(pages: dict[str, Path], started: Any) -> None:
    tab = browser.Tab(started, pages["nasty"])
    tab.go("page=code")
    text = tab.page.inner_text(".listing")
    assert "</script><script>document.title" in text and "</style><style>" in text
    assert "⟦202E⟧gnp.exe⟦202C⟧" in text and "hijacked" not in tab.page.title()
    assert tab.page.locator("main script, main style").count() == 0
    assert "10,000,0" in text
    tab.close()


def test_small_and_large(pages: dict[str, Path], started: Any) -> None:
    """A phone, and a window at 200 %: nothing is wider than the window but what scrolls by itself."""
    for width, height, scale in ((390, 800, 3), (650, 450, 2)):
        tab = browser.Tab(started, pages["norm"], width, height, device_scale_factor=scale)
        for target in (
            "page=code",
            "page=kernels",
            "kernel=0",
            "kernel=0&stage=all",
            "kernel=0&view=code",
            "page=timeline",
        ):
            tab.go(target)
            assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (width, target)
        tab.close()


def test_the_figures_are_on_the_page(pages: dict[str, Path], started: Any) -> None:
    index, _ = read_page(pages["product"])
    tab = browser.Tab(started, pages["product"])
    tab.go("page=kernels")
    rows = tab.page.locator("table.kernels tbody tr")
    assert rows.count() == len(index["rows"])
    for i, row in enumerate(sorted(index["rows"], key=lambda r: -r["seconds"])):
        cells = rows.nth(i).locator("td").all_inner_texts()
        assert cells[0] == row["name"] and cells[2] == str(row["calls"])
        rate, width = row["ops"] / row["seconds"] / 1e9, row["bytes"] / row["seconds"] / 1e9
        assert float(cells[5]) == pytest.approx(rate, rel=0.06) and float(cells[6]) == pytest.approx(
            width, rel=0.06
        )
        of_roof = 100 * row["roof"] / row["seconds"]
        assert cells[7] == "<0.1 %" or float(cells[7].rstrip(" %")) == pytest.approx(of_roof, abs=0.51)
    tab.close()


def test_ten_thousand_rewrites_are_a_list_of_a_few_rows(
    tmp_path: Path, pages: dict[str, Path], started: Any
) -> None:
    index, chunks = read_page(pages["softmax"])
    chunk = chunks[index["kernels"][0]["chunk"]]
    for number, data in enumerate(chunks):
        chunks[number] = _columns(data)
    step = next(s for stage in chunk["stages"] for s in stage["steps"] if s.get("rules"))
    many = 10_000 // len(step["rules"]) + 1
    for name in ("rules", "old", "new"):
        step[name] = Column(list(step[name]) * many)
    stage = next(s["number"] for s in chunk["stages"] if step in s["steps"])
    page = write_page(tmp_path / "many.html", index, chunks)
    tab = browser.Tab(started, page)
    tab.go(f"kernel=0&stage={stage}")
    assert tab.page.locator(".change").count() < 80
    tab.page.evaluate("document.querySelector('.changes').scrollTop = 1e9")
    last = f".change[data-row='{len(step['rules']) - 1}']"
    tab.page.wait_for_selector(last)
    assert tab.page.locator(".change").count() < 80
    # a step of scrolling, however far, makes the rows in sight and a few more, and writes little for each
    height = tab.page.evaluate("document.querySelector('.changes').clientHeight")
    for rows, written in tab.page.evaluate(SCROLLED):
        assert rows <= height / 26 + 2 and written <= 2000
    tab.page.fill(".filters input", "no rule is called so")
    tab.page.wait_for_selector("text=No change fits")
    tab.close()


# Jumps through a list; rows that were made and nodes that were written in the frame after each jump.
SCROLLED = """async () => {
  const list = document.querySelector('.changes'), found = [];
  const frame = () => new Promise(requestAnimationFrame);
  for (let n = 0; n < 60; n++) {
    for (let i = 0; i < 3; i++) await frame(); // until what lies around is there
    const before = { ...window.morokWork };
    list.scrollTop = (n * 33331) % list.scrollHeight;
    list.dispatchEvent(new Event('scroll'));
    await frame();
    found.push([window.morokWork.rows - before.rows, window.morokWork.nodes - before.nodes]);
  }
  return found;
}"""


def _columns(data: dict[str, Any]) -> dict[str, Any]:
    graphs = data["graphs"]
    for name in ("kind", "counts", "src"):
        graphs[name] = Column(graphs[name])
    return data


def test_two_runs(pages: dict[str, Path], started: Any) -> None:
    tab = browser.Tab(started, pages["product"])
    tab.go("page=compare")
    tab.page.set_input_files("input[type=file]", str(pages["product"]))
    tab.page.wait_for_selector("table.compare")
    assert tab.page.locator("table.compare tbody tr").count() == 3
    assert all("1.00×" in text for text in tab.texts("table.compare tbody tr"))
    tab.page.set_input_files("input[type=file]", __file__)
    tab.page.wait_for_selector("text=cannot be compared")
    tab.close()
