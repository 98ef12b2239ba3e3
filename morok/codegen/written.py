"""Kernels written instruction by instruction, for algorithms whose steps wait for one another.

    code = Code(machine)
    a = code.memory(dt.float32, n * n)
    with code.loop(n) as k:
        x = a.load(k * n + k)
        a.store(k * n + k, x.sqrt())
    code.linear()                                 # a LINEAR list, as the pipeline's last stage leaves it

What is written runs in the order in which it is written, so a loop may read what the turn before has stored.
Nothing is moved or vectorised: what is hoisted, and what is a vector, whoever writes has to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

from morok import dtype as dt
from morok.dtype import AddrSpace, DType, PtrDType
from morok.ir.node import UOp, const, make
from morok.ir.ops import PACKED, AxisKind, Op, Ops
from morok.machine.machine import Machine


@final
class Value:
    """A number, or a vector of them, at this place of the list."""

    __slots__ = ("code", "node")

    def __init__(self, code: Code, node: UOp) -> None:
        self.code, self.node = code, node

    @property
    def dtype(self) -> DType:
        return self.node.dtype

    def _with(self, op: Op, other: Any, swapped: bool = False, dtype: DType | None = None) -> Value:
        y = self.code.value(other, self.dtype)
        x = self
        if x.dtype.lanes < y.dtype.lanes:
            x = x.spread(y.dtype.lanes)
        elif y.dtype.lanes < x.dtype.lanes:
            y = y.spread(x.dtype.lanes)
        pair = (y.node, x.node) if swapped else (x.node, y.node)
        return self.code.put(make(op, dtype or x.dtype, pair))

    def __add__(self, other: Any) -> Value:
        return self if _is(other, 0) else self._with(Ops.ADD, other)

    __radd__ = __add__

    def __mul__(self, other: Any) -> Value:
        return self if _is(other, 1) else self._with(Ops.MUL, other)

    __rmul__ = __mul__

    def __sub__(self, other: Any) -> Value:
        return self if _is(other, 0) else self._with(Ops.SUB, other)

    def __rsub__(self, other: Any) -> Value:
        return self._with(Ops.SUB, other, True)

    def __truediv__(self, other: Any) -> Value:
        return self._with(Ops.FDIV, other)

    def __rtruediv__(self, other: Any) -> Value:
        return self._with(Ops.FDIV, other, True)

    def __floordiv__(self, other: Any) -> Value:
        """Of numbers that are not negative."""
        return self if _is(other, 1) else self._with(Ops.CDIV, other)

    def __neg__(self) -> Value:
        return self.code.put(make(Ops.NEG, self.dtype, (self.node,)))

    def __and__(self, other: Any) -> Value:
        return self._with(Ops.AND, other)

    def __or__(self, other: Any) -> Value:
        return self._with(Ops.OR, other)

    def __xor__(self, other: Any) -> Value:
        return self._with(Ops.XOR, other)

    def __invert__(self) -> Value:
        own = self.dtype.scalar
        return self ^ (own.max if own.is_unsigned else -1)

    def minimum(self, other: Value) -> Value:
        return self._with(Ops.MIN, other)

    def maximum(self, other: Value) -> Value:
        return self._with(Ops.MAX, other)

    def __lshift__(self, bits: int) -> Value:
        return self._with(Ops.SHL, bits)

    def __rshift__(self, bits: int) -> Value:
        return self._with(Ops.SHR, bits)

    def _compare(self, op: Op, other: Any, swapped: bool = False) -> Value:
        y = self.code.value(other, self.dtype)
        lanes = max(self.dtype.lanes, y.dtype.lanes)
        return self._with(op, y, swapped, dt.bool_.vec(lanes) if lanes > 1 else dt.bool_)

    def __lt__(self, other: Any) -> Value:
        return self._compare(Ops.CMPLT, other)

    def __gt__(self, other: Any) -> Value:
        return self._compare(Ops.CMPLT, other, True)

    def equals(self, other: Any) -> Value:
        return self._compare(Ops.CMPEQ, other)

    def differs(self, other: Any) -> Value:
        return self._compare(Ops.CMPNE, other)

    def where(self, x: Any, y: Any) -> Value:
        """x where this condition holds, else y; one of them is a value."""
        like = x if isinstance(x, Value) else y
        x, y = (self.code.value(v, like.dtype) for v in (x, y))
        lanes = max(v.dtype.lanes for v in (self, x, y))
        c, x, y = (v.spread(lanes) for v in (self, x, y))
        return self.code.put(make(Ops.WHERE, x.dtype, (c.node, x.node, y.node)))

    def sqrt(self) -> Value:
        return self.code.put(make(Ops.SQRT, self.dtype, (self.node,)))

    def abs(self) -> Value:
        return self.code.put(make(Ops.ABS, self.dtype, (self.node,)))

    def cast(self, dtype: DType) -> Value:
        lanes = self.dtype.lanes
        wanted = dtype.vec(lanes) if lanes > 1 else dtype
        return self if wanted is self.dtype else self.code.put(make(Ops.CAST, wanted, (self.node,)))

    def spread(self, lanes: int) -> Value:
        """The same number in so many lanes."""
        if self.dtype.lanes == lanes:
            return self
        if self.node.op is Ops.CONST:
            return Value(self.code, const(self.dtype.vec(lanes), self.node.arg))
        return self.code.put(make(Ops.VECTORIZE, self.dtype.vec(lanes), (self.node,) * lanes))

    def lane(self, i: int) -> Value:
        return self.code.put(make(Ops.GEP, self.dtype.scalar, (self.node,), (i,)))

    def after(self, before: Value, count: int) -> Value:
        """The lanes moved up by so many, behind the last ones of the vector before."""
        lanes = self.dtype.lanes
        both = self.code.put(make(Ops.CAT, self.dtype.scalar.vec(2 * lanes), (before.node, self.node)))
        taken = tuple(range(lanes - count, 2 * lanes - count))
        return self.code.put(make(Ops.GEP, self.dtype, (both.node,), taken))

    def joined(self, op: Op, other: Any) -> Value:
        """With another by an op of two values of their type."""
        return self._with(op, other)

    def turned(self, others: list[Value]) -> list[Value]:
        """Of rows, this one and as many others as there are lanes, each lane as a vector."""
        rows, lanes = [self, *others], self.dtype.lanes
        assert len(rows) == lanes, (len(rows), lanes)
        columns = [tuple([row.lane(i).node for row in rows]) for i in range(lanes)]
        return [self.code.put(make(Ops.VECTORIZE, self.dtype, column)) for column in columns]

    def any(self) -> Value:
        """Whether a condition holds in some lane."""
        if self.dtype.lanes == 1:
            return self
        return self.code.put(make(Ops.VREDUCE, dt.bool_, (self.node,), Ops.OR))

    def true_lanes(self) -> Value:
        """In how many lanes a condition holds."""
        bits = _BITS.get(self.dtype.lanes)
        if bits is None:
            return self.cast(dt.int64).total()
        found = self.code.put(make(Ops.BITCAST, bits, (self.node,)))
        return self.code.put(make(Ops.POPCOUNT, bits, (found.node,))).cast(dt.int64)

    def chosen(self, lanes: tuple[int, ...], other: Value | None = None) -> Value:
        """A vector of some lanes of this one, and of another behind it."""
        both = self.node
        if other is not None:
            wide = self.dtype.scalar.vec(self.dtype.lanes + other.dtype.lanes)
            both = self.code.put(make(Ops.CAT, wide, (self.node, other.node))).node
        return self.code.put(make(Ops.GEP, self.dtype.scalar.vec(len(lanes)), (both,), lanes))

    def total(self) -> Value:
        """The sum of all lanes, in a tree."""
        found = [self.lane(i) for i in range(self.dtype.lanes)]
        while len(found) > 1:
            found = [x + y for x, y in zip(found[::2], found[1::2], strict=True)]
        return found[0]


_BITS = {8: dt.uint8, 16: dt.uint16, 32: dt.uint32, 64: dt.uint64}  # that are a condition per lane


def _is(value: Any, number: int) -> bool:
    return isinstance(value, int) and value == number


@final
class Memory:
    """A buffer of the kernel, or memory of its own."""

    __slots__ = ("code", "pointer")

    def __init__(self, code: Code, pointer: UOp) -> None:
        self.code, self.pointer = code, pointer

    @property
    def dtype(self) -> DType:
        """Of its elements."""
        pointer = self.pointer.dtype
        assert isinstance(pointer, PtrDType)
        return pointer.elem

    def _address(self, place: Any, mask: Value | None = None) -> UOp:
        # A serial number tells this access from an earlier one of the same place: stores may be between.
        code, pointer = self.code, self.pointer
        code.serial += 1
        late = code.put(make(Ops.AFTER, pointer.dtype, (pointer, const(dt.int64, code.serial)))).node
        where = code.value(place, dt.int64).node
        given = () if mask is None else (mask.node,)
        return code.put(make(Ops.INDEX, pointer.dtype, (late, where, *given))).node

    def load(self, place: Any, lanes: int = 1) -> Value:
        pointer = self.pointer.dtype
        assert isinstance(pointer, PtrDType)
        dtype = pointer.elem.vec(lanes) if lanes > 1 else pointer.elem
        return self.code.put(make(Ops.LOAD, dtype, (self._address(place),)))

    def store(self, place: Any, value: Any) -> None:
        pointer = self.pointer.dtype
        assert isinstance(pointer, PtrDType)
        what = self.code.value(value, pointer.elem)
        self.code.put(make(Ops.STORE, dt.void, (self._address(place), what.node)))

    def load_some(self, place: Any, mask: Value, other: Any) -> Value:
        """A vector; where the mask does not hold nothing is read, and the lane is another number."""
        dtype = self.dtype.vec(mask.dtype.lanes)
        address = self._address(place, mask)
        return self.code.put(make(Ops.LOAD, dtype, (address, const(dtype, other))))

    def store_some(self, place: Any, value: Value, mask: Value) -> None:
        """The lanes for which the mask holds, each in its place."""
        self.code.put(make(Ops.STORE, dt.void, (self._address(place, mask), value.node)))

    def pack(self, place: Any, value: Value, mask: Value) -> None:
        """These lanes one after the other."""
        self.code.put(make(Ops.STORE, dt.void, (self._address(place, mask), value.node), PACKED))


@final
class Register:
    """A number that changes while the kernel runs."""

    __slots__ = ("_dtype", "_memory")

    def __init__(self, code: Code, first: Value) -> None:
        code.serial += 1
        dtype = first.dtype
        pointer = make(Ops.DEFINE_REG, dtype.scalar.ptr(dtype.lanes, AddrSpace.REG), (), code.serial)
        self._memory, self._dtype = code.define(pointer), dtype
        self.set(first)

    @property
    def dtype(self) -> DType:
        return self._dtype

    def get(self) -> Value:
        return self._memory.load(0, self._dtype.lanes)

    def set(self, value: Any) -> None:
        self._memory.store(0, self._memory.code.value(value, self._dtype).spread(self._dtype.lanes))


WRITERS: dict[str, Callable[..., None]] = {}  # by the names that WRITTEN has


def writes(writer: Callable[..., None]) -> Callable[..., None]:
    """A function that writes a kernel, `writer(code, machine, *key)`, found by its name."""
    WRITERS[writer.__name__] = writer
    return writer


def instructions_of(written: UOp, machine: Machine) -> UOp:
    """The list of a WRITTEN."""
    name, key, _ = written.arg
    code = Code(machine.fma)
    WRITERS[name](code, machine, *key)
    return code.linear()


@final
class Code:
    """A kernel on its way to a list of instructions."""

    def __init__(self, fused: bool = True) -> None:
        self.fused = fused  # there are products that are added with one rounding
        self.serial = 0
        self.buffers = 0
        self._defined: list[UOp] = []  # memory comes first: a loop must not ask for it in every turn
        self._list: list[UOp] = []
        self._scopes: list[set[UOp]] = [set()]

    def put(self, node: UOp) -> Value:
        """The node at this place, unless its value is there already."""
        if node.op not in (Ops.CONST, Ops.VCONST) and not any(node in scope for scope in self._scopes):
            self._list.append(node)
            self._scopes[-1].add(node)
        return Value(self, node)

    def value(self, x: Any, dtype: DType) -> Value:
        return x if isinstance(x, Value) else Value(self, const(dtype, x))

    def linear(self) -> UOp:
        return make(Ops.LINEAR, dt.void, (*self._defined, *self._list))

    def define(self, pointer: UOp) -> Memory:
        self._defined.append(pointer)
        self._scopes[0].add(pointer)
        return Memory(self, pointer)

    # --- memory

    def memory(self, dtype: DType, size: int) -> Memory:
        """The next buffer that the kernel is called with."""
        pointer = make(Ops.DEFINE_GLOBAL, dtype.ptr(size, AddrSpace.GLOBAL), (), self.buffers)
        self.buffers += 1
        return self.define(pointer)

    def local(self, dtype: DType, size: int) -> Memory:
        """Memory of each worker."""
        self.serial += 1
        pointer = make(Ops.DEFINE_LOCAL, dtype.ptr(size, AddrSpace.LOCAL), (), self.serial)
        return self.define(pointer)

    def register(self, first: Any, dtype: DType = dt.int64) -> Register:
        return Register(self, self.value(first, dtype))

    # --- control

    def counting(self, lanes: int, dtype: DType) -> Value:
        """0, 1, 2, … in the lanes of a vector."""
        return Value(self, make(Ops.VCONST, dtype.vec(lanes), (), tuple(range(lanes))))

    @contextmanager
    def loop(
        self, count: Any, kind: AxisKind = AxisKind.LOOP, again: Callable[[], Value] | None = None
    ) -> Iterator[Value]:
        """Turns 0 … count - 1, one after the other; those of a shared loop (THREAD) in any order. `again`
        says behind each turn whether there is another one."""
        self.serial += 1
        end = self.value(count, dt.int64)
        node = make(Ops.RANGE, dt.int64, (end.node,), (self.serial, kind))
        self._list.append(node)
        self._scopes.append({node})
        yield Value(self, node)
        more = () if again is None else (again().node,)
        self._scopes.pop()
        self._list.append(make(Ops.END, dt.void, (node, node, *more)))

    @contextmanager
    def phases(self, count: int, workers: int) -> Iterator[tuple[Value, Value]]:
        """A shared loop of `count` times `workers` turns: (phase, worker). All turns of a phase are done
        before one of the next begins, and workers of one number are mostly the same one."""
        self._list.append(make(Ops.BARRIER, dt.void, (const(dt.int64, count),)))
        with self.loop(count * workers, AxisKind.THREAD) as turn:
            phase = turn // workers
            yield phase, turn - phase * workers

    @contextmanager
    def given(self, condition: Value) -> Iterator[None]:
        """What is written inside runs where the condition holds."""
        self.serial += 1
        node = make(Ops.IF, dt.void, (condition.node, const(dt.int64, self.serial)))
        self._list.append(node)
        self._scopes.append(set())
        yield
        self._scopes.pop()
        self._list.append(make(Ops.ENDIF, dt.void, (node,)))

    # --- arithmetic

    def add_product(self, z: Value, x: Value, y: Value) -> Value:
        """z + x·y."""
        if not self.fused:
            return z + x * y
        x, y = x.spread(z.dtype.lanes), y.spread(z.dtype.lanes)
        return self.put(make(Ops.MULACC, z.dtype, (x.node, y.node, z.node)))

    def take_product(self, z: Value, x: Value, y: Value) -> Value:
        """z - x·y."""
        return self.add_product(z, -x, y)
