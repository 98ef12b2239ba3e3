"""Running somebody's script inside a command, as `python script.py arguments` would."""

from __future__ import annotations

import os
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
        runpy.run_path(str(path.absolute()), run_name="__main__")
    finally:
        sys.argv, sys.path = arguments_before, path_before


def run_module(module: str, arguments: Sequence[str]) -> None:
    """Runs it as `python -m module arguments` would: it is found from the working folder."""
    import runpy

    arguments_before, path_before = sys.argv, sys.path
    sys.argv = [module, *arguments]
    sys.path = [os.getcwd(), *sys.path]
    try:
        if not _is_module(module):
            raise MorokError(f"there is no module {module} to run, from {os.getcwd()} or installed")
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        sys.argv, sys.path = arguments_before, path_before


def _is_module(name: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # a package above it is missing, or has no such thing
        return False
