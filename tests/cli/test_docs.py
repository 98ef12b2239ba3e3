"""Generated pages are what the code says now."""

from pathlib import Path

import pytest

from morok.cli.docs import pages
from morok.cli.main import main

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["ops.md", "stages.md"])
def test_a_page_is_current(name: str) -> None:
    current = (DOCS / name).read_text(encoding="utf-8")
    assert current == pages()[name], f"docs/{name} is out of date; write it again with `python -m morok docs`"


def test_every_page_is_tested() -> None:
    assert set(pages()) == {"ops.md", "stages.md"}


def test_check_fails_on_an_old_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "--into", str(tmp_path)]) == 0
    assert main(["docs", "--into", str(tmp_path), "--check"]) == 0
    (tmp_path / "stages.md").write_text("old")
    assert main(["docs", "--into", str(tmp_path), "--check"]) == 2
    assert "stages.md is out of date" in capsys.readouterr().err
