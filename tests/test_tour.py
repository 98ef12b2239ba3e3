"""The tour is what happens: its blocks run in order and print what it shows; its links lead somewhere.

After a change, `pytest tests/test_tour.py --update-golden` writes what they print now; read the difference.
"""

import contextlib
import io
import linecache
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOUR = ROOT / "docs" / "tour.md"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def played(text: str) -> str:
    """The tour with what its blocks print."""
    pieces: list[str] = []
    end, said = 0, ""
    names: dict[str, object] = {"__name__": "tour"}
    for block in BLOCK.finditer(text):
        pieces.append(text[end : block.start()])
        end = block.end()
        if block.group(1) == "text":
            pieces.append(f"```text\n{said}```")
            said = ""
            continue
        assert not said, f"nothing shows what is printed before line {text.count(chr(10), 0, block.start())}"
        pieces.append(block.group())
        # Empty lines before it, so that lines are those of the page.
        above = "\n" * (text.count("\n", 0, block.start()) + 1)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(above + block.group(2), str(TOUR), "exec"), names)
        said = "\n".join(line.rstrip() for line in out.getvalue().splitlines())
        said += "\n" if said else ""
    assert not said
    return "".join([*pieces, text[end:]])


def test_the_tour_is_what_happens(request: pytest.FixtureRequest) -> None:
    pytest.importorskip("z3")
    text = TOUR.read_text(encoding="utf-8")
    linecache.checkcache(str(TOUR))
    made = played(text)
    if request.config.getoption("--update-golden"):
        TOUR.write_text(played(made), encoding="utf-8")  # again: lines of the page may have moved
        return
    assert made == text, "docs/tour.md differs; --update-golden rewrites it"
