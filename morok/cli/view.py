"""`morok view`: run a script and write one HTML page about all of it, or put two such pages side by side."""

from __future__ import annotations

import sys
from argparse import REMAINDER, ArgumentParser, Namespace
from pathlib import Path

from morok.cli.script import run_module, run_script
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
    parser.add_argument(
        "-m",
        dest="module",
        nargs=REMAINDER,
        metavar="MODULE ...",
        help="a module instead of a script, as python -m",
    )
    parser.add_argument("script", metavar="SCRIPT", nargs="?", default="", help="a Python file")
    parser.add_argument(
        "arguments", metavar="...", nargs=REMAINDER, help="everything after it is passed on to the script"
    )


def run(args: Namespace) -> int:
    if args.compare:
        before, after = args.compare
        _show(_compare(before, after, args.out, args.title), args.open, args.out)
    else:
        _record(args)
    return 0


def _show(path: Path | None, is_opened: bool, told: str) -> None:
    """Says where the page is, and opens it."""
    assert path is not None
    print(f"{told}: {path.stat().st_size / 1e6:.2f} MB", file=sys.stderr)
    if is_opened:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())


def _record(args: Namespace) -> None:
    from morok.viewer.view import Run, view

    name, *arguments = args.module or [args.script, *args.arguments]
    if not name:
        raise ArgumentError("there is no script to run; `morok view script.py`, or --compare with two pages")
    if not args.module and not Path(name).is_file():
        raise MorokError(f"there is no script {name}")
    title = args.title or (name if args.module else Path(name).name)
    run: Run | None = None
    try:
        with view(args.out, title=title, trace=args.trace, paths=not args.no_paths, prove=args.prove) as run:
            (run_module if args.module else run_script)(name, arguments)
    except BaseException as error:
        if run is not None and run.path is not None:
            told = "morok: the error is on the page " if run.errors else ""
            _show(run.path, args.open, f"{told}{args.out}")
        if not isinstance(error, SystemExit) or error.code not in (None, 0):
            raise
    else:
        _show(run.path, args.open, args.out)


def _compare(before: str, after: str, out: str, title: str) -> Path:
    from morok.viewer.page import read_packed, write_page

    old, _ = read_packed(before)
    index, chunks = read_packed(after)
    index["title"] = title or index["title"]
    return write_page(out, index, chunks, other=old)
