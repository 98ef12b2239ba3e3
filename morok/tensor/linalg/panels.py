"""Blocked factorisations: a panel of a few columns is factored step by step, the rest gets one product.

    for b in range(blocks):
        panel = cut(state, b)                    # a strip of columns, which stays in the first cache
        for k in range(width): panel = step(panel, b, k)
        state = update(state, panel, b)          # what the panel means for all other columns

The three are traced once, with variables in place of b and k, and compiled as plans of their own. Steps look
at a panel instead of the whole matrix, and nearly all of the arithmetic is that of matrix products.
"""

from __future__ import annotations

import atexit
import math
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, NamedTuple, final

from morok import dtype as dt
from morok.caches import Cache
from morok.device.buffer import Buffer
from morok.device.registry import get_device
from morok.forks import renewed
from morok.ir.memory import base_of
from morok.knobs import compile_environment
from morok.runtime.plan import ExecutionPlan
from morok.runtime.turns import Turns
from morok.schedule.schedule import schedule
from morok.tensor.arrays import reduce
from morok.tensor.arrays.arrange import matrix_transpose
from morok.tensor.arrays.index import take_along_dim
from morok.tensor.arrays.movement import expand, narrow
from morok.tensor.arrays.padding import pad
from morok.tensor.calls.tracing import is_tracing
from morok.tensor.core import iota
from morok.tensor.creation.constructors import contiguous
from morok.tensor.elementwise import arithmetic
from morok.tensor.elementwise.comparison import eq, where
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.functions import rsqrt, sqrt
from morok.tensor.elementwise.operators import T
from morok.tensor.export import realize
from morok.tensor.linalg.loops import tensor_on
from morok.tensor.linalg.products import matmul
from morok.tensor.linalg.steps import least_square
from morok.tensor.memory.names import new_buffer
from morok.tensor.memory.states import view_of
from morok.tensor.realize import memory_of
from morok.tensor.sizes import Variable, concrete_shape

WIDTH = 32  # columns of a panel
_KEPT = 64


class Blocked(NamedTuple):
    """An algorithm by panels: three functions, and what they depend on besides shapes."""

    cut: Callable[..., Any]  # (state, block, *key) → panel
    step: Callable[..., Any]  # (panel, block, k, *key) → panel
    update: Callable[..., Any]  # (state, panel, block, *key) → state


@final
class _Stage:
    """A function of tensors and numbers as a plan, from memory to memory."""

    def __init__(
        self, like: Any, shapes: Sequence[tuple[int, ...]], counts: dict[str, int], function: Any
    ) -> None:
        self._nodes = [new_buffer(like.dtype, math.prod(shape), like.device) for shape in shapes]
        views = [like._new(view_of(node, s)) for node, s in zip(self._nodes, shapes, strict=True)]
        numbers = [Variable(name, 0, n - 1).bind(0) if n > 1 else 0 for name, n in counts.items()]
        made = function(*views, *numbers)
        self.shape = concrete_shape(made.shape)
        root = contiguous(made).uop
        found = schedule([root])
        self._target = base_of(found.results[root])
        plan = ExecutionPlan(found)
        self._turns = Turns(plan)
        self._names = [name for name in counts if name in plan.limits]

    def begin(self, *turns: tuple[Buffer, Sequence[Buffer]]) -> None:
        """(result, sources) of each turn."""
        nodes = (self._target, *self._nodes)
        self._turns.begin([dict(zip(nodes, (to, *of), strict=True)) for to, of in turns])

    def run(self, turn: int, **values: int) -> None:
        self._turns.run(turn, {name: values[name] for name in self._names})

    def end(self) -> None:
        self._turns.end()


@final
class _Stages:
    """What an algorithm is compiled to, for one shape."""

    def __init__(self, cut: _Stage, step: _Stage, update: _Stage) -> None:
        self.cut, self.step, self.update = cut, step, update
        self.lock = renewed(self, "lock", Lock)


