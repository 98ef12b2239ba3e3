"""Two graphs on all values of their variables at once, where there are few enough: a proof without a solver.

Two variables of 8 bits have 65,536 pairs of values, which NumPy computes in milliseconds. What a graph does
at its thresholds is seen this way whatever it computes, products and powers included.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from morok.dtype import DType, from_bits
from morok.errors import MorokError
from morok.ir.arithmetic.alu import evaluate_array
from morok.ir.bounds import bounds
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.proof.verdicts import PROVED, REFUTED, Verdict

_MOST = 1 << 16
_FAR = 1 << 62  # indices are 64 bits in arrays
_JOINED = (Ops.VECTORIZE, Ops.CAT)


def exhaust(before: UOp, after: UOp, zero_sign: bool = False) -> Verdict | None:
    """The verdict, or None where there are too many values or something that is not arithmetic."""
    nodes = toposort(before, after)
    leaves = [n for n in nodes if n.op is Ops.DEFINE_VAR]
    if before.dtype is not after.dtype or not all(map(_computable, nodes)):
        return None
    domains = [_domain(n) for n in leaves]
    sizes = [0 if d is None else len(d) for d in domains]
    if 0 in sizes or int(np.prod(sizes, dtype=np.float64)) > _MOST:
        return None
    grid = np.indices(sizes).reshape(len(sizes), -1) if sizes else np.zeros((0, 1), np.int64)
    given: dict[UOp, list[Any]] = {}
    for n, domain, at in zip(leaves, domains, grid, strict=True):
        assert domain is not None
        given[n] = [domain[at]] * n.dtype.lanes
    try:
        with np.errstate(all="ignore"):
            x, y = (_lanes(root, given, grid.shape[1]) for root in (before, after))
    except MorokError:
        return None
    wrong = np.zeros(grid.shape[1], bool)
    for a, b in zip(x, y, strict=True):
        wrong |= _differ(np.asarray(a), np.asarray(b), before.dtype.scalar, zero_sign)
    if not wrong.any():
        return Verdict(PROVED, "every value")
    first_wrong = int(np.argmax(wrong))
    named = {str(n.arg[0]): np.broadcast_to(v[0], wrong.shape)[first_wrong].item() for n, v in given.items()}
    shown = ", ".join(f"{name} = {v}" for name, v in named.items())
    sides = [tuple(np.broadcast_to(v, wrong.shape)[first_wrong].item() for v in lanes) for lanes in (x, y)]
    first, second = (s[0] if len(s) == 1 else s for s in sides)
    return Verdict(REFUTED, f"{shown} gives {first} before and {second} after", named)


def _computable(n: UOp) -> bool:
    if n.op in (Ops.DEFINE_VAR, Ops.CONST, Ops.VCONST, Ops.GEP, *_JOINED):
        fits = not n.dtype.is_ptr
    else:
        fits = n.op.is_alu and all(s.dtype.lanes == n.dtype.lanes for s in n.src)
    if not n.dtype.is_index:
        return fits
    low, high = bounds(n)
    return fits and -_FAR < low and high < _FAR


def _domain(n: UOp) -> Any:
    """All values of a variable."""
    dtype: DType = n.dtype.scalar
    if dtype.is_bool:
        return np.array([False, True])
    if dtype.is_float:
        if dtype.bits > 16:
            return None
        return _all_floats(dtype)
    low, high = n.arg[1], n.arg[2]
    if not high - low < _MOST:
        return None
    return np.arange(int(low), int(high) + 1).astype(np.int64 if dtype.is_index else _storage(dtype))


@cache
def _all_floats(dtype: DType) -> Any:
    with np.errstate(all="ignore"):
        return np.array([from_bits(b, dtype) for b in range(1 << dtype.bits)]).astype(_storage(dtype))


def _storage(dtype: DType) -> Any:
    return dtype.numpy


def _lanes(root: UOp, given: dict[UOp, list[Any]], size: int) -> list[Any]:
    values = dict(given)
    for n in toposort(root):
        if n in values:
            continue
        if n.op is Ops.CONST:
            values[n] = [_constant(n.arg, n.dtype.scalar, size)] * n.dtype.lanes
        elif n.op is Ops.VCONST:
            values[n] = [_constant(v, n.dtype.scalar, size) for v in n.arg]
        elif n.op in _JOINED:
            values[n] = [v for s in n.src for v in values[s]]
        elif n.op is Ops.GEP:
            values[n] = [values[n.src[0]][i] for i in n.arg]
        else:
            of, to = n.src[-1].dtype.scalar, n.dtype.scalar
            operands = zip(*(values[s] for s in n.src), strict=True)
            values[n] = [evaluate_array(n.op, of, *x, to=to) for x in operands]
    return values[root]


def _constant(value: Any, dtype: DType, size: int) -> Any:
    return np.full(size, value, np.int64 if dtype.is_index else _storage(dtype))


def _differ(a: Any, b: Any, dtype: DType, zero_sign: bool) -> Any:
    if not dtype.is_float:
        return a != b
    x, y = a.astype(np.float64), b.astype(np.float64)
    same = (x == y) & (zero_sign | (np.signbit(x) == np.signbit(y)))
    return ~(same | (np.isnan(x) & np.isnan(y)))
