"""`morok docs`: write the pages that are generated from tables in the code."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from morok.errors import MorokError

NAME = "docs"
HELP = "write the documentation that is generated from the code (docs/ops.md)"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--into", type=Path, default=Path("docs"), help="the folder to write to (default: docs)"
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is out of date")


def run(args: Namespace) -> int:
    from morok.ir.document import ops_page

    path: Path = args.into / "ops.md"
    page = ops_page()
    if args.check:
        current = path.read_text(encoding="utf-8") if path.exists() else ""
        if current != page:
            raise MorokError(f"{path} is out of date; write it with `python -m morok docs`")
        return 0
    args.into.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    print(f"wrote {path}")
    return 0
