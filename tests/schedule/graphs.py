"""Tensor graphs without a tensor class, for tests of scheduling: builders, a runner, and what NumPy says.

`run` schedules nodes and runs the kernels on the interpreter. `expected` evaluates the same graph op by op in
NumPy, without any scheduling.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from morok.device.interpreter import run_kernel
from morok.dtype import DType, float32, int32
from morok.ir import build, movement
from morok.ir.arithmetic.alu import evaluate_array
from morok.ir.arithmetic.arrays import storage
from morok.ir.infer import shape
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Op, Ops
from morok.schedule.schedule import Schedule, schedule

_numbers = itertools.count(1)
DATA: dict[UOp, Any] = {}


def tensor(*sizes: int, dtype: DType = float32, data: Any = None, seed: int | None = None) -> UOp:
    """A tensor in memory; random unless data are given."""
    number = next(_numbers)
    if data is None:
        random = np.random.default_rng(number if seed is None else seed)
        data = random.normal(size=sizes) if dtype.is_float else random.integers(0, 7, size=sizes)
    data = np.asarray(data).astype(storage(dtype))
    memory = build.buffer(dtype, math.prod(sizes), "CPU", number)
    DATA[memory] = data.reshape(-1).copy()
    return movement.reshape(memory, sizes)


def sizes_of(x: UOp) -> tuple[Any, ...]:
    found = shape(x)
    assert found is not None
    return found


def spread(x: UOp, sizes: Sequence[Any]) -> UOp:
    """x broadcast to a shape, as NumPy does it."""
    own = sizes_of(x)
    return movement.expand(movement.reshape(x, (1,) * (len(sizes) - len(own)) + own), sizes)


def scalar(x: UOp, value: float) -> UOp:
    return const(x.dtype, value)


def call(op: Op, *xs: Any) -> UOp:
    """An element-wise op with broadcasting; numbers become constants."""
    model = next(x for x in reversed(xs) if isinstance(x, UOp))
    nodes = [x if isinstance(x, UOp) else const(model.dtype, x) for x in xs]
    full = np.broadcast_shapes(*(sizes_of(n) for n in nodes))
    return alu(op, *(n if n.op is Ops.CONST else spread(n, full) for n in nodes))


def add(a: Any, b: Any) -> UOp:
    return call(Ops.ADD, a, b)


def sub(a: Any, b: Any) -> UOp:
    return call(Ops.SUB, a, b)


def mul(a: Any, b: Any) -> UOp:
    return call(Ops.MUL, a, b)


def div(a: Any, b: Any) -> UOp:
    return call(Ops.FDIV, a, b)


def relu(x: UOp) -> UOp:
    return call(Ops.MAX, x, 0.0)


def exp(x: UOp) -> UOp:
    return alu(Ops.EXP, x)


def gelu(x: UOp) -> UOp:
    return mul(mul(x, 0.5), add(alu(Ops.ERF, mul(x, 0.7071067811865476)), 1.0))


def reduce(op: Op, x: UOp, *axes: int) -> UOp:
    """Reduced axes keep size 1."""
    own = sizes_of(x)
    return movement.reduce_axis(x, op, [axis % len(own) for axis in axes] or range(len(own)))


def total(x: UOp, *axes: int) -> UOp:
    return reduce(Ops.ADD, x, *axes)


def mean(x: UOp, *axes: int) -> UOp:
    found = total(x, *axes)
    return mul(found, math.prod(sizes_of(found)) / math.prod(sizes_of(x)))


def variance(x: UOp, *axes: int) -> UOp:
    centred = sub(x, mean(x, *axes))
    return mean(mul(centred, centred), *axes)


def softmax(x: UOp) -> UOp:
    e = exp(sub(x, reduce(Ops.MAX, x, -1)))
    return div(e, total(e, -1))


def log_softmax(x: UOp) -> UOp:
    shifted = sub(x, reduce(Ops.MAX, x, -1))
    return sub(shifted, alu(Ops.LOG, total(exp(shifted), -1)))


def layer_norm(x: UOp, weight: UOp, bias: UOp) -> UOp:
    scale = alu(Ops.RSQRT, add(variance(x, -1), 1e-5))
    return add(mul(mul(sub(x, mean(x, -1)), scale), weight), bias)


def rms_norm(x: UOp, weight: UOp) -> UOp:
    return mul(mul(x, alu(Ops.RSQRT, add(mean(mul(x, x), -1), 1e-5))), weight)


def matmul(a: UOp, b: UOp) -> UOp:
    """(…, m, k) @ (…, k, n)"""
    *_, m, k = sizes_of(a)
    n = sizes_of(b)[-1]
    left = movement.reshape(a, (*sizes_of(a)[:-2], m, 1, k))
    order = [*range(len(sizes_of(b)) - 2), len(sizes_of(b)) - 1, len(sizes_of(b)) - 2]
    right = movement.permute(b, order)
    right = movement.reshape(right, (*sizes_of(b)[:-2], 1, n, k))
    out = total(mul(left, right), -1)
    return movement.reshape(out, sizes_of(out)[:-1])


def transpose(x: UOp, *order: int) -> UOp:
    return movement.permute(x, order)


def positions(sizes: Sequence[int], axis: int, dtype: DType = int32) -> UOp:
    return movement.iota(sizes, axis, dtype)


def one_hot(targets: UOp, classes: int) -> UOp:
    """A mask with one true entry in a new last axis."""
    own = sizes_of(targets)
    column = movement.reshape(targets, (*own, 1))
    row = positions((*(1 for _ in own), classes), len(own), targets.dtype)
    return call(Ops.CMPEQ, column, row)


def choose(condition: UOp, x: UOp, y: float) -> UOp:
    full = np.broadcast_shapes(sizes_of(condition), sizes_of(x))
    return alu(Ops.WHERE, spread(condition, full), spread(x, full), const(x.dtype, y))


def cross_entropy(logits: UOp, targets: UOp) -> UOp:
    rows = log_softmax(logits)
    picked = total(choose(one_hot(targets, sizes_of(logits)[-1]), rows, 0.0), -1)
    return mul(mean(picked), -1.0)


def gather(table: UOp, targets: UOp) -> UOp:
    """Rows of a table: table[targets]."""
    rows, width = sizes_of(table)
    mask = movement.reshape(one_hot(targets, rows), (*sizes_of(targets), rows, 1))
    return movement.reshape(total(choose(mask, table, 0.0), -2), (*sizes_of(targets), width))


def windows(x: UOp, kernel: int, stride: int) -> UOp:
    """(n, c, h, w) → (n, c, oh, ow, k, k), by repeating and cutting."""
    for axis in (2, 3):
        own = sizes_of(x)
        size = own[axis]
        count = (size - kernel) // stride + 1
        repeats = -(-kernel * (size + 1) // size)
        flat = movement.reshape(x, (*own[:axis], 1, size, *own[axis + 1 :]))
        flat = movement.expand(flat, (*own[:axis], repeats, size, *own[axis + 1 :]))
        flat = movement.reshape(flat, (*own[:axis], repeats * size, *own[axis + 1 :]))
        box = [(0, s) for s in sizes_of(flat)]
        box[axis] = (0, kernel * (size + 1))
        flat = movement.reshape(movement.shrink(flat, box), (*own[:axis], kernel, size + 1, *own[axis + 1 :]))
        box = [(0, s) for s in sizes_of(flat)]
        box[axis + 1] = (0, min(size + 1, count * stride))
        flat = movement.shrink(flat, box)
        if sizes_of(flat)[axis + 1] < count * stride:
            ends = [(0, 0)] * len(box)
            ends[axis + 1] = (0, count * stride - sizes_of(flat)[axis + 1])
            flat = movement.pad(flat, ends)
        now = sizes_of(flat)
        flat = movement.reshape(flat, (*now[: axis + 1], count, stride, *now[axis + 2 :]))
        box = [(0, s) for s in sizes_of(flat)]
        box[axis + 2] = (0, 1)
        flat = movement.shrink(flat, box)
        now = sizes_of(flat)
        flat = movement.reshape(flat, (*now[: axis + 2], *now[axis + 3 :]))
        order = [i for i in range(len(sizes_of(flat))) if i != axis] + [axis]
        x = movement.permute(flat, order)
    return x


def pad2d(x: UOp, amount: int) -> UOp:
    return movement.pad(x, ((0, 0), (0, 0), (amount, amount), (amount, amount))) if amount else x


def conv(x: UOp, weight: UOp, stride: int = 1, padding: int = 0) -> UOp:
    """(n, c, h, w) * (o, c, k, k) → (n, o, oh, ow)"""
    o, c, k, _ = sizes_of(weight)
    view = windows(pad2d(x, padding), k, stride)
    n, _, oh, ow, _, _ = sizes_of(view)
    view = movement.reshape(view, (n, 1, c, oh, ow, k, k))
    factors = movement.reshape(weight, (1, o, c, 1, 1, k, k))
    out = total(mul(view, factors), 2, 5, 6)
    return movement.reshape(out, (n, o, oh, ow))


def channels(x: UOp) -> UOp:
    """(c,) → (1, c, 1, 1)"""
    return movement.reshape(x, (1, sizes_of(x)[0], 1, 1))


def batch_norm(x: UOp, mean_: UOp, var: UOp, weight: UOp, bias: UOp) -> UOp:
    scale = alu(Ops.RSQRT, add(var, 1e-5))
    return add(mul(mul(sub(x, channels(mean_)), channels(scale)), channels(weight)), channels(bias))


def max_pool(x: UOp, kernel: int, stride: int, padding: int = 0) -> UOp:
    view = windows(pad2d(x, padding), kernel, stride)
    return movement.reshape(reduce(Ops.MAX, view, 4, 5), sizes_of(view)[:4])


def assign(target: UOp, value: UOp, *after: UOp) -> UOp:
    return make(Ops.ASSIGN, target.dtype, (target, value, *after))


def contiguous(x: UOp) -> UOp:
    return make(Ops.CONTIGUOUS, x.dtype, (x,))


# --- running


def run(*nodes: UOp, plan: Schedule | None = None) -> list[Any]:
    """The values of nodes, computed by their kernels on the interpreter. Assignments change DATA."""
    plan = schedule(nodes) if plan is None else plan
    memory = arenas(plan)
    for item in plan.items:
        arrays = [memory[b] if b in memory else DATA[b] for b in item.buffers]
        arrays = [a[start:] for a, start in zip(arrays, item.starts or (0,) * len(arrays), strict=True)]
        if item.ast.op is Ops.COPY:
            arrays[0][...] = arrays[1][: arrays[0].size]
        else:
            run_kernel(item.ast, arrays, plan.values)
    bottom = {**DATA, **memory}
    return [_value(plan.results[node], bottom, plan.values) for node in nodes]


def arenas(plan: Schedule) -> dict[UOp, Any]:
    """Memory for everything that a schedule makes; intermediates share bytes as the plan says."""
    made: dict[UOp, Any] = {}
    blocks = {device: np.full(size, 0xAA, np.uint8) for device, size in plan.memory.arenas.items()}
    for node, spot in plan.memory.placements.items():
        raw = blocks[spot.device][spot.offset : spot.offset + spot.nbytes]
        made[node] = raw.view(storage(node.dtype))
    for node in plan.memory.outputs:
        made[node] = np.zeros(node.arg, storage(node.dtype))
    return made


def expected(*nodes: UOp) -> list[Any]:
    """What NumPy says, op by op."""
    return [_value(node, DATA, {}) for node in nodes]


def _value(root: UOp, bottom: dict[UOp, Any], values: dict[str, int]) -> Any:
    done: dict[UOp, Any] = {}
    for node in toposort(root):
        if node.op not in (Ops.UNIQUE, Ops.DEVICE):
            done[node] = _numpy(node, done, bottom, values)
    return done[root]


def _numpy(node: UOp, done: dict[UOp, Any], bottom: dict[UOp, Any], values: dict[str, int]) -> Any:
    op = node.op
    if op is Ops.BUFFER:
        return bottom[node].copy()
    if op is Ops.CONST:
        return np.asarray(node.arg, storage(node.dtype))
    if op is Ops.DEFINE_VAR:
        return np.asarray(values.get(node.arg[0], -1))
    x, *rest = (done[s] for s in node.src)
    numbers = [int(r) for r in rest] if op.is_movement else []
    if op is Ops.BIND:
        return rest[0]
    if op is Ops.RESHAPE:
        return x.reshape(numbers)
    if op is Ops.EXPAND:
        return np.broadcast_to(x, numbers)
    if op is Ops.PERMUTE:
        return x.transpose(node.arg)
    if op is Ops.PAD:
        return np.pad(x, _pairs(numbers))
    if op is Ops.SHRINK:
        return x[tuple(slice(a, b) for a, b in _pairs(numbers))]
    if op is Ops.FLIP:
        return np.flip(x, [axis for axis, flipped in enumerate(node.arg) if flipped])
    if op is Ops.IOTA:
        sizes = [int(done[s]) for s in node.src]
        return np.indices(sizes)[node.arg].astype(storage(node.dtype))
    if op is Ops.REDUCE_AXIS:
        how, axes = node.arg
        return _REDUCERS[how](x, axis=axes, keepdims=True).astype(storage(node.dtype))
    if op in (Ops.CONTIGUOUS, Ops.DETACH, Ops.COPY):
        return x
    if op is Ops.ASSIGN:
        return rest[0]
    return evaluate_array(op, node.src[-1].dtype, x, *rest, to=node.dtype)


_REDUCERS: dict[Op, Any] = {
    Ops.ADD: np.sum, Ops.MUL: np.prod, Ops.MAX: np.max, Ops.MIN: np.min, Ops.AND: np.all, Ops.OR: np.any,
}  # fmt: skip


def _pairs(numbers: list[int]) -> list[tuple[int, int]]:
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def kernels(*nodes: UOp) -> int:
    return len(schedule(nodes).items)


def check(*nodes: UOp, tolerance: float = 1e-5) -> Schedule:
    """Runs the nodes and compares with NumPy; gives the schedule back."""
    wanted = expected(*nodes)
    plan = schedule(nodes)
    for got, want in zip(run(*nodes, plan=plan), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    return plan


def base(x: UOp) -> UOp:
    """The buffer under a view."""
    while x.op is not Ops.BUFFER:
        x = x.src[0]
    return x
