"""What was done to a kernel: actions with their parameters, kept in the argument of its SINK.

They print, parse back and are part of the content hash, so a kernel says itself how it was optimised, and a
search can write its winner down and replay it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from morok.errors import MorokError
from morok.ir.args import register_arg
from morok.ir.node import UOp, make
from morok.ir.ops import Ops
from morok.rewrite.observer import By

STAGE = By("stage", "optimise", "7")


class OptError(MorokError):
    """An action that a kernel does not allow; the message says why."""


@final
@register_arg
@dataclass(frozen=True)
class Opt:
    """One action: its public name, the loop or buffer it is about, a number, and further loops.

    Loops are named by the number of their RANGE, buffers by the number of their DEFINE_GLOBAL.
    """

    name: str
    axis: int = -1
    amount: int = 0
    axes: tuple[int, ...] = ()

    def __str__(self) -> str:
        inner = [] if self.axis < 0 else [str(self.axis)]
        inner += [str(self.amount)] if self.amount else []
        inner += [str(self.axes)] if self.axes else []
        return f"{self.name}({', '.join(inner)})"


@final
@register_arg
@dataclass(frozen=True)
class Optimised:
    """All actions that were applied to a kernel, in order."""

    opts: tuple[Opt, ...] = ()

    def __str__(self) -> str:
        return " ".join(map(str, self.opts))


def applied(ast: UOp) -> tuple[Opt, ...]:
    """The actions that a kernel has been through."""
    return ast.arg.opts if isinstance(ast.arg, Optimised) else ()


def recorded(ast: UOp, before: tuple[Opt, ...], opt: Opt) -> UOp:
    """The kernel with one more action in its record."""
    return make(Ops.SINK, ast.dtype, ast.src, Optimised((*before, opt)), ast.origin)
