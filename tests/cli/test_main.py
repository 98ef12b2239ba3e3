"""The command line: help, errors, laziness."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from morok import __version__, knobs
from morok.cli import main as cli
from morok.cli.main import COMMANDS, main
from morok.errors import KnobError


def test_no_arguments_gives_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in (*COMMANDS, "examples:", "usage: morok"))


@pytest.mark.parametrize("words", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help_fits_a_terminal(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 0
    assert all(len(line) <= 100 for line in capsys.readouterr().out.splitlines())


def test_commands_are_what_the_table_says() -> None:
    for name, module in COMMANDS.items():
        command = __import__(module, fromlist=["NAME"])
        assert command.NAME == name
        assert command.HELP and "\n" not in command.HELP


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["fly"])
    assert stopped.value.code == 2
    assert "'fly'" in capsys.readouterr().err


def test_errors_of_morok_are_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(args: object) -> int:
        raise KnobError("this knob is stuck")

    stuck = SimpleNamespace(NAME="version", HELP="fails", add_arguments=lambda parser: None, run=fail)
    monkeypatch.setattr(cli, "import_module", lambda name: stuck)
    assert main(["version"]) == 2
    assert capsys.readouterr().err == "morok: this knob is stuck\n"


def test_a_bad_environment_is_one_line() -> None:
    command = [sys.executable, "-m", "morok", "knobs"]
    environment = {**os.environ, "MOROK_BEAM": "wide"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "MOROK_BEAM" in done.stderr


def test_knobs_lists_every_knob(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["knobs"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in knobs.KNOBS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert __version__ in capsys.readouterr().out
