"""The hook of the PROVE knob: a kernel's obligations, decided by Z3 while it is compiled.

The only module outside of the command line that may load the prover, and only when it is asked to.
"""

from __future__ import annotations

import sys
import time

from morok import knobs
from morok.codegen.obligations import ProofReport, discharge
from morok.codegen.target import Target
from morok.ir.node import UOp

_STEPS = 10_000_000  # of the solver, per obligation


def decide(claim: UOp, given: UOp | None) -> tuple[str, str]:
    """Whether a condition holds for all values of its ranges and variables for which `given` does."""
    from morok.errors import ProofError
    from morok.proof import solver
    from morok.proof.graphs import Graphs
    from morok.proof.solver import Problem

    graphs = Graphs()
    try:
        goal = graphs.value(claim)
        if given is not None:
            graphs.bounds.append(graphs.value(given))
    except ProofError as error:
        return "unknown", error.message
    outcome = solver.decide(Problem(graphs.hypotheses(), goal, graphs.t.divisions), _STEPS)
    if outcome.status == solver.PROVED:
        return "proved", ""
    if outcome.status == solver.UNKNOWN:
        return "unknown", "out of steps"
    named = {
        name: graphs.t.value(outcome.model, graphs.leaves[node][0], node.dtype)
        for name, node in graphs._names.items()
    }
    return "refuted", ", ".join(f"{name} = {value}" for name, value in sorted(named.items()))


def prove_kernel(kernel: UOp, target: Target, title: str) -> ProofReport:
    """Proves a kernel safe, or raises a CompileError with a counterexample."""
    started = time.perf_counter()
    report = discharge(kernel, target, decide)
    if knobs.DEBUG.value >= 1 or report.unknown:
        seconds = time.perf_counter() - started
        print(f"morok: {title}: {report} in {seconds * 1e3:.0f} ms", file=sys.stderr)
    return report