_stages: Cache[Any, _Stages] = Cache("linalg.panels", _KEPT)
atexit.register(_stages.clear)  # their memory is given back while there is somebody to take it


def in_panels(shape: Any, count: int) -> bool:
    """Whether so many columns are worth panels: few steps are done sooner on the whole matrix."""
    square = shape[-2] == shape[-1]
    return count >= 3 * WIDTH and (square or count % WIDTH == 0) and 0 not in shape


def bordered(x: T) -> T:
    """A square matrix with a unit matrix behind it, up to a whole number of panels: (A 0; 0 1)."""
    (size,) = concrete_shape(x.shape[-1:])
    more = -size % WIDTH
    if not more:
        return x
    wide = pad(x, [*[None] * (x.ndim - 2), (0, more), (0, more)])
    i, j = _rows(wide), _columns(wide)
    found: T = where(eq(i, j) & (i >= size), 1.0, wide)
    return found


def by_panels(x: T, count: int, method: Blocked, *key: Any) -> T:
    """The state after panels of `WIDTH` columns have been dealt with, `count` columns in all."""
    blocks = count // WIDTH
    if is_tracing():
        for block in range(blocks):
            panel = contiguous(method.cut(x, block, *key))
            for k in range(WIDTH):
                panel = contiguous(method.step(panel, block, k, *key))
            x = contiguous(method.update(x, panel, block, *key))
        return x
    state = realize(contiguous(x))
    shape = concrete_shape(state.shape)
    stages = _compiled(state, shape, blocks, method, key)
    device = get_device(state.device)
    first = memory_of(state)
    a, b = (device.buffer(math.prod(shape), x.dtype) for _ in range(2))
    p, q = (device.buffer(math.prod(stages.cut.shape), x.dtype) for _ in range(2))
    with stages.lock:
        _run(stages, blocks, (first, a, b), (p, q))
    return tensor_on(x, b if blocks % 2 == 0 else a, shape)


def _run(stages: _Stages, blocks: int, whole: tuple[Buffer, ...], strips: tuple[Buffer, ...]) -> None:
    """`whole` are the first state, which is only read, and two that take turns."""
    (first, a, b), (p, q) = whole, strips
    cut, step, update = stages.cut, stages.step, stages.update
    last = strips[WIDTH % 2]
    cut.begin((p, [first]), (p, [a]), (p, [b]))
    step.begin((q, [p]), (p, [q]))
    update.begin((a, [first, last]), (b, [a, last]), (a, [b, last]))
    for block in range(blocks):
        turn = 0 if not block else 2 - block % 2
        cut.run(turn, block=block)
        for k in range(WIDTH):
            step.run(k % 2, block=block, k=k)
        update.run(turn, block=block)
    for stage in (cut, step, update):
        stage.end()


def _compiled(
    state: Any, shape: tuple[int, ...], blocks: int, method: Blocked, key: tuple[Any, ...]
) -> _Stages:
    name = (method, key, shape, blocks, state.dtype, state.device, compile_environment())
    found = _stages.get(name)
    if found is None:
        cut = _Stage(state, [shape], {"block": blocks}, lambda s, b: method.cut(s, b, *key))
        numbers = {"block": blocks, "k": WIDTH}
        step = _Stage(state, [cut.shape], numbers, lambda p, b, k: method.step(p, b, k, *key))
        both = [shape, cut.shape]
        update = _Stage(state, both, {"block": blocks}, lambda s, p, b: method.update(s, p, b, *key))
        found = _stages[name] = _Stages(cut, step, update)
    return found


# --- pieces


def _rows(x: Any) -> Any:
    return x._new(iota((*(1,) * (x.ndim - 2), x.shape[-2], 1), x.ndim - 2, dt.int32))


def _columns(x: Any) -> Any:
    return x._new(iota((*(1,) * (x.ndim - 2), 1, x.shape[-1]), x.ndim - 1, dt.int32))


def _strip(x: Any, block: Any) -> Any:
    return narrow(x, -1, block * WIDTH, WIDTH)


