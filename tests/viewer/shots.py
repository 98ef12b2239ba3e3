"""Pictures of every view of a page, for people to look at: both themes, a wide window, 200 % and a phone.

    python -m tests.viewer.shots run.html [run.html ...] -o shots

Each is called after its page, view, size and theme. Needs what the tests in a browser need.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from morok.viewer.page import read_page
from tests.viewer import browser

# width and height in pixels of the page, and device pixels for each; a window of 1300 at 200 % is 650 wide
SIZES = {"wide": (1300, 900, 1), "zoom": (650, 450, 2), "phone": (390, 800, 2)}
PAGES = ("code", "kernels", "timeline", "rules", "search", "compare")


def views(index: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and addresses of what a page can show: of kernels those of the one that takes longest."""
    for page in (*PAGES, *(["errors"] if index["errors"] else [])):
        yield page, f"page={page}"
    yield "find", "find=x"
    yield "nothing", "find=nothing is called so"
    made = [row for row in index["rows"] if row["at"]]
    if made:
        file, line = made[0]["at"]
        yield "line", f"file={file}&line={line}"
    chunked = [k["number"] for k in index["kernels"] if k["chunk"] >= 0]
    if chunked:
        longest = next((row["kernel"] for row in index["rows"] if row["kernel"] in chunked), chunked[0])
        for name, rest in (("overview", ""), ("all", "&stage=all"), ("stage", "&stage=8")):
            yield f"kernel-{name}", f"kernel={longest}{rest}"
        yield "kernel-assembly", f"kernel={longest}&view=code"


def pictures(started: Any, path: Path, folder: Path) -> list[str]:
    """Writes them; returns what a page complained about or what is wider than its window."""
    index, _ = read_page(path)
    wrong = []
    for size, (width, height, scale) in SIZES.items():
        for theme in ("light", "dark"):
            tab = browser.Tab(started, path, width, height, device_scale_factor=scale, color_scheme=theme)
            tab.page.click(".hint button")
            for name, target in views(index):
                tab.go(target)
                if name == "kernel-stage":
                    tab.page.click("details.graphs > summary")
                    tab.page.wait_for_timeout(200)
                tab.page.screenshot(
                    path=folder / f"{path.stem}-{name}-{size}-{theme}.png", full_page=True, timeout=180_000
                )
                if not tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth"):
                    wrong.append(f"{path.name} {target} is wider than {width}")
            wrong += [f"{path.name}: {text}" for text in tab.complaints]
            tab.close()
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("-o", "--out", type=Path, default=Path("shots"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with browser.browser() as started:
        wrong = [text for page in options.pages for text in pictures(started, page, options.out)]
    print("\n".join(wrong) or "nothing is wider than its window, no complaints")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
