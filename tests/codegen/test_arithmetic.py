"""Every arithmetic op on every type, as machine code, against the table of meanings."""

from itertools import pairwise

import numpy as np
import pytest

from morok.codegen.pipeline import lower
from morok.dtype import (
    DType,
    bfloat16,
    bool_,
    float8_e4m3,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from morok.ir.arithmetic.alu import defined, evaluate_array
from morok.ir.arithmetic.arrays import storage
from morok.ir.build import cast, define_global, rng, sink
from morok.ir.node import UOp, alu
from morok.ir.ops import ALU, Op, Ops
from morok.machine.machine import BASIC_OPS, Machine
from tests.codegen.kernels import UPCAST, native, read, split, write

INTS = (int8, int16, int32, int64, uint8, uint16, uint32, uint64)
FLOATS = (float8_e4m3, float8_e5m2, float16, bfloat16, float32, float64)
# computed by polynomials here and by the C library there; `test_functions.py` measures their errors
INEXACT = {
    Ops.EXP, Ops.EXP2, Ops.LOG, Ops.LOG2, Ops.SIN, Ops.COS, Ops.TAN, Ops.TANH, Ops.ERF, Ops.POW, Ops.ATAN2,
    Ops.RSQRT,
}  # fmt: skip
COUNT = 64
# scalars only, no narrow floats at all, no roundings
PLAIN = Machine(
    "plain",
    scalar_alu=True,
    wide_index=True,
    stored_floats=frozenset((float32, float64)),
    ops=BASIC_OPS - {Ops.RINT, Ops.FLOOR, Ops.CEIL, Ops.TRUNC},
)


def samples(dtype: DType, seed: int) -> np.ndarray:
    rnd = np.random.default_rng(seed)
    if dtype.is_bool:
        return rnd.random(COUNT) < 0.5
    if dtype.is_int:
        low, high = dtype.min, dtype.max
        special = [low, low + 1, high, high - 1, 0, 1, 2, 3, 7, 8]
        special += [] if dtype.is_unsigned else [-1, -2, -3, -8]
        out = [int(rnd.integers(low, high, endpoint=True, dtype=dtype.numpy)) for _ in range(20)]
        out += [special[i] for i in rnd.integers(0, len(special), COUNT - 20 - len(special))] + special
        rnd.shuffle(out)
        return np.array(out, dtype=storage(dtype))
    special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        np.inf,
        -np.inf,
        np.nan,
        0.5,
        1.5,
        2.5,
        -2.5,
        3.7,
        100.25,
        1e-3,
        1e-30,
        3e38,
        7.5,
    ]
    out = [float(v) for v in rnd.standard_normal(COUNT - 2 * len(special)) * 20] + special + special
    rnd.shuffle(out)
    with np.errstate(all="ignore"):
        return np.array(out).astype(storage(dtype))


def kernel_of(op: Op, dtype: DType, to: DType | None = None) -> UOp:
    result = to or (bool_ if op.is_compare else dtype)
    out = define_global(result, COUNT, 0)
    r = rng(COUNT, 0)
    given = [
        read(define_global(bool_ if op is Ops.WHERE and i == 0 else dtype, COUNT, i + 1), r)
        for i in range(op.arity)
    ]
    value = cast(given[0], to) if to is not None else alu(op, *given)
    return sink(write(out, r, value, r))


def compare(op: Op, dtype: DType, to: DType | None = None, exact: bool = True) -> None:
    kernel = kernel_of(op, dtype, to)
    given = [samples(bool_ if op is Ops.WHERE and i == 0 else dtype, i) for i in range(op.arity)]
    expected = evaluate_array(op, dtype, *given, to=to)
    versions = [(None, split(kernel, 0, 8, UPCAST))]
    if dtype in (int32, float16, float32, float64) or to in (int32, float16):
        versions.append((PLAIN, kernel))
    for target, version in versions:
        out = np.zeros(COUNT, dtype=expected.dtype)
        native(version, [out, *given], target=target)
        if exact:
            same = (out == expected) | (is_nan(out) & is_nan(expected))
            same &= (sign(out) == sign(expected)) | is_nan(out)
            bad = np.flatnonzero(~same)
            assert bad.size == 0, [(tuple(g[i] for g in given), out[i], expected[i]) for i in bad[:5]]
        else:
            np.testing.assert_allclose(
                out.astype(np.float64), expected.astype(np.float64), rtol=float(dtype.eps) * 4, atol=0
            )


def is_nan(x: np.ndarray) -> np.ndarray:
    return x != x


