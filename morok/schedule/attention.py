"""Attention in one kernel: the scores of a product, their softmax, and what it weighs, are never memory.

    softmax(q · kᵀ) · v        with a scale, a mask or a bias on the scores, and more after the sum

A GPU keeps a tile of scores in the registers in which a matrix unit leaves them, and walks along the keys
once (`weighted.py`). So nothing between the two products is kept, however often it seems to be computed. That
is asked before fusion, because it would rightly refuse: only this form can be computed so. The form is found
by lowering the two products and what lies between them alone, and looking at the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

from morok import knobs
from morok.dtype import bfloat16, float16, float32, void
from morok.ir.infer import closed_ranges, numel, ranges
from morok.ir.movement import reshape
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import Ops
from morok.schedule.costs import STORED
from morok.schedule.indexing import known_shape
from morok.schedule.kernel_stages import KERNEL_STAGES
from morok.schedule.longreduce import device_kind
from morok.schedule.weighted import Weighted, weighted_sum

DEVICES = ("CUDA", "EMULATOR")  # those with matrix units
NARROW = (float16, bfloat16)
STEP = 16  # keys, and elements of a row of q or k, that a unit multiplies at once
COLUMNS = 8  # of v
FEWEST_ROWS = 32
MOST_REGISTERS = 150  # of a thread, for its part of 16 rows of q and of the result

_KEPT = 1024
_answers: dict[tuple[UOp, object], bool] = {}


def passing(order: Sequence[UOp]) -> frozenset[UOp]:
    """What lies between two products and is computed in passing, on its way from the one to the other."""
    tops = [n for n in order if n.op is Ops.REDUCE_AXIS and n.arg[0] is Ops.MAX]
    if not tops or knobs.NOOPT.value:  # in plain loops everything would be computed again and again
        return frozenset()
    if not any(n.op is Ops.PARAM and device_kind(n, {}) in DEVICES for n in order):
        return frozenset()
    devices: dict[UOp, str] = {}
    users: dict[UOp, list[UOp]] = {}
    for node in order:
        devices[node] = device_kind(node, devices)
        for s in dict.fromkeys(node.src):
            users.setdefault(s, []).append(node)
    found: set[UOp] = set()
    for top in tops:
        if devices[top] in DEVICES:
            found |= _between(top, users)
    return frozenset(found)


def _between(top: UOp, users: dict[UOp, list[UOp]]) -> set[UOp]:
    """From the product below a maximum up to the one that uses it all; nothing where others use it."""
    below = [n for n in _reach(top.src[0]) if n.op is Ops.REDUCE_AXIS]
    if len(below) != 1 or not _is_product(below[0]):
        return set()
    (scores,) = below
    region = {scores}
    results: set[UOp] = set()
    front = [scores]
    while front:
        node = front.pop()
        for user in users.get(node, ()):
            if _is_product(user):
                results.add(user)
            elif not (user.op.is_alu or user.op.is_movement or user.op in (Ops.REDUCE_AXIS, Ops.DETACH)):
                return set()  # somebody else wants it as memory
            elif user not in region:
                region.add(user)
                front.append(user)
    if len(results) != 1 or len(region) > 64:
        return set()
    (result,) = results
    # the product of the weights and v is no sum of its own
    return region if _fits(result, scores, region) else set()


def _reach(node: UOp) -> list[UOp]:
    """A value down to the reductions and the memory that it is made of."""
    stop = {n for n in toposort(node, stop=_ends) if _ends(n)}
    return [n for n in toposort(node, stop=_ends) if n in stop]


def _ends(node: UOp) -> bool:
    return node.op in STORED or node.op is Ops.REDUCE_AXIS


def _is_product(node: UOp) -> bool:
    """A sum of products in float32 over one axis."""
    if node.op is not Ops.REDUCE_AXIS or node.arg[0] is not Ops.ADD or len(node.arg[1]) != 1:
        return False
    value = node.src[0]
    return node.dtype is float32 and value.op is Ops.MUL and all(_narrow(_unmoved(s)) for s in value.src)


def _unmoved(node: UOp) -> UOp:
    while node.op.is_movement:
        node = node.src[0]
    return node


def _fits(result: UOp, scores: UOp, region: set[UOp]) -> bool:
    form = _form(result, scores, region)
    if form is None:
        return False
    key = (form, knobs.cache_key())
    found = _answers.get(key)
    if found is None:
        if len(_answers) > _KEPT:
            _answers.clear()
        found = _answers[key] = _in_registers(form)
    return found


def _form(result: UOp, scores: UOp, region: set[UOp]) -> UOp | None:
    """The two products and what lies between them, on memory."""
    inside = region | {result, result.src[0], scores.src[0]}
    done: dict[UOp, UOp] = {}
    memory = 1

    def is_leaf(node: UOp) -> bool:
        return node not in inside and not node.op.is_movement and node.op not in (Ops.CAST, Ops.CONST)

    for node in toposort(result, stop=is_leaf):
        if is_leaf(node):
            count = numel(known_shape(node))
            if not isinstance(count, int):
                return None
            param = make(Ops.PARAM, node.dtype, (), (memory, count, ""))
            done[node] = reshape(param, known_shape(node))
            memory += 1
        else:
            done[node] = node.replace(tuple([done[s] for s in node.src]))
    sizes = known_shape(result)
    count = numel(sizes)
    if not isinstance(count, int):
        return None
    target = make(Ops.PARAM, result.dtype, (), (0, count, ""))
    return make(Ops.ASSIGN, result.dtype, (reshape(target, sizes), done[result]))


def _in_registers(form: UOp) -> bool:
    """Whether a form is lowered to one weighted sum whose scores and results fit the registers of threads."""
    ast = make(Ops.SINK, void, (form,))
    for stage in KERNEL_STAGES:
        ast = stage.apply(ast, None)
    sums = [found for n in toposort(ast) if n.op is Ops.REDUCE and (found := weighted_sum(n)) is not None]
    return len(sums) == 1 and len(ast.src) == 1 and suits_units(ast, sums[0])


def scores_of(found: Weighted) -> UOp | None:
    """The product that a weighted sum's scores are made of, if there is just one."""
    inner = [n for n in toposort(found.power.scores) if n.op is Ops.REDUCE]
    return inner[0] if len(inner) == 1 and inner[0].arg == (Ops.ADD,) and len(inner[0].src) == 2 else None


