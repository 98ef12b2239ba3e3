"""Where the scores of attention are, if not in memory: a table of places.

Registers, as a matrix unit leaves them there, or as fused products of float32 do; or a thread's cache. Each
place says which machines have it, which sums of products it takes, and whether a kernel is right for it: that
is found by lowering it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import final

from morok.dtype import float32
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.machine.machine import Machine
from morok.schedule.contraction import GraphContraction, contraction_at
from morok.schedule.graph.attention.cached_scores import cached_scores, holds_scores
from morok.schedule.graph.attention.chain import chain_of, input_type, is_narrow, others_of
from morok.schedule.graph.attention.fused_chain import FusedRows
from morok.schedule.kernel.probe import Answers, on_memory
from morok.schedule.kernel.stages import KERNEL_STAGES

IsProduct = Callable[[UOp], bool]

_answers = Answers("schedule.attention")


@final
@dataclass(frozen=True, eq=False)
class Place:
    """A place for scores that is no memory."""

    name: str
    able: Callable[[Machine], bool]
    is_product: IsProduct
    is_right: Callable[[UOp, Machine | None], bool]  # for a lowered kernel, whatever it would be otherwise

    def takes(self, value: UOp, is_leaf: Callable[[UOp], bool], machine: Machine | None = None) -> bool:
        """Whether the kernel of a value is right for it, if these leaves are memory."""
        kernel = on_memory(value, is_leaf)
        where = self.name if machine is None else f"{self.name} {machine.key}"
        return kernel is not None and _answers.about(
            kernel, lambda ast: self.is_right(_lowered(ast), machine), where
        )


def places_of(machine: Machine) -> tuple[Place, ...]:
    """The places that a machine has."""
    return tuple(place for place in PLACES if place.able(machine))


def is_chain(nodes: Iterable[UOp], machine: Machine) -> bool:
    """Whether a kernel of these nodes has two products with a maximum: it runs alone."""
    found = [n for n in nodes if n.op is Ops.REDUCE_AXIS]
    if all(n.arg[0] is not Ops.MAX for n in found):
        return False
    return any(sum(map(place.is_product, found)) > 1 for place in places_of(machine))


def _lowered(ast: UOp) -> UOp:
    for stage in KERNEL_STAGES:
        ast = stage.apply(ast, None)
    return ast


# --- products


def is_narrow_product(node: UOp) -> bool:
    """A sum of products of narrow floats, in float32 over one axis."""
    return _is_product(node) and all(is_narrow(_unmoved(s)) for s in node.src[0].src)


def is_wide_product(node: UOp) -> bool:
    """A sum of products in float32 over one axis, which uses its factors many times over."""
    return _contraction(node) is not None


def is_exact_product(node: UOp) -> bool:
    """The same of factors in float32, which have no unit that is as exact."""
    found = _contraction(node)
    return found is not None and found.inputs is float32


def _is_product(node: UOp) -> bool:
    if node.op is not Ops.REDUCE_AXIS or node.arg[0] is not Ops.ADD or len(node.arg[1]) != 1:
        return False
    return node.dtype is float32 and node.src[0].op is Ops.MUL


def _contraction(node: UOp) -> GraphContraction | None:
    return contraction_at(node) if _is_product(node) else None


def _unmoved(node: UOp) -> UOp:
    while node.op.is_movement:
        node = node.src[0]
    return node


# --- kernels


def _fits_units(ast: UOp, _machine: Machine | None) -> bool:
    """Whether a kernel is a chain of products for units, whose scores and results fit registers."""
    chain = chain_of(ast)
    return chain is not None and input_type(chain.firsts[0].src[0].src[0]) is not float32


def _is_faster_fused(ast: UOp, machine: Machine | None) -> bool:
    """Whether a kernel is such a chain in float32, and faster than products with their scores in memory."""
    chain = chain_of(ast)
    if chain is None or machine is None or input_type(chain.firsts[0].src[0].src[0]) is not float32:
        return False
    return FusedRows(chain, others_of(ast, chain)).is_faster(machine)


def _fits_cache(ast: UOp, machine: Machine | None) -> bool:
    """Whether a kernel is two products with a softmax between them, whose scores a cache holds."""
    found = cached_scores(ast)
    return found is not None and machine is not None and holds_scores(found, machine)


UNITS = Place("units", lambda m: m.attention is not None, is_narrow_product, _fits_units)
PLACES = (
    UNITS,
    Place(
        "fused", lambda m: m.attention is not None and bool(m.fused_units), is_exact_product, _is_faster_fused
    ),
    Place("cache", lambda m: m.scores_in_cache, is_wide_product, _fits_cache),
)
