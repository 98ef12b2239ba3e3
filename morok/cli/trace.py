"""`morok trace`: run a script and print how each kernel came about, from the user's line to instructions.

Three distances. Without options every kernel is a heading and a line per stage that changed something. Of one
kernel (the only one, or `--kernel`) the changes are shown as well, equal rules counted, then the list of
instructions, each with the rules behind it. `--stage` shows every single change of a stage.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from morok.cli.script import add_script, run_script
from morok.errors import MorokError

if TYPE_CHECKING:
    from morok.rewrite.rules import Rule
    from morok.runtime.history import KernelHistory

NAME = "trace"
HELP = "run a script and print every change of every kernel, by rule, function or action"

Data = dict[str, Any]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--kernel", metavar="K", help="only this kernel: its number, name or line of yours")
    parser.add_argument("--stage", metavar="S", help="every change of this stage: its number or name, or all")
    parser.add_argument("--value", type=int, metavar="N", help="the whole history of instruction N")
    parser.add_argument("--code", action="store_true", help="also what the instructions are rendered to")
    parser.add_argument("--prove", action="store_true", help="prove now what was not proved before")
    parser.add_argument("--json", metavar="FILE", help="write everything there, for machines; -: the output")
    add_script(parser)


def run(args: Namespace) -> int:
    from morok.cli.trace_text import kernel_text, overview, stage_text, value_text
    from morok.runtime.history import recording
    from morok.runtime.history_data import history_data
    from morok.viewer.verdicts import rule_verdicts

    with recording(args.code) as history:
        _run_apart(args)
    kernels = choose_kernels(history.kernels, args.kernel, args.script)
    if len(kernels) > 1 and args.stage is None and args.value is None and not args.json:
        for kernel in history_data(kernels, _no_verdicts, details=False)["kernels"]:
            print(overview(kernel))
        return 0
    data = history_data(kernels, lambda fired: rule_verdicts(fired, args.prove))
    chosen = data["kernels"]
    stages = None if args.stage is None else choose_stages(chosen, args.stage)
    if args.json:
        _write(data, args.json)
        return 0
    for kernel in chosen:
        if stages is not None:
            print(stage_text(kernel, data["rules"], stages))
        elif args.value is not None:
            print(value_text(kernel, data["rules"], _instruction(kernel, args.value)))
        else:
            print(kernel_text(kernel, data["rules"], args.code))
    return 0


def _run_apart(args: Namespace) -> None:
    """The script's own output goes to stderr, so that what is printed here can be read by a program."""
    out, sys.stdout = sys.stdout, sys.stderr
    try:
        run_script(args.script, args.arguments)
    finally:
        sys.stdout = out


def choose_kernels(kernels: list[KernelHistory], wanted: str | None, script: str) -> list[KernelHistory]:
    """The kernels of a number, a name or a line."""
    if not kernels:
        raise MorokError(f"{script} has compiled no kernels")
    if wanted is None:
        return kernels
    found = [k for k in kernels if wanted in (str(k.number), k.name, k.place)]
    if not found:
        names = ", ".join(f"{k.number} ({k.name}, {k.place})" for k in kernels)
        raise MorokError(f"there is no kernel {wanted}; there are {names}")
    return found


def choose_stages(kernels: list[Data], wanted: str) -> set[str]:
    """The names of the stages of a number or a name."""
    known = {s["name"]: s["number"] for k in kernels for s in k["stages"]}
    found = {name for name, number in known.items() if wanted in (name, number, "all")}
    if not found:
        names = ", ".join(f"{number} ({name})" for name, number in known.items())
        raise MorokError(f"there is no stage {wanted}; there are {names}")
    return found


def _instruction(kernel: Data, number: int) -> int:
    count = len(kernel["instructions"])
    if not 0 <= number < count:
        raise MorokError(f"kernel {kernel['number']} has no instruction {number}; there are 0 … {count - 1}")
    return number


def _write(data: Data, where: str) -> None:
    text = json.dumps(data, indent=1, ensure_ascii=False)
    if where == "-":
        print(text)
    else:
        Path(where).write_text(text + "\n", encoding="utf-8")


def _no_verdicts(fired: Iterable[Rule]) -> dict[str, tuple[str, str]]:
    return {rule.name: ("", "") for rule in fired}
