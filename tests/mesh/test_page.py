"""The examples of docs/mesh.md run as they stand."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "mesh.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_examples(number: int, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[number], f"mesh.md:{number}", "exec"), {"__name__": "page"})
