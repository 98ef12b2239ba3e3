"""`morok docs`: write the pages that are generated from tables in the code."""

from __future__ import annotations

import importlib.util
from argparse import ArgumentParser, Namespace
from pathlib import Path

from morok.errors import MorokError

NAME = "docs"
HELP = "write the documentation that is generated from the code (api, ops, stages, the picture)"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--into",
        type=Path,
        metavar="FOLDER",
        default=Path("docs"),
        help="the folder to write to (default: docs)",
    )
    parser.add_argument(
        "--site",
        type=Path,
        metavar="FOLDER",
        help="copy all pages to a folder that mkdocs builds a site from",
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is out of date")


def run(args: Namespace) -> int:
    if args.site is not None:
        from morok.cli.site import write_site

        write_site(Path.cwd(), args.site)
        return 0
    if not args.check:
        args.into.mkdir(parents=True, exist_ok=True)
    for name, page in pages().items():
        path: Path = args.into / name
        current = path.read_text(encoding="utf-8") if path.exists() else ""
        if args.check and current != page:
            raise MorokError(f"{path} is out of date; write it with `python -m morok docs`")
        if not args.check:
            path.write_text(page, encoding="utf-8")
            print(f"wrote {path}")
    return 0


def pages() -> dict[str, str]:
    """Every generated page by its file name."""
    from morok.cli.api_page import api_page
    from morok.cli.pipeline_picture import pipeline_picture
    from morok.ir.document import ops_page

    found = {
        "api.md": api_page(),
        "ops.md": ops_page(),
        "stages.md": stages_page(),
        "pipeline.svg": pipeline_picture(),
    }
    if importlib.util.find_spec("onnx") is not None:  # the page lists what its package has bodies for
        from morok.onnx.document import onnx_page

        found["onnx.md"] = onnx_page()
    return found


def stages_page() -> str:
    """The tables of stages, from the tables that run."""
    from morok.codegen.pipeline import STAGES
    from morok.rewrite.stage import count_rules, describe
    from morok.schedule.graph.stages import GRAPH_STAGES
    from morok.schedule.kernel.stages import KERNEL_STAGES

    by_rules, functions = count_rules((*GRAPH_STAGES, *KERNEL_STAGES, *STAGES))
    return f"""# The stages

Written by `morok docs` from the tables that the driver runs. `DUMP=NAME` prints the graph after a stage,
`STOP_AFTER=NAME` ends there, `SPEC=2` checks after each that the graph is what the last column says, and
[`morok trace`](trace.md) shows what each did to a kernel. {by_rules} stages are sets of rules, {functions}
are functions from a graph to a graph.

## The tensor graph

{describe(GRAPH_STAGES)}

## Each kernel, until it is scheduled

{describe(KERNEL_STAGES)}

## Each kernel, optimised

Stage 7 is the optimiser (`morok/optimize/`): loops are split, reordered, unrolled, turned into lanes and
threads, and values are kept close by. What it may do is a list of actions; heuristics choose among them, or a
search that measures (`BEAM=8`). `EXPLAIN=opts` prints what was done to each kernel, `MOROK_NOOPT=1` leaves
plain loops.

## Each kernel, until it is a list of instructions

{describe(STAGES)}
"""
