"""`morok dump`: run a script and write every stage of every kernel it compiles into a folder."""

from __future__ import annotations

from argparse import REMAINDER, ArgumentParser, Namespace

NAME = "dump"
HELP = "run a script and write every stage of every kernel into a folder"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("script", help="a Python file")
    parser.add_argument("--out", metavar="FOLDER", default="dump", help="where to write (default: dump)")
    parser.add_argument("arguments", nargs=REMAINDER, help="passed on to the script")


def run(args: Namespace) -> int:
    import runpy
    import sys

    from morok.device.inspect import dump

    before = sys.argv
    sys.argv = [args.script, *args.arguments]
    try:
        with dump(args.out) as found:
            runpy.run_path(args.script, run_name="__main__")
    finally:
        sys.argv = before
    count = len(found.kernels)
    print(f"{count} kernel{'s' if count != 1 else ''} in {found.folder}")
    return 0
