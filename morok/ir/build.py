"""Constructors: one function per kind of node, with the checks that a raw `make` does not do.

They take Python numbers where that is unambiguous, give back a source itself where the operation would change
nothing, and refuse with one sentence that says what was wrong and what would be right. Constructors of
movement ops are in `movement.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from morok.dtype import AddrSpace, DType, PtrDType, bool_, void
from morok.dtype import index as index_dtype
from morok.errors import DTypeError, IRError, MorokError, VariableError
from morok.ir.bounds import bounds
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import AxisKind, Op, Ops
from morok.ir.provenance import place

# Ops that a reduction may combine with: associative, commutative, with a neutral element.
REDUCE_OPS: frozenset[Op] = frozenset((Ops.ADD, Ops.MUL, Ops.MAX, Ops.MIN, Ops.AND, Ops.OR, Ops.XOR))


def _node(value: Any, dtype: DType, what: str) -> UOp:
    """A node, or a Python number as a constant of `dtype`."""
    if isinstance(value, UOp):
        return value
    if isinstance(value, (bool, int, float)):
        return const(dtype, value)
    raise IRError(f"{what} must be a node or a number, not {value!r}")


def _bad(error: type[MorokError], message: str, node: UOp | None = None) -> MorokError:
    return error(message, place=place(node) if node is not None else None)


# --- variables and loops


def variable(name: str, lo: int, hi: int, dtype: DType = index_dtype) -> UOp:
    """An integer known only when the program runs, between `lo` and `hi` (both included)."""
    if not str(name).isidentifier():
        raise _bad(IRError, f"a variable needs a name like n, not {name!r}")
    if not (type(lo) is int and type(hi) is int and lo <= hi):
        raise _bad(VariableError, f"variable {name} needs whole bounds lo <= hi, not {lo!r} and {hi!r}")
    if not (dtype.is_int and dtype.lanes == 1):
        raise _bad(DTypeError, f"variable {name} must be an integer, not {dtype}")
    fits = dtype.is_index or dtype.min <= lo <= hi <= dtype.max
    if not fits:
        raise _bad(VariableError, f"the bounds {lo} … {hi} of variable {name} do not fit in {dtype}")
    return make(Ops.DEFINE_VAR, dtype, (), (name, lo, hi), depth=2)


def bind(var: UOp, value: int | UOp) -> UOp:
    """The variable together with its value in this run."""
    if var.op is not Ops.DEFINE_VAR:
        raise _bad(VariableError, f"only a variable can be bound, not {var.op.name}", var)
    name, lo, hi = var.arg
    bound = _node(value, var.dtype, f"the value of variable {name}")
    if bound.dtype is not var.dtype:
        raise _bad(DTypeError, f"variable {name} is {var.dtype}, its value is {bound.dtype}", var)
    low, high = bounds(bound)
    if not (high >= lo and low <= hi):
        wrong = str(low) if low == high else f"{low} … {high}"
        raise _bad(VariableError, f"variable {name} lies in {lo} … {hi}, so it cannot be {wrong}", var)
    return make(Ops.BIND, var.dtype, (var, bound), depth=2)


def rng(end: int | UOp, number: int, kind: AxisKind = AxisKind.LOOP) -> UOp:
    """A loop index 0 … end-1. Its number tells it from others and says which loop is further out."""
    stop = _node(end, index_dtype, "the end of a range")
    if not stop.dtype.is_int:
        raise _bad(DTypeError, f"the end of a range must be an integer, not {stop.dtype}", stop)
    if not isinstance(kind, AxisKind):
        raise _bad(IRError, f"a range needs an AxisKind, not {kind!r}")
    if type(number) is not int:
        raise _bad(IRError, f"a range needs a whole number to be told by, not {number!r}")
    return make(Ops.RANGE, stop.dtype, (stop,), (number, kind), depth=2)


def special(name: str, end: int | UOp) -> UOp:
    """A hardware index 0 … end-1, such as gidx0."""
    stop = _node(end, index_dtype, "the end of a hardware index")
    if not stop.dtype.is_int:
        raise _bad(DTypeError, f"the end of {name} must be an integer, not {stop.dtype}", stop)
    return make(Ops.SPECIAL, stop.dtype, (stop,), name, depth=2)


def reduce(values: UOp | Sequence[UOp], ops: Op | Sequence[Op], ranges: Sequence[UOp]) -> UOp:
    """Values combined over all points of the ranges.

    One value gives a node of its type. Several reduce together in one loop; `pick` takes the results apart.
    """
    many = (values,) if isinstance(values, UOp) else tuple(values)
    how = (ops,) if isinstance(ops, Op) else tuple(ops)
    if not len(many) == len(how) > 0:
        raise _bad(IRError, f"REDUCE of {len(many)} values needs as many ops, got {len(how)}")
    for op in how:
        if op not in REDUCE_OPS:
            raise _bad(IRError, f"{op.name} cannot reduce: it is not associative and commutative")
    for r in ranges:
        if not r.dtype.is_int:
            raise _bad(DTypeError, f"REDUCE runs over ranges, not over {r.op.name} of {r.dtype}", r)
    if not ranges and len(many) == 1:
        return many[0]
    return make(Ops.REDUCE, many[0].dtype if len(many) == 1 else void, (*many, *ranges), how, depth=2)


def pick(node: UOp, i: int) -> UOp:
    """Result number `i` of a reduction of several values."""
    count = len(node.arg) if node.op is Ops.REDUCE else 0
    if not 0 <= i < count:
        raise _bad(IRError, f"{node.op.name} has {count} results to pick from, so there is no {i}", node)
    return node if count == 1 else make(Ops.PICK, node.src[i].dtype, (node,), i, depth=2)


def end(body: UOp, *ranges: UOp) -> UOp:
    """Closes loops after the body, which is usually a STORE."""
    return make(Ops.END, void, (body, *ranges), depth=2) if ranges else body


def sink(*xs: UOp, arg: Any = None) -> UOp:
    """The root of a graph: everything that has to happen."""
    return make(Ops.SINK, void, xs, arg, depth=2)


def group(*xs: UOp) -> UOp:
    """Several effects as one; a single effect is itself."""
    return xs[0] if len(xs) == 1 else make(Ops.GROUP, void, xs, depth=2)


APPROXIMATE = "approximate"
WEIGHT = "weight"  # exp of what is not above 0: results below the smallest normal number may count as 0
RARE = "rare"  # a choice of which the first side is hardly ever taken


def approximate_op(op: Op, x: UOp) -> UOp:
    """A function of a float32 for a result that is rounded to a narrower type.

    Its relative error may be 2^-20, and what is below the smallest normal number may count as 0.
    """
    return make(op, x.dtype, (x,), APPROXIMATE, depth=2)


def after(x: UOp, *done: UOp) -> UOp:
    """x, once the others have happened."""
    return make(Ops.AFTER, x.dtype, (x, *done), depth=2) if done else x


def bufferize(value: UOp, *ranges: UOp, arg: Any = None) -> UOp:
    """The value for every point of the ranges, stored. It closes the ranges; others stay open around it."""
    return make(Ops.BUFFERIZE, value.dtype, (value, *ranges), arg, depth=2)


# --- conversions and vectors


def cast(x: UOp, dtype: DType) -> UOp:
    """x converted by value. A scalar type stands for as many lanes as x has."""
    target = dtype.vec(x.dtype.lanes) if dtype.lanes == 1 else dtype
    if x.dtype is target:
        return x
    for t in (x.dtype, target):
        if t.is_ptr or t.is_void:
            raise _bad(DTypeError, f"CAST from {x.dtype} to {dtype} makes no sense", x)
    if x.dtype.lanes != target.lanes:
        raise _bad(
            DTypeError,
            f"CAST keeps the lanes, but {x.dtype} has {x.dtype.lanes} and {dtype} has {dtype.lanes}",
            x,
        )
    return make(Ops.CAST, target, (x,), depth=2)


def bitcast(x: UOp, dtype: DType) -> UOp:
    """The bits of x read as another type of the same size; vectors may change their number of lanes."""
    if x.dtype is dtype:
        return x
    for t in (x.dtype, dtype):
        has_bits = t.is_bounded_int or t.is_float
        if not has_bits:
            raise _bad(DTypeError, f"BITCAST from {x.dtype} to {dtype}: {t} has no fixed bits", x)
    if x.dtype.bits != dtype.bits:
        raise _bad(
            DTypeError,
            f"BITCAST keeps the bits, but {x.dtype} has {x.dtype.bits} and {dtype} has {dtype.bits}",
            x,
        )
    return make(Ops.BITCAST, dtype, (x,), depth=2)


def gep(x: UOp, lanes: int | tuple[int, ...]) -> UOp:
    """Some lanes of a vector, in this order; one lane gives a scalar."""
    wanted = (lanes,) if isinstance(lanes, int) else tuple(lanes)
    count = x.dtype.lanes
    for lane in wanted:
        if not 0 <= lane < count:
            raise _bad(IRError, f"{x.dtype} has lanes 0 … {count - 1}, so there is no lane {lane}", x)
    if not wanted:
        raise _bad(IRError, f"GEP of {x.dtype} needs at least one lane", x)
    if wanted == tuple(range(count)):
        return x
    return make(Ops.GEP, x.dtype.scalar.vec(len(wanted)), (x,), wanted, depth=2)


def vectorize(*xs: UOp) -> UOp:
    """A vector of scalars of one type; a single scalar is itself."""
    if not xs:
        raise _bad(IRError, "VECTORIZE needs at least one source")
    if len(xs) == 1:
        return xs[0]
    dtype = xs[0].dtype
    for x in xs:
        same = x.dtype is dtype and dtype.lanes == 1
        if not same:
            types = ", ".join(dict.fromkeys(str(s.dtype) for s in xs))
            raise _bad(DTypeError, f"VECTORIZE needs scalars of one type, got {types}", x)
    return make(Ops.VECTORIZE, dtype.vec(len(xs)), xs, depth=2)


def broadcast(x: UOp, lanes: int) -> UOp:
    """The scalar x in every lane."""
    if lanes == 1:
        return x
    if x.dtype.lanes != 1:
        raise _bad(DTypeError, f"only a scalar can be broadcast to {lanes} lanes, not {x.dtype}", x)
    if x.op is Ops.CONST:
        return make(Ops.CONST, x.dtype.vec(lanes), (), x.arg, depth=2)
    return make(Ops.VECTORIZE, x.dtype.vec(lanes), (x,) * lanes, depth=2)


# --- memory


def define_global(dtype: DType, size: int, number: int) -> UOp:
    """Pointer to the kernel's buffer `number`, which holds `size` elements of `dtype`."""
    return make(Ops.DEFINE_GLOBAL, dtype.ptr(size, AddrSpace.GLOBAL), (), number, depth=2)


