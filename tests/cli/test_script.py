"""`morok dump` and `morok tune` run a script as Python itself would."""

import sys
from pathlib import Path

import pytest

from morok.cli.main import main
from morok.cli.script import run_script


def test_modules_beside_the_script_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "module_beside_the_script.py").write_text("VALUE = 7\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom module_beside_the_script import VALUE\nprint(VALUE, sys.argv[1:], __name__)\n"
    )
    before = list(sys.argv), list(sys.path)
    run_script(str(script), ["--out", "x"])
    assert capsys.readouterr().out == "7 ['--out', 'x'] __main__\n"
    assert (sys.argv, sys.path) == before


@pytest.mark.parametrize("command", ["dump", "tune"])
def test_a_script_that_is_not_there_is_one_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "no/such/script.py"]) == 2
    assert capsys.readouterr().err == "morok: there is no script no/such/script.py\n"
