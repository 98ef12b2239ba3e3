"""Contractions in the tensor graph: what a reduction would be for the planner, before there is a kernel.

    Σ over k of a(b, i, k) · b(b, k, j)

An axis of the products has a role by which factors vary along it: rows one of them, columns the other,
batches both; axes that are summed are steps. A factor does not vary along an axis that an EXPAND has made.
The kernels' own form of this is `optimize/contraction.py`; here it serves prices, which need sizes and types
only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from morok.dtype import DType
from morok.ir.bounds import vmax
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.machine.grid_time import Problem, product_clocks
from morok.machine.machine import Machine
from morok.schedule.costs import STORED
from morok.schedule.indexing import known_shape


@final
@dataclass(frozen=True, eq=False)
class GraphContraction:
    """Sizes by role, and the factors in their narrowest form."""

    rows: int
    columns: int
    batch: int
    steps: int
    factors: tuple[UOp, UOp]
    inputs: DType
    output: DType
    products: UOp  # what is summed

    @property
    def work(self) -> int:
        """Multiplications."""
        return self.rows * self.columns * self.batch * self.steps

    @property
    def operand_bytes(self) -> int:
        """What both operands take in memory, in the type that is multiplied."""
        return (self.rows + self.columns) * self.batch * self.steps * self.inputs.itemsize

    def reads_operand(self, node: UOp, count: int) -> bool:
        """Whether a value of so many elements may be an operand, rather than the products themselves. (Of a
        single row there are as many products as the other operand has elements.)"""
        most = max(self.rows, self.columns) * self.batch * self.steps
        return node is not self.products and count <= most

    def clocks(self, machine: Machine, pieces: int = 1, plain: bool = True, line: int = 0) -> float:
        """The time on a grid, if the steps were cut in so many pieces, each with sums of its own.

        `line`: steps that lie side by side, where there are others around them."""
        width = self.output.itemsize if pieces > 1 else self.inputs.itemsize
        steps = -(-self.steps // pieces)
        rows, columns, others = self.rows, self.columns, self.batch * pieces
        asked = Problem(rows, columns, others, steps, width, 0.0, self.inputs.itemsize, 0, line=line)
        return product_clocks(asked, self.inputs, self.output, machine, plain)


def size_of(n: UOp | int) -> int:
    """A size, or its bound."""
    return n if isinstance(n, int) else max(1, int(vmax(n)))


def varying(value: UOp) -> frozenset[int]:
    """The axes along which a value may differ: all but those of size 1, and those that an EXPAND has made."""
    found: dict[UOp, frozenset[int]] = {}
    for node in toposort(value, stop=_is_leaf):
        if _is_leaf(node):
            own = known_shape(node.src[0] if node.op is Ops.EXPAND else node)
            found[node] = frozenset(axis for axis, n in enumerate(own) if size_of(n) > 1)
        elif node.op is Ops.PERMUTE:
            below = found[node.src[0]]
            found[node] = frozenset(axis for axis, a in enumerate(node.arg) if a in below)
        else:
            found[node] = frozenset().union(*(found[s] for s in node.src if s in found))
    return found[value]


def is_whole(node: UOp) -> bool:
    """Memory, or what will be."""
    return node.op in STORED or node.op in (Ops.REDUCE_AXIS, Ops.SCAN_AXIS)


def memory_axis(value: UOp) -> int | None:
    """The axis of a value along which most of what it reads lies in memory; None if it reads nothing."""
    found: dict[UOp, tuple[int, int]] = {}  # bytes, axis
    for node in toposort(value, stop=is_whole):
        below = [found[s] for s in node.src if s in found] if not is_whole(node) else []
        if is_whole(node):
            sizes = [size_of(n) for n in known_shape(node)]
            long = [axis for axis, n in enumerate(sizes) if n > 1]
            if long:
                found[node] = math.prod(sizes) * node.dtype.itemsize, long[-1]
        elif below and (node.op.is_alu or node.op.is_movement):
            nbytes, axis = max(below)
            moved = _moved(node, axis) if node.op.is_movement else axis
            if moved is not None:
                found[node] = nbytes, moved
    return found[value][1] if value in found else None


def _moved(view: UOp, axis: int) -> int | None:
    """Where an axis of its source is in a view: at the same step in memory, if that was in order."""
    if view.op is Ops.PERMUTE:
        return list(view.arg).index(axis)
    if view.op is not Ops.RESHAPE:
        return axis
    old, new = ([size_of(n) for n in known_shape(x)] for x in (view.src[0], view))
    step = math.prod(old[axis + 1 :])
    return next((a for a, n in enumerate(new) if n > 1 and math.prod(new[a + 1 :]) == step), None)


def _is_leaf(node: UOp) -> bool:
    return not node.op.is_alu and node.op is not Ops.PERMUTE


def _narrow(x: UOp) -> UOp:
    """What a factor is made of: without views, and without a conversion to a wider type."""
    below = _viewed(x)
    if below.op is Ops.CAST and not below.src[0].dtype.is_bool:
        inner = _viewed(below.src[0])
        if inner.dtype.itemsize <= below.dtype.itemsize:
            return inner
    return below


def _viewed(x: UOp) -> UOp:
    while x.op.is_movement:
        x = x.src[0]
    return x


def contraction_at(node: UOp) -> GraphContraction | None:
    """What a sum contracts; None if it is no sum of products, or nothing is used twice."""
    if node.op is not Ops.REDUCE_AXIS or node.arg[0] is not Ops.ADD or node.src[0].op is not Ops.MUL:
        return None
    product = node.src[0]
    sizes = [size_of(n) for n in known_shape(product)]
    steps = set(node.arg[1])
    left, right = (varying(s) - steps for s in product.src)

    def points(axes: Iterable[int]) -> int:
        return math.prod(sizes[a] for a in axes)

    rows, columns = points(left - right), points(right - left)
    if rows == 1 and columns == 1:
        return None
    factors = (_narrow(product.src[0]), _narrow(product.src[1]))
    inputs = max((f.dtype for f in factors), key=lambda d: d.itemsize)
    batch = points(left & right)
    return GraphContraction(rows, columns, batch, points(steps), factors, inputs, node.dtype, product)


def known_contraction(products: dict[UOp, GraphContraction | None], node: UOp) -> GraphContraction | None:
    """What a sum contracts; it is asked for again and again."""
    if node not in products:
        products[node] = contraction_at(node)
    return products[node]


def adds_words(value: UOp) -> bool:
    """Whether it is a sum of products of words of two float16. Units take the steps of such words whole, and
    words are decoded where they are multiplied."""
    terms = [value]
    while terms and terms[-1].op in (Ops.ADD, Ops.DOT2):
        found = terms.pop()
        terms += found.src if found.op is Ops.ADD else ()
    return not terms