def define_local(dtype: DType, size: int, name: Any) -> UOp:
    """Pointer to memory shared by a block or a loop level."""
    return make(Ops.DEFINE_LOCAL, dtype.ptr(size, AddrSpace.LOCAL), (), name, depth=2)


def define_reg(dtype: DType, size: int, name: Any) -> UOp:
    """Pointer to registers of one thread."""
    return make(Ops.DEFINE_REG, dtype.ptr(size, AddrSpace.REG), (), name, depth=2)


def buffer(dtype: DType, size: int, device: str, number: int) -> UOp:
    """Memory for `size` elements on a device; the number tells it from other buffers."""
    if not (type(size) is int and size >= 0):
        raise _bad(IRError, f"a buffer needs a size of 0 or more, not {size!r}")
    return make(
        Ops.BUFFER,
        dtype,
        (make(Ops.UNIQUE, void, (), number, depth=2), make(Ops.DEVICE, void, (), device, depth=2)),
        size,
    )


def index(buf: UOp, *idx: int | UOp, gate: UOp | None = None) -> UOp:
    """A place in a buffer, if the gate holds: of a pointer its address, of a value the element itself."""
    places = _places(buf, idx, gate)
    lanes = places[0].dtype.lanes
    dtype = buf.dtype.scalar.vec(lanes) if lanes > 1 else buf.dtype
    return make(Ops.INDEX, dtype, (buf, *places), depth=2)


