"""`morok plan --mesh 64x8 --machine h100-nvlink script.py`: what it would take on devices that are not here.

The script runs as it is, on a mesh of the sizes that are given: graphs are cut for one rank of so many,
scheduled for the machine's chip, and costed by what it reaches and by its links (alpha and beta). Nothing is
computed; every value that the script reads is 0. Collectives and kernels count one after the other.
"""

from __future__ import annotations

import contextlib
import sys
from argparse import ArgumentParser, Namespace

from morok import knobs
from morok.cli.script import add_script, run_script
from morok.errors import MorokError

NAME = "plan"
HELP = "memory, bytes and time of a script on several devices that are not here"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--mesh", default="1", metavar="64x8", help="devices along each axis of the script's mesh"
    )
    parser.add_argument(
        "--machine",
        default=knobs.PLAN_MACHINE.value,
        help="what they are and their links, by name or .toml file",
    )
    parser.add_argument("--steps", type=int, default=1, help="how many steps the script takes (default: 1)")
    add_script(parser)


def run(args: Namespace) -> int:
    from morok.device.planned import PLANNED
    from morok.machine.cluster import cluster
    from morok.runtime.estimate import Estimate
    from morok.runtime.profile import profile

    sizes = args.mesh.split("x")
    if not all(size.isdecimal() and int(size) for size in sizes) or args.steps < 1:
        raise MorokError(
            f"--mesh is sizes, as in 64x8, and --steps a number, not {args.mesh} and {args.steps}"
        )
    machine = cluster(args.machine)
    with knobs.override(DEVICE=PLANNED, PLAN_MACHINE=args.machine, PLAN_MESH=args.mesh):
        estimate = Estimate(machine, PLANNED)
        with profile(estimate), contextlib.redirect_stdout(sys.stderr):  # what it prints are zeros
            run_script(args.script, args.arguments)
    print(f"{args.mesh} devices of {machine.name}, a {machine.chip} each; nothing was run")
    print(estimate.report(args.steps))
    return 0
