"""Variables of a traced function: it sees them without their values, so that one trace serves them all.

What a call binds, in an argument or in the shape of one, is taken out before the function is traced and put
back afterwards: into the graph for the first run, and into the shapes of results at every replay. So whatever
the function does with a variable is checked for all values between its bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from morok.errors import VariableError
from morok.ir.infer import Shape, Size
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.rewrite.engine import substitute
from morok.tensor.memory.strides import Chain

Bound = dict[UOp, UOp]  # variable → BIND of it


def binds(node: UOp) -> list[UOp]:
    """The variables in a node, with their values."""
    return [n for n in toposort(node, stop=_is_bind) if n.op is Ops.BIND]


def _is_bind(node: UOp) -> bool:
    return node.op is Ops.BIND


def unbound(size: Any, bound: Bound | None = None) -> Any:
    """A size without the values of its variables; these are noted in `bound`."""
    if not isinstance(size, UOp) or size.op is Ops.CONST:
        return size
    found = binds(size)
    for bind in found if bound is not None else ():
        _note(bind, bound)
    return substitute(size, {bind: bind.src[0] for bind in found}) if found else size


def _note(bind: UOp, bound: Bound | None) -> None:
    assert bound is not None
    known = bound.setdefault(bind.src[0], bind)
    if known is not bind:
        low, high = sorted((known.src[1].arg, bind.src[1].arg))
        raise VariableError(
            f"variable {bind.src[0].arg[0]} is bound to {low} and to {high} in the arguments of one call"
        )


def unbound_shape(sizes: Shape, bound: Bound | None = None) -> Shape:
    """A shape without the values of its variables."""
    for n in sizes:
        if n.__class__ is not int:
            return tuple([unbound(n, bound) for n in sizes])
    return sizes


def unbound_chain(chain: Chain, bound: Bound | None = None) -> Chain:
    """A chain without the values of its variables; these are noted in `bound`."""
    return tuple(
        [
            step._replace(
                sizes=tuple([unbound(n, bound) for n in step.sizes]), shape=unbound_shape(step.shape, bound)
            )
            for step in chain
        ]
    )


def rebound(size: Size, bound: Bound) -> Size:
    """A size with values."""
    return size if isinstance(size, int) else rebound_nodes([size], bound)[0]


def rebound_chain(chain: Chain, bound: Bound) -> Chain:
    """A chain with values."""
    if not bound:
        return chain
    return tuple(
        [
            step._replace(
                sizes=tuple(rebound_nodes(step.sizes, bound)),
                shape=tuple([rebound(n, bound) for n in step.shape]),
            )
            for step in chain
        ]
    )


def rebound_nodes(nodes: Sequence[UOp], bound: Bound) -> list[UOp]:
    """Graphs with values for their variables, also for those that have other values."""
    if not bound:
        return list(nodes)
    done: dict[UOp, UOp] = dict(bound)
    for node in toposort(*nodes, stop=_is_bind):
        if node not in done:
            if node.op is Ops.BIND:
                done[node] = bound.get(node.src[0], node)
            else:
                done[node] = node.replace(tuple([done[s] for s in node.src]))
    return [done[node] for node in nodes]
