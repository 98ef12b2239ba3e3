"""Attention in one kernel: the scores of a product, their softmax, and what it weighs, are never memory.

    softmax(q · kᵀ) · v        with a scale, a mask or a bias on the scores, and more after the sum

A GPU keeps a tile of scores in the registers in which a matrix unit leaves them, and walks along the keys
once (`online_softmax.py`). So nothing between the two products is kept, however often it seems to be
computed. That is asked before fusion, because it would rightly refuse: only this form can be computed so.
Whether the kernel that comes of it has that form is found by lowering it, with all that has been fused. If it
has not, the result gets a kernel of its own; and if that does not help either, everything is as if nobody had
asked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from morok import knobs
from morok.dtype import bfloat16, float16, float32
from morok.ir.infer import closed_ranges, ranges
from morok.ir.matrix import MMA_F16
from morok.ir.memory import device_of, own_device
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.machine.devices import machine_of
from morok.schedule.costs import STORED
from morok.schedule.graph.online_softmax import Weighted, weighted_sum
from morok.schedule.kernel.probe import Answers, on_memory
from morok.schedule.kernel.stages import KERNEL_STAGES

NARROW = (float16, bfloat16)
STEP = MMA_F16.k  # keys, and elements of a row of q or k, that a unit multiplies at once
COLUMNS = MMA_F16.n  # of v
FEWEST_ROWS = 32
MOST_REGISTERS = 150  # of a thread, for its part of 16 rows of q and of the result
MOST_NODES = 64  # between the products
REDUCTIONS = 6  # of such a kernel: scores, three times as it stands; the maximum and the two sums

_answers = Answers("schedule.attention")

Users = Mapping[UOp, Sequence[UOp]]


@final
@dataclass(frozen=True, eq=False)
class Attention:
    """Two products, and what lies between them, the first included."""

    result: UOp
    between: frozenset[UOp]
    end: UOp  # what is stored, if the result is: in the narrow type, where it goes on in that


def users_of(order: Iterable[UOp]) -> dict[UOp, list[UOp]]:
    """Who uses each node."""
    found: dict[UOp, list[UOp]] = {}
    for node in order:
        for s in dict.fromkeys(node.src):
            found.setdefault(s, []).append(node)
    return found


def attentions(order: Sequence[UOp]) -> list[Attention]:
    """What may be computed in passing, from one product to another."""
    tops = [n for n in order if n.op is Ops.REDUCE_AXIS and n.arg[0] is Ops.MAX]
    if not tops or knobs.NOOPT.value:  # in plain loops everything would be computed again and again
        return []
    able = {d for n in order if n.op is Ops.PARAM and machine_of(d := own_device(n)).attention is not None}
    if not able:
        return []
    devices: dict[UOp, str] = {}
    for node in order:
        devices[node] = device_of(node, devices)
    users = users_of(order)
    found = [_between(top, users) for top in tops if devices[top] in able]
    return [a for a in found if a is not None]


def _between(top: UOp, users: Users) -> Attention | None:
    """From the product below a maximum up to the one that uses it all; None where others use it."""
    below = [n for n in toposort(top.src[0], stop=_ends) if n.op is Ops.REDUCE_AXIS]
    if len(below) != 1 or not is_product(below[0]):
        return None
    (scores,) = below
    region = {scores}
    results: set[UOp] = set()
    front = [scores]
    while front:
        node = front.pop()
        for user in users.get(node, ()):
            if is_product(user):
                results.add(user)
            elif not _is_computed(user):
                return None  # somebody else wants it as memory
            elif user not in region:
                region.add(user)
                front.append(user)
    if len(results) != 1 or len(region) > MOST_NODES:
        return None
    (result,) = results
    after = users.get(result, ())
    narrowed = len(after) == 1 and after[0].op is Ops.CAST and after[0].dtype.itemsize < result.dtype.itemsize
    return Attention(result, frozenset(region), after[0] if narrowed else result)


def _is_computed(node: UOp) -> bool:
    """Whether a node may be a part of a kernel, rather than memory."""
    return node.op.is_alu or node.op.is_movement or node.op in (Ops.REDUCE_AXIS, Ops.DETACH)


def _ends(node: UOp) -> bool:
    return node.op in STORED or node.op is Ops.REDUCE_AXIS


def is_product(node: UOp) -> bool:
    """A sum of products of narrow floats, in float32 over one axis."""
    if node.op is not Ops.REDUCE_AXIS or node.arg[0] is not Ops.ADD or len(node.arg[1]) != 1:
        return False
    value = node.src[0]
    return node.dtype is float32 and value.op is Ops.MUL and all(_narrow(_unmoved(s)) for s in value.src)


def is_chain(nodes: Iterable[UOp]) -> bool:
    """Whether a kernel of these nodes has two products with a maximum: it runs alone."""
    found = [n for n in nodes if n.op is Ops.REDUCE_AXIS]
    return sum(map(is_product, found)) > 1 and any(n.arg[0] is Ops.MAX for n in found)


def _unmoved(node: UOp) -> UOp:
    while node.op.is_movement:
        node = node.src[0]
    return node


# --- the kernel that would come of it


def works(found: Attention, kept: Collection[UOp], users: Users) -> bool:
    """Whether the kernel around a result can be computed so, where these nodes are kept in memory."""
    roots = _roots(found.result, kept, users)
    if len(roots) != 1:
        return False
    (root,) = roots
    if root in kept:
        value = root
    elif root.op in (Ops.CONTIGUOUS, Ops.ASSIGN):
        value = root.src[root.op is Ops.ASSIGN]
    else:
        return False

    def is_leaf(node: UOp) -> bool:
        return node is not value and (node in kept or (node.op in STORED and not _is_made_up(node)))

    kernel = on_memory(value, is_leaf)
    return kernel is not None and _answers.about(kernel, _in_registers)


def _roots(node: UOp, kept: Collection[UOp], users: Users) -> set[UOp]:
    """What is stored with a value inlined."""
    found: set[UOp] = set()
    seen = {node}
    front = [node]
    while front:
        here = front.pop()
        if here in kept:
            found.add(here)
            continue
        for user in users.get(here, ()):
            if not _is_computed(user):
                found.add(user)
            elif user not in seen:
                seen.add(user)
                front.append(user)
    return found


def _is_made_up(node: UOp) -> bool:
    """Whether a value that a device has is none of its memory: constants, and positions."""
    return node.op is Ops.COPY and not any(n.op in (Ops.PARAM, Ops.BUFFER) for n in toposort(node))


def _in_registers(ast: UOp) -> bool:
    """Whether a kernel is lowered to one weighted sum whose scores and results fit registers."""
    for stage in KERNEL_STAGES:
        ast = stage.apply(ast, None)
    reductions = [n for n in toposort(ast) if n.op is Ops.REDUCE]
    sums = [found for n in reductions if (found := weighted_sum(n)) is not None]
    return len(reductions) == REDUCTIONS and len(sums) == 1 and suits_units(ast, sums[0])


# --- its loops


def scores_of(found: Weighted) -> UOp | None:
    """The product that a weighted sum's scores are made of, if there is just one."""
    inner = [n for n in toposort(found.power.scores) if n.op is Ops.REDUCE]
    return inner[0] if len(inner) == 1 and inner[0].arg == (Ops.ADD,) and len(inner[0].src) == 2 else None