def sign(x: np.ndarray) -> np.ndarray:
    return np.signbit(x.astype(np.float64)) if x.dtype.kind in "fV" else np.zeros(x.shape, bool)


PAIRS = [
    (op, dtype)
    for op in sorted(ALU - {Ops.CAST, Ops.BITCAST, Ops.THREEFRY})
    for dtype in (bool_, *INTS, float16, bfloat16, float8_e4m3, float32, float64)
    if defined(op, dtype)
]


@pytest.mark.parametrize(("op", "dtype"), PAIRS, ids=lambda v: getattr(v, "name", str(v)))
def test_op(op: Op, dtype: DType) -> None:
    if op is Ops.MULACC and dtype.is_float and dtype.bits < 32:
        pytest.skip("codegen makes these for the device's own types only")
    compare(op, dtype, exact=not (op in INEXACT and dtype.is_float and dtype.bits >= 32))


@pytest.mark.parametrize("source", (bool_, *INTS, *FLOATS), ids=str)
def test_casts(source: DType) -> None:
    for target in (bool_, *INTS, *FLOATS):
        if target is not source:
            compare(Ops.CAST, source, target)


def test_random_bits() -> None:
    compare(Ops.THREEFRY, uint64)


@pytest.mark.parametrize("source", (int64, uint64, float64), ids=str)
@pytest.mark.parametrize("lanes", (1, 8, 16))
def test_long_numbers_round_once_to_a_short_one(source: DType, lanes: int) -> None:
    """Half way between two bfloat16 numbers, or a little beside it: the answer is known by their gap."""
    kernel = kernel_of(Ops.CAST, source, bfloat16)
    lowest, step = 2**60, 2**53  # of 8 bits
    given, want = [], []
    for i in range(COUNT):
        number, beside = divmod(i, 4)
        little = (0, 1, -1, 2**20)[beside] * (1 if source.is_int else 256)
        given.append(lowest + number * step + step // 2 + little)
        up = little > 0 or (little == 0 and number % 2 == 1)
        want.append(lowest + (number + up) * step)
    signs = [1 if source.is_unsigned else (-1) ** (i // 8) for i in range(COUNT)]
    given, want = ([a * s for a, s in zip(x, signs, strict=True)] for x in (given, want))
    out = np.zeros(COUNT, storage(bfloat16))
    native(split(kernel, 0, lanes, UPCAST) if lanes > 1 else kernel, [out, np.array(given, source.numpy)])
    assert [int(v) for v in out.astype(np.float64)] == want


@pytest.mark.parametrize("target", (bfloat16, float16, float8_e5m2, float8_e4m3), ids=str)
def test_halves_below_the_normal_numbers_round_once(target: DType) -> None:
    """Steps and a half of the smallest step that a type has, and a little beside that."""
    smallest = 2.0 ** (2 - 2 ** (target.exponent_bits - 1) - target.mantissa_bits)
    halves = np.repeat(np.arange(COUNT // 4) % 3 + 0.5, 4)
    beside = np.tile([0.0, 1.0, -1.0, 0.0], COUNT // 4) * 2.0**-50
    given = (halves + beside) * smallest * np.tile([1, 1, 1, -1], COUNT // 4)
    want = np.where(beside > 0, np.ceil(halves), np.where(beside < 0, np.floor(halves), np.rint(halves)))
    out = np.zeros(COUNT, storage(target))
    native(split(kernel_of(Ops.CAST, float64, target), 0, 8, UPCAST), [out, given])
    np.testing.assert_array_equal(np.abs(out.astype(np.float64)), want * smallest)


WIDTHS = [
    (uint8, int32, [uint16]), (int8, int64, [int16, int32]), (uint8, float32, [uint16]),
    (int64, int8, [int32, int16]), (float64, int32, [int64]), (float64, uint8, [int64, uint32, uint16]),
    (float32, int8, [int32, int16]),
]  # fmt: skip


@pytest.mark.parametrize(("source", "target", "between"), WIDTHS, ids=str)
def test_vectors_change_their_width_by_halves(source: DType, target: DType, between: list[DType]) -> None:
    machine = Machine(wide_conversions=True, threads=True, wide_index=True)
    listed = lower(split(kernel_of(Ops.CAST, source, target), 0, 16, UPCAST), machine).src
    casts = [
        (n.src[0].dtype.scalar, n.dtype.scalar) for n in listed if n.op is Ops.CAST and n.dtype.lanes > 1
    ]
    chain = [source, *between, target]
    assert set(casts) == set(pairwise(chain))
