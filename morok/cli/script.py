"""Running somebody's script inside a command, as `python script.py arguments` would."""

from __future__ import annotations

import sys
from argparse import REMAINDER, ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from morok.errors import MorokError


def add_script(parser: ArgumentParser, optional: bool = False) -> None:
    """The script and what is passed on to it; the command's own options come before them."""
    parser.add_argument("script", metavar="SCRIPT", nargs="?" if optional else None, help="a Python file")
    parser.add_argument(
        "arguments", metavar="...", nargs=REMAINDER, help="everything after it is passed on to the script"
    )


def run_script(script: str, arguments: Sequence[str]) -> None:
    """Runs it as the main program: with its own arguments, its folder first among those of modules."""
    import runpy

    path = Path(script)
    if not path.is_file():
        raise MorokError(f"there is no script {script}")
    arguments_before, path_before = sys.argv, sys.path
    sys.argv = [script, *arguments]
    sys.path = [str(path.resolve().parent), *sys.path]
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv, sys.path = arguments_before, path_before