def rows_and_columns(ast: UOp, found: Weighted) -> tuple[UOp, UOp] | None:
    """The loops over rows of q and over columns of v; None where there are none of known sizes.

    Of several loops that k does not move with (heads that share one k), the longest is that of the rows.
    """
    scores = scores_of(found)
    if scores is None or scores.src[0].op is not Ops.MUL or len(ast.src) != 1:
        return None
    (k,) = closed_ranges(found.sum)
    columns = [r for r in ast.src[0].src[1:] if r in ranges(found.sum) and r not in ranges(found.power.top)]
    with_keys = frozenset().union(*(ranges(f) for f in scores.src[0].src if k in ranges(f)))
    rows = [r for r in ranges(scores) - with_keys if _size(r)]
    if len(columns) != 1 or not rows:
        return None
    return max(rows, key=lambda r: (_size(r), r.arg[0])), columns[0]


def _size(r: UOp) -> int:
    return int(r.src[0].arg) if r.src[0].op is Ops.CONST else 0


def suits_units(ast: UOp, found: Weighted) -> bool:
    """Whether matrix units can compute both products of a kernel, by the sizes of its loops."""
    scores, loops = scores_of(found), rows_and_columns(ast, found)
    if scores is None or loops is None:
        return False
    (k,), (e,) = closed_ranges(found.sum), closed_ranges(scores)
    high, wide, steps, width = map(_size, (*loops, k, e))
    if steps < STEP or not width or width % STEP or not wide or wide % COLUMNS or high < FEWEST_ROWS:
        return False
    factors = (*scores.src[0].src, *found.sum.src[0].src)
    if not all(map(_narrow, factors)) or len({f.src[0].dtype for f in factors}) > 1:
        return False
    return wide // 2 + width // 4 <= MOST_REGISTERS


def _narrow(x: UOp) -> bool:
    return x.op is Ops.CAST and x.src[0].dtype in NARROW
