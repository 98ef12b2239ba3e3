"""`morok bench --roofline script.py`: every kernel of a script beside what the machine allows."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from morok.cli.script import run_script
from morok.errors import MorokError


def show_roofline(script: str, arguments: Sequence[str]) -> int:
    """Runs a script with its own output on stderr, and prints the table."""
    from morok.runtime.profile import profile
    from morok.runtime.roofline import limits_of, roofline, table

    out, sys.stdout = sys.stdout, sys.stderr
    try:
        with profile() as taken:
            if script == "demo":
                _demo()
            else:
                run_script(script, arguments)
    finally:
        sys.stdout = out
    if not taken.events:
        raise MorokError(f"{script} has run no kernels")
    limits = {device: limits_of(device) for device in dict.fromkeys(e.device for e in taken.events)}
    print(table(roofline(taken.events, limits), limits))
    return 0


def _demo() -> None:
    """The network of `morok demo` for an epoch, without what it tells."""
    from morok.cli.demo.network import Network, digits, split, train, training_step
    from morok.tensor.random import manual_seed

    manual_seed(0)
    images, labels, _, _ = split(*digits())
    for _ in train(training_step(Network()), images, labels, 1):
        pass
