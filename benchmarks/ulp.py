"""Worst errors of the elementary functions as machine code, in units in the last place.

    python benchmarks/ulp.py [--points 200000] [EXP SIN ...]

Float32 and float64, over random bit patterns (every exponent), normal numbers of many scales, neighbours of
1, of 0 and of multiples of π/2. The reference is NumPy in extended precision. A special value that differs
(infinity, NaN, or one of them where a number should be) counts as an infinite error.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

from morok.device.buffer import Buffer, HostAllocator
from morok.device.cpu.device import CPU
from morok.dtype import DType, float32, float64
from morok.ir.build import define_global, end, index, rng, sink, store
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import AxisKind, Op, Ops

# What morok/codegen/decompose promises, for float32 and for float64.
LIMITS: dict[Op, tuple[float, float]] = {
    Ops.EXP: (1.01, 1), Ops.EXP2: (1.01, 1), Ops.LOG: (1, 1), Ops.LOG2: (1, 1), Ops.SIN: (2, 1),
    Ops.COS: (2, 1), Ops.TAN: (1, 3), Ops.TANH: (3, 3), Ops.ERF: (2, 2), Ops.SQRT: (0.5, 0.5),
    Ops.RSQRT: (1.5, 1.5), Ops.RECIP: (0.5, 0.5), Ops.POW: (1, 2), Ops.ATAN2: (1, 3),
}  # fmt: skip
# Near multiples of π/2, where nearly all bits of a large argument cancel. In the second row of float64 the
# product with the middle word of 2/π carries.
HARD: dict[DType, tuple[float, ...]] = {
    float32: (4.399877e10, 7.729179e28),
    float64: (
        5.319372648326541e255, 3.32969637148221e303, 8.657210565853746e304, 1.7314421131707492e305,
        1.0320233936560324e106, 2.315024210159729e166, 4.6434299797740674e226, 6.193817323354756e286,
    ),
}  # fmt: skip
_LANES = 8
_allocator = HostAllocator("ulp")


def erf(x: Any) -> Any:
    """The error function in extended precision: a series of positive terms."""
    a = np.minimum(np.abs(x), 7)
    term = total = a
    for n in range(1, 260):
        term = term * 2 * a * a / (2 * n + 1)
        total = total + term
    root_pi = np.sqrt(np.arctan2(np.longdouble(0), np.longdouble(-1)))
    return np.copysign(total * np.exp(-a * a) * 2 / root_pi, x)


REFERENCES: dict[Op, Any] = {
    Ops.EXP: np.exp, Ops.EXP2: np.exp2, Ops.LOG: np.log, Ops.LOG2: np.log2, Ops.SIN: np.sin, Ops.COS: np.cos,
    Ops.TAN: np.tan, Ops.TANH: np.tanh, Ops.ERF: erf, Ops.SQRT: np.sqrt, Ops.RSQRT: lambda x: 1 / np.sqrt(x),
    Ops.RECIP: lambda x: 1 / x, Ops.POW: np.power, Ops.ATAN2: np.arctan2,
}  # fmt: skip


def kernel(op: Op, dtype: DType, n: int) -> UOp:
    """An element-wise kernel of one op, vectorised."""
    r, u = rng(n // _LANES, 0), rng(_LANES, 1, AxisKind.UPCAST)
    i = r * _LANES + u
    given = [make(Ops.INDEX, dtype, (define_global(dtype, n, k + 1), i)) for k in range(op.arity)]
    return sink(end(store(index(define_global(dtype, n, 0), i), alu(op, *given)), r, u))


def sigmoid_kernel(dtype: DType, n: int) -> UOp:
    """1 / (1 + e) for x ≥ 0 and e / (1 + e) below, with e = exp(-|x|), which never overflows."""
    r, u = rng(n // _LANES, 0), rng(_LANES, 1, AxisKind.UPCAST)
    i = r * _LANES + u
    x = make(Ops.INDEX, dtype, (define_global(dtype, n, 1), i))
    one = const(dtype, 1.0)
    e = alu(Ops.EXP, -alu(Ops.ABS, x))
    value = alu(Ops.WHERE, x < 0.0, e, one) / (e + one)
    return sink(end(store(index(define_global(dtype, n, 0), i), value), r, u))


def run(ast: UOp, dtype: DType, arrays: list[Any]) -> Any:
    """The results of a kernel on arrays whose length is a multiple of the lanes."""
    program = CPU().compile(ast, "ulp")
    out = np.zeros(len(arrays[0]), dtype=dtype.numpy)
    held = [
        Buffer("CPU", len(a), dtype, _allocator, memory=np.ascontiguousarray(a).view(np.uint8))
        for a in (out, *arrays)
    ]
    program(held, {})
    return held[0].array()


def special(dtype: DType) -> Any:
    """Zeros, infinities, NaN, ones, and the ends of the normal and of the subnormal numbers."""
    info = np.finfo(dtype.numpy)
    ends = (0.0, 1, 2, np.inf, info.max, info.tiny, info.smallest_subnormal)
    return np.array([*ends, *(-e for e in ends), np.nan, 0.5], dtype=dtype.numpy)


def points(dtype: DType, count: int, seed: int) -> Any:
    """Arguments that are worth looking at."""
    rnd = np.random.default_rng(seed)
    kind = dtype.numpy
    bits = np.uint32 if dtype.bits == 32 else np.uint64
    parts = [special(dtype), np.array([*HARD[dtype], *(-x for x in HARD[dtype])], dtype=kind)]
    parts += [rnd.integers(0, np.iinfo(bits).max, count, dtype=bits, endpoint=True).view(kind)]
    subnormal = rnd.integers(0, 1 << dtype.mantissa_bits, max(1, count // 8), dtype=bits).view(kind)
    parts += [subnormal, -subnormal]
    parts += [(rnd.standard_normal(count) * s).astype(kind) for s in (1e-6, 1e-2, 1, 10, 100, 1e3, 1e5, 1e8)]
    parts += [(1 + rnd.standard_normal(count) * s).astype(kind) for s in (0.1, 1e-3, 1e-6)]
    parts += [(np.arange(1, count) * (np.pi / 2)).astype(kind)]
    return in_lanes(np.concatenate(parts))


def in_lanes(x: Any) -> Any:
    """Rounded up to whole vectors."""
    return np.concatenate([x, x[: -len(x) % _LANES]])


def errors(got: Any, exact: Any) -> Any:
    """Errors in ULP of the result's type; infinite where a special value or a zero's sign is another."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(got.dtype)
        same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
        special = ~(np.isfinite(got) & np.isfinite(rounded))
        unit = np.spacing(np.abs(np.where(np.isfinite(rounded), rounded, 1))).astype(np.longdouble)
        error = np.abs(got.astype(np.longdouble) - exact) / unit
    # beyond the largest number an exact result may be finite where the rounded one is not
    error = np.where(special, np.where(same, 0, np.inf), error)
    zeros = (got == 0) & (rounded == 0)
    return np.where(zeros & (np.signbit(got) != np.signbit(rounded)), np.inf, error)


