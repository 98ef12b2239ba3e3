"""What divides and shifts gets operands that the instruction has a result for, and no guard in vain."""

import re

import numpy as np
import pytest

from morok import Tensor
from morok.codegen.decompose.integers import guard_division, guard_shift
from morok.device.cpu.device import program_of
from morok.dtype import DType, int8, int16, int32, int64, uint8, uint16, uint32, uint64
from morok.ir.arithmetic.alu import evaluate_array
from morok.ir.build import define_global, rng, sink, variable
from morok.ir.node import UOp, alu, const, toposort
from morok.ir.ops import Op, Ops
from morok.machine.machine import Machine
from morok.symbolic.domain import divides, shifts
from tests.codegen.kernels import read, write

INTS = (int8, int16, int32, int64, uint8, uint16, uint32, uint64)
DEVICES = [("CPU", t) for t in INTS]
DEVICES += [(d, t) for d in ("PYTHON", "EMULATOR") for t in (int8, int64, uint8, uint32)]


def operands(dtype: DType) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All pairs of values at which something can go wrong, under both values of a mask."""
    least, most = dtype.min, dtype.max
    values = [least, least + 1, most, 0, 1, 2, 7] + ([] if dtype.is_unsigned else [-1, -2, -7])
    given = np.array(values, dtype.numpy)
    x, y, m = np.meshgrid(given, given, [True, False], indexing="ij")
    return x.reshape(-1), y.reshape(-1), m.reshape(-1)


@pytest.mark.parametrize(("device", "dtype"), DEVICES, ids=str)
def test_a_choice_that_is_not_a_guard(device: str, dtype: DType) -> None:
    """`where(m, 1, y)` says nothing about y where m is false."""
    x, y, m = operands(dtype)
    one = np.ones_like(x)
    a, b, c = (Tensor(v, device=device) for v in (x, y, m))
    least = Tensor(np.full_like(x, dtype.min), device=device)
    divisors = [
        (c.where(1, b), np.where(m, one, y)),
        (c.where(b, 1), np.where(m, y, one)),
        ((b < 2).where(1, b), np.where(y < 2, one, y)),
        (b.ne(0).where(b, 1), np.where(y != 0, y, one)),
        ((b.eq(0) | c).where(1, b), np.where((y == 0) | m, one, y)),
        ((b.eq(0) & c).where(1, b), np.where((y == 0) & m, one, y)),
        ((b.eq(0) | a.eq(least)).where(1, b), np.where((y == 0) | (x == dtype.min), one, y)),
        (b.maximum(1), np.maximum(y, one)),
    ]
    with np.errstate(all="ignore"):
        for number, (divisor, expected) in enumerate(divisors):
            assert ((a // divisor).numpy() == x // expected).all(), number
            assert ((a % divisor).numpy() == x % expected).all(), number
            assert (a.fmod(divisor).numpy() == np.fmod(x, expected)).all(), number


@pytest.mark.parametrize(("device", "dtype"), DEVICES, ids=str)
def test_shifts_by_any_amount(device: str, dtype: DType) -> None:
    x, y, m = operands(dtype)
    y = np.where(m, y, y % dtype.bits).astype(dtype.numpy)
    a, b = Tensor(x, device=device), Tensor(y, device=device)
    far = (y < 0) | (y >= dtype.bits)
    near = np.where(far, 0, y).astype(dtype.numpy)
    assert ((a << b).numpy() == np.where(far, 0, np.left_shift(x, near))).all()
    assert ((a >> b).numpy() == np.where(far, np.where(x < 0, -1, 0), np.right_shift(x, near))).all()


# --- what the guards leave to the instruction, for all values of 8 bits

X, Y = variable("x", -128, 127, int8), variable("y", -128, 127, int8)
M = variable("m", 0, 1, int8).ne(0)
ONE = const(int8, 1)


def where(c: UOp, a: UOp, b: UOp) -> UOp:
    return alu(Ops.WHERE, c, a, b)


DIVISORS = {
    "plain": Y,
    "mask": where(M, ONE, Y),
    "other mask": where(M, Y, ONE),
    "zero": where(Y.eq(0), ONE, Y),
    "not zero": where(Y.ne(0), Y, ONE),
    "zero or mask": where(Y.eq(0) | M, ONE, Y),
    "zero and mask": where(Y.eq(0) & M, ONE, Y),
    "both": where(Y.eq(0) | (Y.eq(-1) & X.eq(-128)), ONE, Y),
    "both and mask": where(M | Y.eq(0) | (X.eq(-128) & Y.eq(-1)), ONE, Y),
    "too much": where(Y.eq(0) | (Y.eq(-1) & X.eq(-128) & M), ONE, Y),
    "other number": where(Y.eq(0) | (Y.eq(-1) & X.eq(-127)), ONE, Y),
    "x is not 0": where(Y.eq(0) | X.eq(0), ONE, Y),
    "not the least": where(Y.eq(0) | X.eq(-128), ONE, Y),
    "no minus one": where(Y.eq(0) | Y.eq(-1), ONE, Y),
    "above": where(Y < 1, ONE, Y),
    "below": where(Y < -1, Y, ONE),
    "up to": where(const(int8, -2) < Y, ONE, Y),
    "not above": where(~(const(int8, 0) < Y), ONE, Y),
    "minus one": where(M, const(int8, -1), Y | 1),
    "nested": where(M, where(Y.eq(0), ONE, Y), where(Y < 1, ONE, Y)),
    "nested wrong": where(M, where(X.eq(0), ONE, Y), where(Y < 1, ONE, Y)),
    "odd": Y | 1,
}
PROVED = {"both", "both and mask", "not the least", "no minus one", "above", "below", "up to", "not above"}


def every_value() -> dict[UOp, np.ndarray]:
    grid = np.meshgrid(np.arange(-128, 128), np.arange(-128, 128), [0, 1], indexing="ij")
    named = {n.arg[0]: n for e in (X, Y, M) for n in toposort(e) if n.op is Ops.DEFINE_VAR}
    return {named[name]: g.reshape(-1).astype(np.int8) for name, g in zip(("x", "y", "m"), grid, strict=True)}


def compute(root: UOp, given: dict[UOp, np.ndarray]) -> dict[UOp, np.ndarray]:
    """All nodes of a graph on arrays."""
    values = dict(given)
    for n in toposort(root):
        if n.op is Ops.CONST:
            values[n] = np.asarray(n.arg)
        elif n not in values:
            values[n] = evaluate_array(n.op, n.src[-1].dtype, *(values[s] for s in n.src), to=n.dtype)
    return values


@pytest.mark.parametrize("op", [Ops.CDIV, Ops.CMOD], ids=str)
@pytest.mark.parametrize("name", DIVISORS)
def test_every_divisor_of_8_bits(name: str, op: Op) -> None:
    y = DIVISORS[name]
    node = alu(op, X, y)
    found = guard_division(node)
    assert (found is None) is (name in PROVED)
    before, after = compute(node, every_value()), compute(found or node, every_value())
    assert (before[node] == after[found or node]).all()
    (division,) = (n for n in toposort(found or node) if n.op is op)
    x, divisor = (after[s] for s in division.src)
    assert (divisor != 0).all() and not ((divisor == -1) & (x == -128)).any()
    assert divides(*division.src)  # it is not guarded twice


@pytest.mark.parametrize("op", [Ops.SHL, Ops.SHR], ids=str)
@pytest.mark.parametrize("amount", [Y, Y & 7, Y & 15, where(M, ONE, Y), alu(Ops.MIN, Y, const(int8, 7))])
def test_every_amount_of_8_bits(op: Op, amount: UOp) -> None:
    node = alu(op, X, amount)
    found = guard_shift(node) or node
    before, after = compute(node, every_value()), compute(found, every_value())
    assert (before[node] == after[found]).all()
    for n in toposort(found):
        if n.op in (Ops.SHL, Ops.SHR):
            y = after[n.src[1]]
            assert shifts(*n.src) and (y >= 0).all() and (y < 8).all()


# --- the text that LLVM gets


def text_of(divisor: UOp, x: UOp) -> str:
    r = next(n for n in toposort(x) if n.op is Ops.RANGE)
    kernel = sink(write(define_global(int32, 16, 0), r, alu(Ops.CMOD, x, divisor), r))
    return program_of(kernel, Machine("cpu", scalar_alu=True, wide_index=True)).text


def test_the_instruction_gets_a_safe_divisor() -> None:
    r = rng(16, 0)
    x, y = (read(define_global(int32, 16, i), r) for i in (1, 2))
    m = read(define_global(int32, 16, 3), r).ne(0)
    text = text_of(where(m, const(int32, 1), y), x)
    (divisor,) = re.findall(r"srem i32 %\w+, (%\w+)", text)
    assert re.search(rf"{divisor} = select i1 %\w+, i32 1, i32", text)
    assert text.count("icmp eq i32") >= 3  # 0, -1, the least
    # nothing is added where the divisor is known
    for safe in (alu(Ops.MAX, y, const(int32, 1)), where(y < 1, const(int32, 1), y)):
        text = text_of(safe, x)
        assert "srem i32" in text and "icmp eq" not in text