def _put_back(x: Any, panel: Any, block: Any) -> Any:
    """x with a panel in the place of its columns."""
    none: list[Any] = [None] * (x.ndim - 1)
    before = block * WIDTH
    spread = pad(panel, [*none, (before, x.shape[-1] - WIDTH - before)])
    j = _columns(x)
    return where((j >= before) & (j < before + WIDTH), spread, x)


def unit_inverse(x: Any) -> Any:
    """The inverse of unit lower triangles, of which what lies below the diagonal is given; sizes double.

    (A 0; B C)⁻¹ = (A⁻¹ 0; -C⁻¹ B A⁻¹ C⁻¹): with W the inverses of the diagonal's blocks and N the blocks
    beside them, the next W is W - W N W.
    """
    size = concrete_shape(x.shape)[-1]
    i, j = _rows(x), _columns(x)
    found = where(eq(i, j), 1.0, where(eq(i // 2, j // 2) & (i > j), -x, 0.0))
    half = 2
    while half < size:
        beside = eq(i // (2 * half), j // (2 * half)) & (i // half > j // half)
        found = contiguous(found)
        found = found - matmul(found, contiguous(matmul(where(beside, x, 0.0), found)))
        half *= 2
    return contiguous(found)


# --- LU: (A | order | signs), as `steps.lu`


def _lu_cut(x: Any, block: Any, columns: int, pivot: bool) -> Any:
    """The panel, the numbers of its rows, and ones: this panel's swaps."""
    panel = _strip(x, block)
    i = cast(_rows(x), x.dtype)
    none: list[Any] = [None] * (x.ndim - 1)
    j = _columns(pad(panel, [*none, (0, 2)]))
    wide = pad(panel, [*none, (0, 2)])
    return where(eq(j, WIDTH), i, where(eq(j, WIDTH + 1), 1.0, wide))


def _lu_step(x: Any, block: Any, k: Any, columns: int, pivot: bool) -> Any:
    i, j = _rows(x), _columns(x)
    at = block * WIDTH + k
    column = narrow(x, -1, k, 1)
    if pivot:
        size = where(i >= at, arithmetic.abs(column), -1.0)
        p = contiguous(reduce.argmax(size, -2, keepdim=True))
        row = take_along_dim(x, expand(p, [*x.shape[:-2], 1, x.shape[-1]]), -2)
        head = take_along_dim(column, p, -2)
        x, column = (
            where(eq(i, at), new, where(eq(i, p), narrow(old, -2, at, 1), old))
            for new, old in ((row, x), (head, column))
        )
    else:
        row = narrow(x, -2, at, 1)
        head = narrow(row, -1, k, 1)
    factor = column / where(eq(head, 0.0), 1.0, head)
    below = i > at
    found = where(below & (j > k) & (j < WIDTH), x - factor * row, x)
    found = where(below & eq(j, k), factor, found)
    if not pivot:
        return found
    swapped = eq(i, at) & eq(j, WIDTH + 1)
    return where(swapped, where(eq(p, at), 1.0, -1.0), found)


def _lu_update(x: Any, panel: Any, block: Any, columns: int, pivot: bool) -> Any:
    """Rows in their new order, L⁻¹ applied to those of the block, their multiples taken from those below."""
    strip, first = narrow(panel, -1, 0, WIDTH), block * WIDTH
    if pivot:
        order = cast(narrow(panel, -1, WIDTH, 1), dt.int64)
        x = contiguous(take_along_dim(x, expand(order, x.shape), -2))
    i, j = _rows(strip), _columns(strip)
    # the rows of the block are those that L's part of it changes, too
    factors = where(i - first > j, strip, 0.0)
    inverse = unit_inverse(contiguous(narrow(factors, -2, first, WIDTH)))
    change = contiguous(matmul(factors, inverse))
    j = _columns(x)
    rest = x - matmul(change, contiguous(narrow(x, -2, first, WIDTH)))
    found = where((j >= first + WIDTH) & (j < columns), rest, x)
    signs = narrow(panel, -1, WIDTH + 1, 1)
    found = where(eq(j, columns + 1), found * signs, found) if pivot else found
    return _put_back(found, strip, block)


LU = Blocked(_lu_cut, _lu_step, _lu_update)


# --- Cholesky


def _cholesky_step(x: Any, block: Any, k: Any) -> Any:
    i, j = _rows(x), _columns(x)
    at = block * WIDTH + k
    column = narrow(x, -1, k, 1)
    scale = rsqrt(narrow(column, -2, at, 1))
    across = matrix_transpose(narrow(column, -2, block * WIDTH, WIDTH)) * scale
    column = column * scale
    return where(eq(j, k), where(i >= at, column, 0.0), where(j > k, x - column * across, x))


def _cholesky_update(x: Any, panel: Any, block: Any) -> Any:
    i, j, first = _rows(panel), _columns(x), block * WIDTH
    below = contiguous(where(i >= first + WIDTH, panel, 0.0))
    found = x - matmul(below, matrix_transpose(below))
    return _put_back(where(j >= first + WIDTH, found, x), panel, block)


CHOLESKY = Blocked(_strip, _cholesky_step, _cholesky_update)


# --- QR: (A | the diagonal of R), where reflections stay in A, from the diagonal on down


def _qr_cut(x: Any, block: Any, columns: int) -> Any:
    none: list[Any] = [None] * (x.ndim - 1)
    return pad(_strip(x, block), [*none, (0, 1)])


def _qr_step(x: Any, block: Any, k: Any, columns: int) -> Any:
    """Column k reflected onto the upper triangle, and those behind it along with it; as `steps.reflect`."""
    i, j = _rows(x), _columns(x)
    at = block * WIDTH + k
    column = narrow(x, -1, k, 1)
    tail = where(i > at, column, 0.0)
    below = contiguous(reduce.sum(tail * tail, -2, keepdim=True))
    head = narrow(column, -2, at, 1)
    flat = below < least_square(x.dtype)
    length = sqrt(head * head + below)
    far = where(head < 0.0, -length, length)
    tip = head + far
    scale = where(flat, 0.0, rsqrt(where(flat, 1.0, tip * tip + below) * 0.5))
    v = contiguous(where(eq(i, at), tip, tail) * scale)
    along = contiguous(reduce.sum(v * x, -2, keepdim=True))
    found = where((j > k) & (j < WIDTH), x - v * along, x)
    found = where(eq(j, k) & (i >= at), v, found)
    return where(eq(j, WIDTH) & eq(i, at), where(flat, head, -far), found)


def _reflected(x: Any, v: Any, inverse: Any) -> Any:
    """x reflected by all columns of v, one after the other: x - V T Vᵀ x."""
    along = contiguous(matmul(matrix_transpose(v), x))
    return x - matmul(v, contiguous(matmul(inverse, along)))


def _qr_update(x: Any, panel: Any, block: Any, columns: int) -> Any:
    strip, first = narrow(panel, -1, 0, WIDTH), block * WIDTH
    v = contiguous(where(_rows(strip) - first >= _columns(strip), strip, 0.0))
    inverse = unit_inverse(contiguous(matmul(matrix_transpose(v), v)))
    j = _columns(x)
    found = where((j >= first + WIDTH) & (j < columns), _reflected(x, v, inverse), x)
    found = where(eq(j, columns), x + narrow(panel, -1, WIDTH, 1), found)
    return _put_back(found, strip, block)


QR = Blocked(_qr_cut, _qr_step, _qr_update)


def unreflect_block(x: Any, k: Any, width: int, count: int) -> Any:
    """(Q | V) with a panel of the reflections of V applied to Q, the last panel first."""
    v = contiguous(narrow(x, -1, -k * WIDTH + (width + count - WIDTH), WIDTH))
    inverse = unit_inverse(contiguous(matmul(matrix_transpose(v), v)))
    return where(_columns(x) < width, _reflected(x, v, matrix_transpose(inverse)), x)