def allowed(op: Op, dtype: DType) -> float:
    return LIMITS[op][dtype is float64]


def worst(op: Op, dtype: DType, count: int, seed: int = 0) -> tuple[float, Any]:
    """The worst error of a function, and where it is."""
    given = [points(dtype, count, seed)]
    if op.arity == 2:
        rnd = np.random.default_rng(seed + 1)
        scale = np.exp(rnd.standard_normal(count) * 3).astype(dtype.numpy)
        power = (rnd.standard_normal(count) * 20).astype(dtype.numpy)
        ends = special(dtype)
        given = [
            in_lanes(np.concatenate([np.repeat(ends, len(ends)), given[0], scale])),
            in_lanes(np.concatenate([np.tile(ends, len(ends)), rnd.permutation(given[0]), power])),
        ]
    got = run(kernel(op, dtype, len(given[0])), dtype, given)
    with np.errstate(all="ignore"):
        exact = REFERENCES[op](*(g.astype(np.longdouble) for g in given))
    found = errors(got, exact)
    at = int(np.argmax(found))
    return float(found[at]), tuple(g[at] for g in given)


def worst_sigmoid(dtype: DType, count: int) -> tuple[float, Any]:
    x = points(dtype, count, 0)
    got = run(sigmoid_kernel(dtype, len(x)), dtype, [x])
    with np.errstate(all="ignore"):
        found = errors(got, 1 / (1 + np.exp(-x.astype(np.longdouble))))
    at = int(np.argmax(found))
    return float(found[at]), (x[at],)


def main() -> int:
    parser = argparse.ArgumentParser(description="worst errors of the elementary functions")
    parser.add_argument("ops", nargs="*", help="such as EXP or SIN; all if none is given")
    parser.add_argument("--points", type=int, default=200_000, help="per kind of argument")
    options = parser.parse_args()
    failed = 0
    print(f"{'function':<10} {'type':<8} {'worst ULP':>9} {'allowed':>8}   at")
    for op in LIMITS:
        if options.ops and op.name not in options.ops:
            continue
        for dtype in (float32, float64):
            limit = allowed(op, dtype)
            error, at = worst(op, dtype, options.points)
            failed += error > limit
            where = ", ".join(repr(float(a)) for a in at)
            print(f"{op.name:<10} {dtype!s:<8} {error:>9.3f} {limit:>8}   {where}", flush=True)
    if not options.ops or "SIGMOID" in options.ops:
        for dtype in (float32, float64):
            error, at = worst_sigmoid(dtype, options.points)
            failed += error > 4
            print(f"{'SIGMOID':<10} {dtype!s:<8} {error:>9.3f} {4:>8}   {float(at[0])!r}")
    print("all within their limits" if not failed else f"{failed} above their limits")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
