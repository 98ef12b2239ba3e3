"""The translation to Z3 against the meaning table.

Every op, every kind of type, at the edges and at random.
"""

import itertools
import math
import random
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("z3")

from morok.dtype import (
    DType,
    bfloat16,
    bool_,
    float8_e5m2,
    float16,
    float32,
    float64,
    index,
    int8,
    int16,
    int32,
    int64,
    round_float,
    uint8,
    uint16,
    uint32,
    uint64,
)
from morok.ir.arithmetic.alu import MEANING, defined, evaluate, result_dtype
from morok.ir.ops import Op, Ops
from morok.proof.smt.solver import check, euclid, native, z3
from morok.proof.smt.translate import NO_THEORY, Translator

TYPES = (
    bool_,
    int8,
    uint8,
    int16,
    uint32,
    int64,
    uint64,
    index,
    float8_e5m2,
    float16,
    bfloat16,
    float32,
    float64,
)
ALL_TYPES = (*TYPES, uint16, int32)


def edges(dtype: DType) -> list[Any]:
    """Values where ops like to go wrong."""
    if dtype.is_bool:
        return [False, True]
    if dtype.is_index:
        return [0, 1, -1, 2, 3, -7, 8, 100, -(2**40)]
    if dtype.is_int:
        near = [0, 1, 2, 3, 7, dtype.bits - 1, dtype.bits, dtype.max, dtype.max - 1, dtype.min, dtype.min + 1]
        return list(dict.fromkeys(near + ([] if dtype.is_unsigned else [-1, -2, -7])))
    tiny = dtype.smallest_normal * dtype.eps
    halves = [0.5, 1.5, 2.5, -0.5, -2.5]
    values = [0.0, -0.0, 1.0, -1.0, 2.0, 3.0, *halves, tiny, -tiny, dtype.largest, -dtype.largest]
    return [*(round_float(v, dtype) for v in values), math.inf, -math.inf, math.nan]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return (a != a and b != b) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


def operands(op: Op, dtype: DType, rng: random.Random) -> Iterator[tuple[Any, ...]]:
    values = edges(dtype)
    if op.arity == 1:
        yield from ((v,) for v in values)
        return
    kinds = [[False, True], values, values] if op is Ops.WHERE else [values] * op.arity
    cases = list(itertools.product(*kinds))
    yield from cases if len(cases) <= 120 else rng.sample(cases, 120)


def value_in_z3(op: Op, dtype: DType, values: tuple[Any, ...], to: DType | None = None) -> Any:
    """The op on constants, computed by Z3 alone."""
    t = Translator()
    x = [t.constant(v, bool_ if op is Ops.WHERE and not i else dtype) for i, v in enumerate(values)]
    result = to if to is not None else result_dtype(op, dtype)
    out = t.apply(op, dtype, *x, to=to)
    simple = z3.simplify(out)
    if not t.divisions and not t.assumed and z3.is_app(simple) and not simple.num_args():
        return t.value(_EMPTY, simple, result)
    answer = t.variable("answer", result)
    found = check([answer == out, *t.assumed, *native(t.divisions)], 5000)
    again = check([answer == out, *t.assumed, *euclid(t.divisions)], 5000)
    values_found = [t.value(f.model, answer, result) for f in (found, again)]
    assert same(*values_found)
    return values_found[0]


class _Empty:
    def eval(self, e: Any, model_completion: bool = False) -> Any:
        return e


_EMPTY = _Empty()
CASES = [
    (op, dtype)
    for op in MEANING
    for dtype in TYPES
    if defined(op, dtype) and not (dtype.is_float and op in NO_THEORY) and op not in (Ops.CAST, Ops.BITCAST)
]


@pytest.mark.parametrize(("op", "dtype"), CASES, ids=lambda v: getattr(v, "name", None))
def test_an_op_means_the_same_in_z3(op: Op, dtype: DType) -> None:
    rng = random.Random(f"{op.name}{dtype}")
    for values in operands(op, dtype, rng):
        if op is Ops.POW and (dtype.is_float or dtype.is_index) and values[1] not in (0, 1, 2):
            continue  # uninterpreted
        if op is Ops.POW and dtype is float64 and values[1] == 2:
            continue
        expected = evaluate(op, dtype, *values)
        assert same(value_in_z3(op, dtype, values), expected), (values, expected)


@pytest.mark.parametrize("source", ALL_TYPES, ids=str)
def test_a_cast_means_the_same_in_z3(source: DType) -> None:
    for to in ALL_TYPES:
        for v in edges(source):
            expected = evaluate(Ops.CAST, source, v, to=to)
            assert same(value_in_z3(Ops.CAST, source, (v,), to), expected), (to, v, expected)


@pytest.mark.parametrize("source", ALL_TYPES, ids=str)
def test_a_bitcast_means_the_same_in_z3(source: DType) -> None:
    for to in ALL_TYPES:
        if not defined(Ops.BITCAST, source) or not defined(Ops.BITCAST, to) or source.bits != to.bits:
            continue
        for v in edges(source):
            if v != v:
                continue  # the payload of a NaN is nobody's business
            expected = evaluate(Ops.BITCAST, source, v, to=to)
            assert same(value_in_z3(Ops.BITCAST, source, (v,), to), expected), (to, v, expected)


@pytest.mark.parametrize("dtype", (int8, uint8, int16), ids=str)
def test_symbolic_and_constant_operands_agree(dtype: DType) -> None:
    """The same formulas on variables that a solver has to fill in."""
    rng = random.Random(0)
    for op in MEANING:
        if (
            not defined(op, dtype)
            or op in (Ops.CAST, Ops.BITCAST, Ops.WHERE)
            or (op is Ops.POW and dtype is int16)
        ):
            continue
        for _ in range(3):
            values = [rng.choice(edges(dtype)) for _ in range(op.arity)]
            t = Translator()
            x = [t.variable(f"x{i}", dtype) for i in range(op.arity)]
            result = result_dtype(op, dtype)
            expected = t.constant(evaluate(op, dtype, *values), result)
            equal = [a == t.constant(v, dtype) for a, v in zip(x, values, strict=True)]
            assert check([*equal, t.apply(op, dtype, *x) != expected], 5000).status == "proved", (op, values)


def test_every_op_has_a_meaning_or_is_named_as_having_none() -> None:
    missing = []
    for op in MEANING:
        for dtype in TYPES:
            if not defined(op, dtype) or op in (Ops.CAST, Ops.BITCAST, Ops.WHERE):
                continue
            t = Translator()
            try:
                t.apply(op, dtype, *(t.variable(f"v{i}", dtype) for i in range(op.arity)))
            except Exception as error:
                missing.append(f"{op.name} on {dtype}: {error}")
    assert not missing