def read(buf: UOp, *idx: int | UOp, gate: UOp | None = None) -> UOp:
    """The element at a place of a buffer: INDEX of the element's type, as it stands until loads are added."""
    places = _places(buf, idx, gate)
    lanes = places[0].dtype.lanes
    elem = buf.dtype.elem if isinstance(buf.dtype, PtrDType) else buf.dtype
    return make(Ops.INDEX, elem.vec(lanes) if lanes > 1 else elem, (buf, *places), depth=2)


def _places(buf: UOp, idx: tuple[int | UOp, ...], gate: UOp | None) -> tuple[UOp, ...]:
    """The sources of an INDEX after the buffer."""
    if not idx:
        raise _bad(IRError, "INDEX needs at least one index", buf)
    places = tuple(_node(i, index_dtype, "an index") for i in idx)
    lanes = places[0].dtype.lanes
    for i in places:
        if not (i.dtype.is_int and i.dtype.lanes == lanes):
            types = ", ".join(str(p.dtype) for p in places)
            raise _bad(DTypeError, f"INDEX needs integers of equally many lanes, got {types}", i)
    if gate is None:
        return places
    if not gate.dtype.is_bool:
        raise _bad(DTypeError, f"the gate of an INDEX must be a boolean, not {gate.dtype}", gate)
    return (*places, gate)


