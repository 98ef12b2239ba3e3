"""`morok dump`: run a script and write every stage of every kernel it compiles into a folder."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from morok.cli.script import add_script, run_script

NAME = "dump"
HELP = "run a script and write every stage of every kernel into a folder"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--out", metavar="FOLDER", default="dump", help="where to write (default: dump)")
    add_script(parser)


def run(args: Namespace) -> int:
    from morok.device.dump import dump

    with dump(args.out) as found:
        run_script(args.script, args.arguments)
    count = len(found.kernels)
    print(f"{count} kernel{'s' if count != 1 else ''} in {found.folder}")
    return 0