def suits_units(ast: UOp, found: Weighted) -> bool:
    """Whether matrix units can compute both products of a kernel, by the sizes of its loops."""
    scores = scores_of(found)
    if scores is None or scores.src[0].op is not Ops.MUL:
        return False
    (k,), (e,) = closed_ranges(found.sum), closed_ranges(scores)
    columns = [r for r in ast.src[0].src[1:] if r in ranges(found.sum) and r not in ranges(found.power.top)]
    rows = [r for r in ranges(scores) if r is not k and not any(r in ranges(f) for f in _others(scores, k))]
    if len(columns) != 1 or len(rows) != 1:
        return False
    sizes = [r.src[0].arg if r.src[0].op is Ops.CONST else 0 for r in (k, e, columns[0], rows[0])]
    steps, width, wide, high = sizes
    if steps < STEP or width % STEP or wide % COLUMNS or high < FEWEST_ROWS or 0 in sizes:
        return False
    return wide // 2 + width // 4 <= MOST_REGISTERS and all(
        _narrow(f) for f in (*scores.src[0].src, *found.sum.src[0].src)
    )


def _others(product: UOp, k: UOp) -> list[UOp]:
    """The factors that move with the keys."""
    return [f for f in product.src[0].src if k in ranges(f)]


def _narrow(x: UOp) -> bool:
    return x.op is Ops.CAST and x.src[0].dtype in NARROW
