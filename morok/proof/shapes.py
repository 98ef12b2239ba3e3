"""Graphs for rules that are laws about more than arithmetic: reads under gates, reductions, lanes.

Such a rule has two values to compare all the same. Memory is an unknown function of the place, a reduction
over a few steps is the op on the value at each of them, a vector is its lanes; so Z3 sees whether both sides
are equal for every content of the memory. Loops have 0 to 3 steps, known or not, and all numbers lie at the
rules' thresholds, as in `expressions.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from morok.dtype import DType, bool_, float16, float32, identity, index, int8, int32, uint8
from morok.ir import build
from morok.ir.arithmetic.alu import defined
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import ALU, Op, Ops
from morok.proof.expressions import Maker, edge_values
from morok.proof.movements import chains
from morok.rewrite.rules import Rule

_ATTEMPTS = 400
_TYPES = (int32, float32, bool_, uint8)
_REDUCED: dict[Op, tuple[DType, ...]] = {
    Ops.ADD: (int32, uint8, float32), Ops.MAX: (int32, float16), Ops.MIN: (int32,), Ops.MUL: (uint8,),
    Ops.OR: (bool_,), Ops.AND: (bool_,),
}  # fmt: skip
MOVEMENTS = "schedule.views"  # these are compared element by element
Source = Callable[[Maker], Iterator[UOp]]


def graphs_for(rule: Rule) -> Iterator[UOp] | None:
    """What to try the rule on; None for arithmetic, whose graphs follow from the left side."""
    name = rule.name.rpartition(".")[0]
    source = _SOURCES.get(name)
    return None if source is None else _many(rule.name, source)


def _many(name: str, source: Source) -> Iterator[UOp]:
    for attempt in range(_ATTEMPTS):
        yield from source(Maker(f"{name} {attempt}"))


def _read(maker: Maker, place: UOp, gate: UOp | None, dtype: DType, number: int = 0) -> UOp:
    buffer = build.define_global(dtype, 64, number)
    return make(Ops.INDEX, dtype, (buffer, place) if gate is None else (buffer, place, gate))


def _zero(dtype: DType) -> UOp:
    return const(dtype, False if dtype.is_bool else 0.0 if dtype.is_float else 0)


# --- reads under gates


def _conjunction(parts: list[UOp]) -> UOp:
    total = parts[0]
    for part in parts[1:]:
        total = alu(Ops.AND, total, part)
    return total


def _reads(maker: Maker) -> Iterator[UOp]:
    """A choice of a read, the read itself, and the read as a load."""
    rng = maker.rng
    dtype = rng.choice(_TYPES)
    parts = [maker.expression(bool_, 1) for _ in range(3)]
    asked = _conjunction(rng.sample(parts, rng.randint(1, 2)))
    if rng.random() < 0.15:
        asked = alu(Ops.OR, *parts[:2])
    gate: UOp | None = _conjunction(rng.sample(parts, rng.randint(1, 3)))
    if rng.random() < 0.3:
        gate = rng.choice((None, const(bool_, True), const(bool_, False), alu(Ops.OR, *parts[:2])))
    place = maker.expression(index, rng.choice((0, 1, 1, 2)))
    read = _read(maker, place, gate, dtype)
    others = [_zero(dtype), _zero(dtype), _read(maker, place, None, dtype, 1)]
    others += [const(dtype, v) for v in edge_values(dtype)[:3]]
    if dtype.is_float:
        others.append(const(dtype, -0.0))
    yield alu(Ops.WHERE, asked, read, rng.choice(others))
    yield read
    address = make(Ops.INDEX, read.src[0].dtype, read.src)
    yield make(Ops.LOAD, dtype, (address,) if gate is None else (address, const(dtype, 1)))
    yield build.rng(rng.choice((1, 1, 2)), 0)


def _reads_in_loops(maker: Maker) -> Iterator[UOp]:
    """Reads, and comparisons of a place in a window with the end of what it slides over."""
    yield from _reads(maker)
    rng = maker.rng
    n = make(Ops.DEFINE_VAR, index, (), ("n", rng.randint(1, 6), rng.choice((7, 64))))
    step, reach, more = rng.randint(1, 4), rng.randint(1, 5), rng.randint(-1, 2)
    size = _plus(n, more)
    if rng.random() < 0.3:  # itself a number of places
        size = _plus(alu(Ops.FLOORDIV, size, const(index, rng.randint(2, 3))), 1)
    last = _plus(size, -reach + rng.choice((0, 0, 0, 1, -1)))
    count = last if step == 1 else alu(Ops.FLOORDIV, last, const(index, step))
    place = build.rng(_plus(count, 1), 0)
    factor = rng.choice((step, step, 1, step + 1))
    place = place if factor == 1 else alu(Ops.MUL, place, const(index, factor))
    offset = build.rng(reach, 1) if rng.random() < 0.7 else const(index, rng.randint(0, reach))
    yield alu(Ops.CMPLT, alu(Ops.ADD, place, offset), size)


def _plus(x: UOp, number: int) -> UOp:
    return alu(Ops.ADD, x, const(index, number)) if number else x


# --- reductions


def _loop(maker: Maker, number: int, op: Op) -> UOp:
    rng = maker.rng
    if op is Ops.MUL:  # products in another order are hard to compare
        return build.rng(rng.randint(1, 2), number)
    if rng.random() < 0.25:
        low = rng.choice((0, 0, 1))
        return build.rng(make(Ops.DEFINE_VAR, index, (), (f"n{number}", low, rng.randint(1, 3))), number)
    return build.rng(rng.randint(1, 3), number)


def _inside(maker: Maker, loops: list[UOp], dtype: DType) -> UOp:
    """A value that depends on the loops, or not."""
    rng = maker.rng
    line = _line(maker, loops)
    kind = rng.random()
    if kind < 0.35:
        return _read(maker, line, None if rng.random() < 0.7 else _asked(maker, loops), dtype)
    if kind < 0.5 or dtype.is_bool:
        return _read(maker, maker.variable(index), None, dtype, 1)
    if kind < 0.6:
        return const(dtype, rng.choice((0, 1, 3)))
    if kind < 0.75 and dtype.is_bounded_int:
        return build.cast(line, dtype)
    return build.cast(_asked(maker, loops), dtype)


def _line(maker: Maker, loops: list[UOp]) -> UOp:
    rng = maker.rng
    total = rng.choice(loops)
    factor = rng.choice((1, 1, -1, 2, -3))
    total = total if factor == 1 else alu(Ops.MUL, total, const(index, factor))
    if rng.random() < 0.4:
        total = alu(Ops.ADD, total, _small(maker))
    return alu(Ops.ADD, total, const(index, rng.randint(-2, 3))) if rng.random() < 0.4 else total


def _small(maker: Maker) -> UOp:
    low = maker.rng.choice((-2, 0, 0, 1))
    return make(Ops.DEFINE_VAR, index, (), (f"e{maker.rng.randrange(2)}{low}", low, 4))


def _asked(maker: Maker, loops: list[UOp]) -> UOp:
    """A condition on the loops, or on what does not change in them."""
    rng = maker.rng
    if rng.random() < 0.25:
        return alu(Ops.CMPLT, _small(maker), const(index, rng.randint(-1, 3)))
    left, right = _line(maker, loops), rng.choice((_small(maker), const(index, rng.randint(-1, 4))))
    if rng.random() < 0.3:
        left, right = build.cast(left, int32), build.cast(right, int32)
    sides = (left, right) if rng.random() < 0.5 else (right, left)
    condition = alu(rng.choice((Ops.CMPEQ, Ops.CMPEQ, Ops.CMPLT)), *sides)
    if rng.random() < 0.15:
        condition = alu(Ops.NOT, condition)
    return alu(Ops.AND, condition, _asked(maker, loops)) if rng.random() < 0.25 else condition


def _reductions(maker: Maker) -> Iterator[UOp]:
    rng = maker.rng
    op: Op = rng.choice(list(_REDUCED))
    dtype = rng.choice(_REDUCED[op])
    loops = [_loop(maker, i, op) for i in range(rng.randint(1, 2))]
    inner = [_loop(maker, 7, op)]
    neutral = const(dtype, identity(op.name, dtype))
    value = _inside(maker, loops, dtype)
    if rng.random() < 0.4:
        other_op = op if rng.random() < 0.8 else rng.choice([o for o in _REDUCED if dtype in _REDUCED[o]])
        value = build.reduce(_inside(maker, [*loops, *inner], dtype), other_op, inner)
    if not dtype.is_bool and not dtype.is_float and rng.random() < 0.35:
        factor = rng.choice(
            (_inside(maker, loops, dtype), const(dtype, 3), _read(maker, _small(maker), None, dtype, 2))
        )
        value = alu(Ops.MUL, *rng.sample((value, factor), 2))
    if rng.random() < 0.45:
        other = (
            neutral
            if rng.random() < 0.85
            else const(dtype, identity("ADD", dtype) if not dtype.is_bool else True)
        )
        branches = (value, other) if rng.random() < 0.8 else (other, value)
        value = alu(Ops.WHERE, _asked(maker, loops), *branches)
    elif dtype.is_bool and rng.random() < 0.6:
        value = _asked(maker, loops)
    elif dtype.is_bounded_int and rng.random() < 0.2:
        value = alu(Ops.ADD, value, _inside(maker, loops, dtype))
    yield build.reduce(value, op, loops)
    two = build.reduce((value, _inside(maker, loops, dtype)), (op, op), loops)
    yield make(Ops.PICK, dtype, (two,), rng.randrange(2))
    single = build.rng(1, 5)
    yield make(Ops.REDUCE, dtype, (value, *loops, const(index, 0)), (op,))
    yield make(Ops.REDUCE, dtype, (value, const(index, 0)), (op,))
    yield build.reduce(value, op, [*loops, single])


def _reads_and_loops(maker: Maker) -> Iterator[UOp]:
    yield from _reads(maker)
    yield from _reductions(maker)


# --- lanes


def _vector(maker: Maker, dtype: DType, lanes: int) -> UOp:
    rng = maker.rng
    kind = rng.random()
    if kind < 0.35:
        return make(Ops.VCONST, dtype.vec(lanes), (), tuple(maker.constant(dtype).arg for _ in range(lanes)))
    if kind < 0.45:
        return const(dtype.vec(lanes), maker.constant(dtype).arg)
    if kind < 0.75 or lanes % 2:
        each = (maker.variable(dtype) for _ in range(lanes))
        return make(Ops.VECTORIZE, dtype.vec(lanes), tuple(each))
    halves = (_vector(maker, dtype, lanes // 2) for _ in range(2))
    if lanes > 2:
        return make(Ops.CAT, dtype.vec(lanes), tuple(halves))
    return make(Ops.VECTORIZE, dtype.vec(lanes), (maker.variable(dtype), maker.constant(dtype)))


def _lanes(maker: Maker) -> Iterator[UOp]:
    rng = maker.rng
    dtype, lanes = rng.choice((int8, uint8, int32, bool_, float32)), rng.choice((2, 3, 4, 8, 16, 32))
    x, y = _vector(maker, dtype, lanes), _vector(maker, dtype, lanes)
    constants = [
        make(Ops.VCONST, dtype.vec(lanes), (), tuple(maker.constant(dtype).arg for _ in range(lanes)))
        for _ in range(3)
    ]
    yield make(Ops.CAT, dtype.vec(2 * lanes), (x, y))
    yield make(Ops.CAT, dtype.vec(2 * lanes), (constants[0], constants[1]))
    yield make(Ops.VECTORIZE, dtype.vec(2), (maker.constant(dtype), maker.constant(dtype)))
    picked = tuple(rng.randrange(lanes) for _ in range(rng.randint(1, lanes)))
    yield make(Ops.GEP, dtype.vec(len(picked)) if len(picked) > 1 else dtype, (x,), picked)
    start = rng.randrange(lanes)
    run = tuple(range(start, lanes))
    lane = make(Ops.GEP, dtype.vec(len(run)) if len(run) > 1 else dtype, (x,), run)
    yield make(Ops.CAT, dtype.vec(lanes + len(run)), (lane, y)) if len(run) > 1 else lane
    single = [make(Ops.GEP, dtype, (x,), (i,)) for i in picked]
    if len(single) > 1:
        yield make(Ops.VECTORIZE, dtype.vec(len(single)), tuple(single))
    for op in rng.sample(sorted(ALU, key=lambda o: o.name), 8):
        yield from _applied(op, dtype, rng.choice(([x, y, x], constants, [constants[0], x, y])))
    for by in (Ops.ADD, Ops.MAX, Ops.MUL):
        if not dtype.is_bool and not dtype.is_float:
            yield make(Ops.VREDUCE, dtype, (x,), by)


def _applied(op: Op, dtype: DType, operands: list[UOp]) -> Iterator[UOp]:
    lanes = operands[0].dtype.lanes
    if op is Ops.POW and not dtype.is_float:
        return  # multiplied out, a power of unknown integers takes the solver all of the memory there is
    if op is Ops.WHERE:
        condition = make(Ops.VCONST, bool_.vec(lanes), (), tuple(i % 3 == 0 for i in range(lanes)))
        yield alu(op, condition, *operands[:2])
    elif op in (Ops.CAST, Ops.BITCAST):
        if op is Ops.CAST:
            yield make(op, int32.vec(lanes), (operands[0],))
    elif defined(op, dtype) and op.arity > 0:
        to = bool_ if op.is_compare else dtype
        yield make(op, to.vec(lanes), tuple(operands[: op.arity]))


_SOURCES: dict[str, Source] = {
    "schedule.gates": _reads_in_loops,
    "codegen.gates": _reads_and_loops,
    "codegen.certain": _reads,
    "codegen.add_loads": _reads,
    "schedule.reductions": _reductions,
    "schedule.collapse": _reductions,
    "codegen.lanes": _lanes,
    "codegen.devectorize": _lanes,
    MOVEMENTS: chains,
}


def is_shaped(rule: Rule) -> bool:
    """Whether graphs for the rule are made here."""
    return rule.name.rpartition(".")[0] in _SOURCES