def element_dtype(idx: UOp) -> DType:
    """What is found at an address."""
    dtype = idx.dtype
    if not isinstance(dtype, PtrDType):
        raise DTypeError(f"memory is reached through a pointer, not through {dtype}", place=place(idx))
    return dtype.elem.vec(dtype.lanes) if dtype.lanes > 1 else dtype.elem


def load(idx: UOp, otherwise: Any = None, dtype: DType | None = None) -> UOp:
    """The element at an address; `otherwise` where its gate is false.

    `dtype` reads several elements at once.
    """
    found = element_dtype(idx) if dtype is None else dtype
    if otherwise is None:
        return make(Ops.LOAD, found, (idx,), depth=2)
    other = _node(otherwise, found, "the value where the gate is false")
    if other.dtype is not found:
        raise _bad(DTypeError, f"LOAD of {found} needs an alternative of it, got {other.dtype}", idx)
    return make(Ops.LOAD, found, (idx, other), depth=2)


def store(idx: UOp, value: Any) -> UOp:
    """Writes the element at an address, where its gate is true."""
    expected = element_dtype(idx)
    what = _node(value, expected, "the value of a STORE")
    if what.dtype.scalar is not expected.scalar:
        raise _bad(
            DTypeError, f"STORE into {expected} needs a value of that type, got {what.dtype}; cast it", idx
        )
    return make(Ops.STORE, void, (idx, what), depth=2)


# --- conditions


def where(condition: UOp, x: Any, y: Any) -> UOp:
    """x where the condition holds, else y; at most one of the two may be a Python number."""
    model = x if isinstance(x, UOp) else y
    if not isinstance(model, UOp):
        raise _bad(IRError, "WHERE of two numbers has no type: make one of them a constant")
    return alu(Ops.WHERE, condition, _node(x, model.dtype, "a branch"), _node(y, model.dtype, "a branch"))


def le(x: UOp, y: Any) -> UOp:
    """x <= y; false with NaN."""
    other = _node(y, x.dtype, "an operand")
    # "Not y < x" would be true for NaN.
    return (x < other) | x.eq(other) if x.dtype.is_float else logical_not(other < x)


def ge(x: UOp, y: Any) -> UOp:
    """x >= y; false with NaN."""
    return le(_node(y, x.dtype, "an operand"), x)


def logical_not(x: UOp) -> UOp:
    """The opposite of a condition."""
    if not x.dtype.is_bool:
        raise _bad(DTypeError, f"only a {bool_} has an opposite, not {x.dtype}", x)
    return alu(Ops.NOT, x)
