"""`morok version`: what to put into a bug report."""

from __future__ import annotations

import platform
from argparse import ArgumentParser, Namespace
from importlib.metadata import PackageNotFoundError, version

from morok import __version__

NAME = "version"
HELP = "print the versions of morok, Python and what they stand on"

_PACKAGES = ("numpy", "ml_dtypes", "llvmlite", "z3-solver", "cuda-core")


def add_arguments(parser: ArgumentParser) -> None:
    """It takes none."""


def run(args: Namespace) -> int:
    print(f"morok      {__version__}")
    print(f"Python     {platform.python_version()} on {platform.system()} {platform.machine()}")
    for package in _PACKAGES:
        print(f"{package:<10} {_version(package)}")
    return 0


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
