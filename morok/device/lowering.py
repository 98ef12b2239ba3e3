"""The way of a kernel through codegen, with all that one may see of it meanwhile.

Every device that compiles goes this way, so DUMP, STOP_AFTER, DEBUG and EXPLAIN mean the same everywhere, and
an observer hears of every kernel and its code. It is loaded when the first kernel is lowered: a process that
finds its kernels on disk never needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from morok import knobs
from morok.codegen.pipeline import lower
from morok.errors import CompileError
from morok.ir.node import UOp
from morok.machine.machine import Machine
from morok.optimize.record import applied
from morok.render.program import Program
from morok.rewrite.observe import current, observed
from morok.rewrite.observer import By
from morok.rewrite.stage import Report


def show_code(title: str, language: str, text: Callable[[], str]) -> None:
    """What a kernel was rendered to, for whoever wants to see it."""
    observer = current()
    wanted = observer is not None and observer.wants_code
    if not wanted and knobs.DEBUG.value < 4:
        return
    made = text()
    if observer is not None and wanted:
        observer.code(language, made)
    if knobs.DEBUG.value >= 4:
        print(f"--- {title}: {language}\n{made}", file=sys.stderr)


def show_program(
    program: Program, assemble: Callable[[], str], code: Callable[[], bytes] | None = None
) -> bool:
    """The text with its lines, if somebody draws ways between instructions; the rest is for them to call."""
    observer = current()
    if observer is None or not observer.wants_programs:
        return False
    observer.rendered(program, assemble, code)
    return True


def instructions(kernel: UOp, machine: Machine, title: str) -> UOp:
    """The optimised kernel as a LINEAR list of instructions."""
    if knobs.explains("opts"):
        done = " ".join(map(str, applied(kernel)))
        print(f"{title}: {done or 'plain loops'}", file=sys.stderr)
    report = Report()
    linear = observed(
        By("kernel", title, target=machine.name), kernel, lambda: lower(kernel, machine, report)
    )
    if report.stopped:
        last = report.rows[-1][0].name
        raise CompileError(f"the pipeline was stopped after the stage {last!r}, so there is nothing to run")
    if knobs.PROVE.value:
        from morok.device.prove import prove_kernel

        prove_kernel(kernel, linear, machine, title, report.seconds)
    if knobs.DEBUG.value >= 2:
        slow = ", ".join(f"{s.name} {t * 1e3:.1f}" for s, t, _ in report.rows if t > 5e-4)
        took = f"{title}: lowered in {report.seconds * 1e3:.1f} ms"
        print(f"{took} ({slow})" if slow else took, file=sys.stderr)
    return linear
