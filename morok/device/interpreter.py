"""The oracle: kernels run in NumPy, slowly and obviously right.

A range becomes an axis of arrays. A node is an array over the ranges that it depends on, with size 1 along
all others, so NumPy's broadcasting is the loop nest, and a value that depends on the row only is computed
once per row without anybody arranging it. A reduction combines halves of an axis until one is left, with the
same table of meanings that folds constants. Every access to memory is checked against the buffer's size.

Where an array would grow beyond `GRID` elements, the loops are run in pieces: pieces of the output, and,
inside, pieces of a reduction, whose partial results are combined.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np

from morok.device.base import Device
from morok.device.buffer import Array, Buffer, HostAllocator
from morok.dtype import DType, identity
from morok.errors import DeviceError, VariableError
from morok.ir.arithmetic.alu import evaluate_array
from morok.ir.arithmetic.arrays import storage
from morok.ir.checks import Slot
from morok.ir.infer import closed_ranges, dimensions, ranges, summed
from morok.ir.node import UOp, toposort
from morok.ir.ops import ALU, AxisKind, Op, Ops
from morok.ir.provenance import place
from morok.ir.scan import LAST, Scan, parts, scan_loops

GRID = 1 << 20  # elements of one array; kernels with more points than that run in pieces


@final
class Interpreter(Device):
    """Runs kernel graphs as they are; there is nothing to compile."""

    def __init__(self, name: str = "PYTHON", grid: int = GRID) -> None:
        self.name = name
        self.allocator = HostAllocator(name)
        self.grid = grid

    def compile(self, ast: UOp, name: str) -> InterpretedKernel:
        return InterpretedKernel(ast, name, self.grid)


@final
class InterpretedKernel:
    """A kernel in the form of docs/decisions/0001-kernel-form.md."""

    def __init__(self, ast: UOp, name: str, grid: int = GRID) -> None:
        self.name = name
        self.grid = grid
        self.effects = tuple(_effects(ast))
        self.axes = [_axes(effect) for effect in self.effects]

    def __call__(self, buffers: Sequence[Buffer], values: Mapping[str, int]) -> None:
        arrays = [buffer.array() for buffer in buffers]
        for effect, axes in zip(self.effects, self.axes, strict=True):
            _Run(self.name, arrays, values, axes, self.grid).effect(effect)


def run_kernel(ast: UOp, arrays: Sequence[Array], values: Mapping[str, int] | None = None) -> None:
    """Runs a kernel on flat NumPy arrays, for tests of graphs without tensors around them."""
    for effect in _effects(ast):
        _Run("kernel", list(arrays), values or {}, _axes(effect), GRID).effect(effect)


def _effects(ast: UOp) -> Iterator[UOp]:
    stack = [ast]
    while stack:
        node = stack.pop()
        if node.op in (Ops.SINK, Ops.GROUP):
            stack += reversed(node.src)
        elif node.op in (Ops.END, Ops.STORE):
            yield node
        else:
            raise DeviceError(f"a kernel stores something, but {node.op.name} does not", place=place(node))


def _axes(effect: UOp) -> dict[UOp, int]:
    """A number of an axis for each range; ranges that never meet in one node may share it.

    NumPy has 64 axes at most, and a kernel may have more loops than that one after another.
    """
    rivals: dict[UOp, set[UOp]] = {}
    nodes = toposort(effect)
    meetings = {ranges(node) for node in nodes}
    # What a loop closes need not depend on the loop; its value is spread over it all the same.
    meetings |= {
        frozenset(loops).union(*map(ranges, node.src)) for node in nodes if (loops := closed_ranges(node))
    }
    for alive in meetings:
        for r in alive:
            rivals.setdefault(r, set()).update(alive)
    axes: dict[UOp, int] = {}
    for r in sorted(rivals, key=lambda r: r.arg):
        taken = {axes[other] for other in rivals[r] if other in axes}
        axes[r] = next(axis for axis in itertools.count() if axis not in taken)
    return axes


class _Frame:
    """Values of nodes while some ranges stand at certain positions.

    A node's value is kept in the innermost frame whose ranges it depends on.
    """

    __slots__ = ("memo", "own", "parent", "positions")

    def __init__(self, parent: _Frame | None, positions: dict[UOp, Array]) -> None:
        self.parent = parent
        self.own = frozenset(positions)
        inherited: dict[UOp, Array] = {} if parent is None else parent.positions
        self.positions: dict[UOp, Array] = {**inherited, **positions}
        self.memo: dict[UOp, Any] = {}

    def home(self, node: UOp) -> _Frame:
        frame, alive = self, ranges(node)
        while frame.parent is not None and frame.own.isdisjoint(alive):
            frame = frame.parent
        return frame


@final
class _Run:
    """One effect of a kernel on given buffers."""

    def __init__(
        self, name: str, arrays: list[Array], values: Mapping[str, int], axes: dict[UOp, int], grid: int
    ) -> None:
        self.name = name
        self.arrays = arrays
        self.values = values
        self.axes = axes
        self.dims = 1 + max(axes.values(), default=-1)
        self.grid = grid
        self.sizes: dict[UOp, int] = {}
        self.running: frozenset[UOp] = frozenset()  # loops that something runs along: taken as a whole

    # --- loops

    def effect(self, effect: UOp) -> None:
        """Evaluate and store, in pieces of the output where the whole would be too large."""
        store = effect.src[0] if effect.op is Ops.END else effect
        loops = closed_ranges(effect)
        root = _Frame(None, {})
        self.running = frozenset(scan_loops(toposort(store)))
        for positions in self.pieces(loops, root, 1):
            self.store(store, loops, _Frame(root, positions))

    def size(self, r: UOp, frame: _Frame) -> int:
        """The number of iterations of a range."""
        known = self.sizes.get(r)
        if known is None:
            if ranges(r.src[0]):
                raise DeviceError(f"kernel {self.name} has a loop whose end depends on another loop")
            known = self.sizes[r] = max(0, int(self.value(r.src[0], frame)))
        return known

    def pieces(self, loops: Sequence[UOp], frame: _Frame, around: int) -> Iterator[dict[UOp, Array]]:
        """Positions for each range so that the product of their numbers stays within the grid."""
        for r in loops:
            if r.op is not Ops.RANGE:
                raise DeviceError(f"kernel {self.name} closes {r.op.name}, which is not a range")
        sizes = [self.size(r, frame) for r in loops]
        if 0 in sizes:
            return
        room = max(1, self.grid // max(1, around))
        steps = []
        for r, size in zip(reversed(loops), reversed(sizes), strict=True):
            if r in self.running:
                steps.append(size)
            elif r.arg[1] is AxisKind.ORDERED:  # a step may read what the one before has written
                steps.append(1)
            else:
                steps.append(min(size, room))
            room = max(1, room // steps[-1])
        cuts = [
            [self.along(r, np.arange(start, min(start + step, size))) for start in range(0, size, step)]
            for r, size, step in zip(loops, sizes, reversed(steps), strict=True)
        ]
        for chosen in itertools.product(*cuts):
            yield dict(zip(loops, chosen, strict=True))

    def along(self, r: UOp, positions: Array) -> Array:
        shape = [1] * self.dims
        shape[self.axes[r]] = positions.size
        return positions.reshape(shape)

    # --- values

    def value(self, root: UOp, frame: _Frame) -> Any:
        """The array (or, for an address, the place) that a node stands for."""
        stack = [root]
        while stack:
            node = stack[-1]
            memo = frame.home(node).memo
            if node in memo:
                stack.pop()
                continue
            waiting = [] if node.op in _LAZY else [s for s in node.src if s not in frame.home(s).memo]
            if waiting:
                stack += waiting
                continue
            stack.pop()
            memo[node] = self.compute(node, frame)
        return frame.home(root).memo[root]

    def compute(self, node: UOp, frame: _Frame) -> Any:
        handler = _HANDLERS.get(node.op)
        if handler is not None:
            return handler(self, node, frame)
        if node.op in ALU:
            return self.arithmetic(node, frame)
        raise DeviceError(
            f"kernel {self.name} has a {node.op.name}, which the interpreter does not know", place=place(node)
        )

    def arithmetic(self, node: UOp, frame: _Frame) -> Array:
        operands = [frame.home(s).memo[s] for s in node.src]
        own = node.src[-1].dtype  # of a choice, the type of its branches
        return evaluate_array(node.op, own, *operands, to=node.dtype)

    def check_position(self, node: UOp, frame: _Frame) -> Array:
        """A position; the first one that is outside is noted."""
        x, limit, _ = (frame.home(s).memo[s] for s in node.src)
        wrong = (x < 0) | (x >= limit)
        if wrong.any() and isinstance(node.arg, Slot):
            first = np.broadcast_to(x, wrong.shape)[wrong].flat[0]
            self.arrays[node.arg.buffer][node.arg.place] = np.asarray(first).astype(np.int64)
        return self.arithmetic(node, frame)

    def matrix_point(self, node: UOp, frame: _Frame) -> Array:
        """WMMA before it is given to warps: a·b + c at one point, in the type of the sum."""
        a, b, c = (frame.home(s).memo[s] for s in node.src[:3])
        x, y = (
            evaluate_array(Ops.CAST, s.dtype, v, to=node.dtype)
            for s, v in zip(node.src, (a, b), strict=False)
        )
        product = evaluate_array(node.arg.product, node.dtype, x, y, to=node.dtype)
        return evaluate_array(Ops.ADD, node.dtype, product, c, to=node.dtype)

    def with_maximum(self, node: UOp, frame: _Frame) -> Array:
        """A sum that machine code takes along with a maximum; here the maximum is known before."""
        found: Array = frame.home(node.src[0]).memo[node.src[0]]
        return found

    def constant(self, node: UOp, frame: _Frame) -> Array:
        return np.asarray(node.arg, dtype=storage(node.dtype))

    def variable(self, node: UOp, frame: _Frame) -> Array:
        name, low, high = node.arg
        value = self.values.get(name)
        if value is None:
            raise VariableError(f"kernel {self.name} needs a value for the variable {name}")
        if not low <= value <= high:
            raise VariableError(f"variable {name} lies in {low} … {high}, so it cannot be {value}")
        return np.asarray(value, dtype=storage(node.dtype))

    def range(self, node: UOp, frame: _Frame) -> Array:
        positions = frame.positions.get(node)
        if positions is None:
            raise DeviceError(f"kernel {self.name} uses the loop {node.arg} outside of it", place=place(node))
        return positions.astype(storage(node.dtype))

    def pointer(self, node: UOp, frame: _Frame) -> Array:
        if not 0 <= node.arg < len(self.arrays):
            raise DeviceError(
                f"kernel {self.name} wants buffer {node.arg} of {len(self.arrays)}", place=place(node)
            )
        found: Array = self.arrays[node.arg]
        return found

    # --- reductions

    def reduce(self, node: UOp, frame: _Frame) -> Any:
        """Values combined over all points of the ranges, each value by its own op."""
        values, loops = node.src[: len(node.arg)], closed_ranges(node)
        around = math.prod(
            frame.positions[r].size for r in ranges(node) if r in frame.positions and r not in loops
        )
        totals: list[Array | None] = [None] * len(values)
        for positions in self.pieces(loops, frame, around):
            inner = _Frame(frame, positions)
            for i, (value, op) in enumerate(zip(values, node.arg, strict=True)):
                part = self.combine(
                    op, value.dtype, self.spread(self.value(value, inner), loops, inner), loops
                )
                before = totals[i]
                totals[i] = part if before is None else evaluate_array(op, value.dtype, before, part)
        results = tuple(
            self.neutral(op, value.dtype) if total is None else total
            for total, value, op in zip(totals, values, node.arg, strict=True)
        )
        return results[0] if len(results) == 1 else results

    def neutral(self, op: Op, dtype: DType) -> Array:
        return np.full((1,) * self.dims, identity(op.name, dtype), dtype=storage(dtype))

    def spread(self, value: Any, loops: Sequence[UOp], frame: _Frame) -> Array:
        """The value at every point of the loops, also where it does not depend on them."""
        shape = [1] * self.dims if np.ndim(value) == 0 else list(np.shape(value))
        for r in loops:
            shape[self.axes[r]] = frame.positions[r].size
        spread: Array = np.broadcast_to(value, shape)
        return spread

    def combine(self, op: Op, dtype: DType, x: Array, loops: Sequence[UOp]) -> Array:
        """One half of an axis with the other, until one element is left."""
        if (op,) == LAST:
            for r in loops:
                x = np.take(x, [-1], axis=self.axes[r])
            return x
        for r in loops:
            axis = self.axes[r]
            x = np.moveaxis(x, axis, 0)
            while len(x) > 1:
                half = len(x) // 2
                y = evaluate_array(op, dtype, x[:half], x[half : 2 * half])
                x = np.concatenate((y, x[2 * half :])) if len(x) % 2 else y
            x = np.moveaxis(x, 0, axis)
        return x

    def scan(self, node: UOp, frame: _Frame) -> Array:
        """Values combined over the steps so far."""
        how: Scan = node.arg
        sources = parts(node)
        loops = sources.loops
        sizes = [self.size(r, frame) for r in loops]
        inner = _Frame(frame, {r: self.along(r, np.arange(n)) for r, n in zip(loops, sizes, strict=True)})
        found = [self.spread(self.value(v, inner), loops, inner) for v in sources.values]
        wide = np.broadcast_shapes(*map(np.shape, found))
        own = [self.axes[r] for r in loops]
        others = [axis for axis in range(self.dims) if axis not in own]
        rows = [np.broadcast_to(x, wide).transpose(own + others) for x in found]
        rows = [x.reshape(math.prod(sizes), *x.shape[len(own) :]) for x in rows]
        before = None
        if sources.start is not None:
            before = self.spread(self.value(sources.start, frame), (), frame).transpose(own + others)
            before = before.reshape(1, *before.shape[len(own) :])
        if how.op is Ops.MULACC:
            result = _recurrence(node.dtype, rows[0], rows[1], before)
        else:
            result = _running(how.op, node.dtype, rows[0])
            if before is not None:
                result = evaluate_array(how.op, node.dtype, before, result)
        result = result.reshape(*sizes, *result.shape[1:])
        result = result.transpose(np.argsort(own + others))
        for r in loops:
            result = np.take(result, frame.positions[r].reshape(-1), axis=self.axes[r])
        return result

    def pick(self, node: UOp, frame: _Frame) -> Array:
        picked: Array = frame.home(node.src[0]).memo[node.src[0]][node.arg]
        return picked

    # --- memory

    def address(self, node: UOp, frame: _Frame) -> tuple[Any, Array, Any]:
        """(memory, element, gate) of an INDEX."""
        gated = len(node.src) > 2 and node.src[-1].dtype.is_bool
        if len(node.src) != 2 + gated:
            raise DeviceError(f"kernel {self.name} has an index that is not flat", place=place(node))
        memory, where, *gate = (frame.home(s).memo[s] for s in node.src)
        return memory, where, gate[0] if gate else None

    def index(self, node: UOp, frame: _Frame) -> Any:
        if node.dtype.is_ptr:
            return self.address(node, frame)
        if node.src[0].op is Ops.BUFFERIZE:
            return self.read_local(node, frame)
        return self.read(node, *self.address(node, frame))

    def load(self, node: UOp, frame: _Frame) -> Array:
        memory, where, gate = frame.home(node.src[0]).memo[node.src[0]]
        found = self.read(node.src[0], memory, where, gate)
        if len(node.src) == 1 or gate is None:
            return found
        return np.where(gate, found, frame.home(node.src[1]).memo[node.src[1]])

    def read(self, node: UOp, memory: Array, where: Array, gate: Any) -> Array:
        self.check(node, "reads", memory.size, where, gate)
        if memory.size == 0:
            return np.zeros(np.broadcast_shapes(where.shape, np.shape(gate)), dtype=memory.dtype)
        if gate is None:
            return np.asarray(memory[where])
        where = np.where(gate, where, 0)
        return np.where(gate, memory[where], np.zeros((), dtype=memory.dtype))

    def check(self, node: UOp, verb: str, size: int, where: Array, gate: Any) -> None:
        """Every access under a true gate is inside of its buffer."""
        outside = (where < 0) | (where >= size)
        if gate is not None:
            outside = outside & gate
        if not outside.any():
            return
        wrong = np.broadcast_to(where, outside.shape)[outside].flat[0]
        source = node.src[0]
        what = f"buffer {source.arg}" if source.op is Ops.DEFINE_GLOBAL else "a local buffer"
        raise DeviceError(
            f"kernel {self.name} {verb} element {wrong} of {what}, which has {size} elements",
            place=place(node),
        )

    def bufferize(self, node: UOp, frame: _Frame) -> Array:
        """A local buffer: the last axis holds its elements row by row, the others are the loops around it."""
        loops = closed_ranges(node)
        sizes = [self.size(r, frame) for r in loops]
        inner = _Frame(frame, {r: self.along(r, np.arange(n)) for r, n in zip(loops, sizes, strict=True)})
        value = self.spread(self.value(node.src[0], inner), loops, inner)
        added = tuple(self.axes[r] for r in summed(node))
        if added:
            value = value.sum(axis=added, dtype=value.dtype, keepdims=True)
        own = [self.axes[r] for r in dimensions(node)]
        sizes = [self.size(r, frame) for r in dimensions(node)]
        others = [axis for axis in range(self.dims) if axis not in own]
        outer = [1 if axis in own else value.shape[axis] for axis in range(self.dims)]
        return value.transpose(others + own).reshape(*outer, math.prod(sizes))

    def read_local(self, node: UOp, frame: _Frame) -> Array:
        memory, where, gate = self.address(node, frame)
        self.check(node, "reads", memory.shape[-1], where, gate)
        where = np.asarray(where if gate is None else np.where(gate, where, 0))
        shape = np.broadcast_shapes(memory.shape[:-1], where.shape)
        if memory.shape[-1] == 0:
            return np.zeros(shape, dtype=memory.dtype)
        rows = np.broadcast_to(memory, (*shape, memory.shape[-1]))
        found = np.take_along_axis(rows, np.broadcast_to(where, shape)[..., None], axis=-1)[..., 0]
        return found if gate is None else np.where(gate, found, np.zeros((), dtype=memory.dtype))

    def store(self, node: UOp, loops: Sequence[UOp], frame: _Frame) -> None:
        """Writes one piece. Two points of the loops that write one element are a race, and an error."""
        memory, where, gate = self.value(node.src[0], frame)
        value = self.value(node.src[1], frame)
        self.check(node.src[0], "writes", memory.size, where, gate)
        where = self.spread(where, loops, frame)
        shape = np.broadcast_shapes(where.shape, np.shape(value), np.shape(gate))
        places, data = np.broadcast_to(where, shape).reshape(-1), np.broadcast_to(value, shape).reshape(-1)
        if gate is not None:
            chosen = np.broadcast_to(gate, shape).reshape(-1)
            places, data = places[chosen], data[chosen]
        if places.size > 1:
            first = int(places.min())
            visits = np.bincount(places - first)
            if visits.max() > 1:
                twice = first + int(visits.argmax())
                raise DeviceError(
                    f"kernel {self.name} writes element {twice} more than once", place=place(node)
                )
        memory[places] = data


def _running(op: Op, dtype: DType, rows: Array) -> Array:
    """Along the first axis everything up to each place: over one, then two, then four steps back."""
    reach = 1
    while reach < len(rows):
        rows = np.concatenate((rows[:reach], evaluate_array(op, dtype, rows[:-reach], rows[reach:])))
        reach *= 2
    return rows


def _recurrence(dtype: DType, factors: Array, added: Array, before: Array | None) -> Array:
    """h = a·h + b along the first axis, one step after the other: ∞ and NaN are where they arise."""
    last = np.zeros_like(added[:1]) if before is None else before
    found = []
    for factor, more in zip(factors, added, strict=True):
        last = evaluate_array(Ops.MULACC, dtype, factor[None], last, more[None])
        found.append(last)
    return np.concatenate(found) if found else added


# Sources of these are evaluated in frames of their own.
_LAZY = frozenset((Ops.REDUCE, Ops.BUFFERIZE, Ops.RANGE, Ops.SCAN))

_HANDLERS: dict[Op, Callable[[_Run, UOp, _Frame], Any]] = {
    Ops.CONST: _Run.constant,
    Ops.DEFINE_VAR: _Run.variable,
    Ops.RANGE: _Run.range,
    Ops.DEFINE_GLOBAL: _Run.pointer,
    Ops.REDUCE: _Run.reduce,
    Ops.SCAN: _Run.scan,
    Ops.PICK: _Run.pick,
    Ops.ONLINE: _Run.with_maximum,
    Ops.INDEX: _Run.index,
    Ops.LOAD: _Run.load,
    Ops.BUFFERIZE: _Run.bufferize,
    Ops.WMMA: _Run.matrix_point,
    Ops.CHECK: _Run.check_position,
}
