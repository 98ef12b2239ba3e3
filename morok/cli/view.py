"""`morok view`: run a script and write one HTML page about all of it, or put two such pages side by side."""

from __future__ import annotations

import sys
from argparse import REMAINDER, ArgumentParser, Namespace
from pathlib import Path

from morok.cli.script import run_script
from morok.errors import ArgumentError, MorokError

NAME = "view"
HELP = "run a script and write a page about it: your lines, kernels, every rewrite, assembly, roofline"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--out", metavar="FILE", default="run.html", help="the page (default: run.html)"
    )
    parser.add_argument("--open", action="store_true", help="open it in the browser afterwards")
    parser.add_argument(
        "--trace", metavar="FILE", default="", help="also write the timeline there, for Perfetto"
    )
    parser.add_argument(
        "--prove", action="store_true", help="prove all accesses and rules, however long it takes"
    )
    parser.add_argument("--no-paths", action="store_true", help="call files by their names, without folders")
    parser.add_argument("--title", default="", help="what the page is called (default: the script's name)")
    parser.add_argument(
        "--compare", nargs=2, metavar=("BEFORE", "AFTER"), help="no script: write two pages of before as one"
    )
    parser.add_argument("script", metavar="SCRIPT", nargs="?", default="", help="a Python file")
    parser.add_argument(
        "arguments", metavar="...", nargs=REMAINDER, help="everything after it is passed on to the script"
    )


def run(args: Namespace) -> int:
    if args.compare:
        before, after = args.compare
        path = _compare(before, after, args.out, args.title)
    else:
        path = _record(args)
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB", file=sys.stderr)
    if args.open:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
    return 0


def _record(args: Namespace) -> Path:
    from morok.viewer.view import view

    if not args.script:
        raise ArgumentError("there is no script to run; `morok view script.py`, or --compare with two pages")
    if not Path(args.script).is_file():
        raise MorokError(f"there is no script {args.script}")
    title = args.title or Path(args.script).name
    path = Path(args.out)
    try:
        with view(path, title=title, trace=args.trace, paths=not args.no_paths, prove=args.prove):
            run_script(args.script, args.arguments)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    except MorokError:
        print(f"morok: the error is on the page {path}", file=sys.stderr)
        raise
    return path


def _compare(before: str, after: str, out: str, title: str) -> Path:
    from morok.viewer.page import read_page, write_page

    old, _ = read_page(before)
    index, chunks = read_page(after)
    index["title"] = title or index["title"]
    return write_page(out, index, chunks, other=old)
