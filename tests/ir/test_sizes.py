"""Arithmetic of sizes: equal ones are one node, whatever way they were written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from morok.dtype import index
from morok.ir.bounds import bounds
from morok.ir.build import bind, rng, variable
from morok.ir.node import UOp, alu, const
from morok.ir.ops import Ops
from morok.ir.sizes import at_most, canonical, show_size

K, M = variable("k", 1, 8), variable("m", 0, 4)


def size(value: int) -> UOp:
    return const(index, value)


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        (size(0) + K, "k"),
        (K + 2 - 2, "k"),
        (K + (size(8) - K), "8"),
        (size(8) - K, "8-k"),
        ((K + 1) * 2, "2*k+2"),
        (K * M - M * K, "0"),
        ((K + M) * (K - M), "k*k-m*m"),
        ((K * 4 + 8) // 4, "k+2"),
        ((K * 32 - 1) // 2 // 2 + 1, "8*k"),
        (K // 2 + K // 2, "2*(k//2)"),
        (K - 1, "k-1"),
        (M - K, "m-k"),
        (size(3) - K - M, "3-k-m"),
        ((K - 9) * -1, "9-k"),
        (alu(Ops.MAX, K, size(1)), "k"),
        (alu(Ops.MAX, K, size(8)), "8"),
        (alu(Ops.MIN, K, size(0)), "0"),
        (alu(Ops.MIN, K + M, K), "k"),
        (alu(Ops.MAX, K, M), "max(k, m)"),
        (bind(K, 5) + 2 - 2, "k"),
    ],
)
def test_sizes_are_written_in_one_way(written: UOp, wanted: str) -> None:
    assert show_size(canonical(written)) == wanted


def test_equal_sizes_are_one_node() -> None:
    assert canonical(K + 2 - 2) is K
    assert canonical(bind(K, 5) + 2 - 2) is bind(K, 5)
    assert show_size(canonical(alu(Ops.MAX, bind(K, 5), size(3)))) == "max(k, 3)"
    assert canonical((K + 1) * (M + 1)) is canonical(M + K + K * M + 1)


@pytest.mark.parametrize(
    ("a", "b", "proved"),
    [
        (K, 8, True),
        (K, 7, False),
        (K + 1, K + 1, True),
        (K - M, K, True),
        (K, K - M, False),
        (M, K + 3, True),
    ],
)
def test_at_most_is_proved_for_all_values(a: Any, b: Any, proved: bool) -> None:
    assert at_most(a, b) is proved


def _value(node: UOp, k: int, m: int) -> int:
    if node.op is Ops.CONST:
        return int(node.arg)
    if node.op is Ops.DEFINE_VAR:
        return k if node is K else m
    a, b = (_value(s, k, m) for s in node.src)
    return {
        Ops.ADD: lambda: a + b, Ops.SUB: lambda: a - b, Ops.MUL: lambda: a * b,
        Ops.MAX: lambda: max(a, b), Ops.MIN: lambda: min(a, b), Ops.FLOORDIV: lambda: a // b if b else 0,
    }[node.op]()  # fmt: skip


expressions = st.recursive(
    st.sampled_from((K, M, size(0), size(1), size(3), size(-2))),
    lambda inner: (
        st.builds(alu, st.sampled_from((Ops.ADD, Ops.SUB, Ops.MUL, Ops.MAX, Ops.MIN)), inner, inner)
        | st.builds(lambda x, n: alu(Ops.FLOORDIV, x, size(n)), inner, st.sampled_from((1, 2, 3)))
    ),
    max_leaves=8,
)


@given(expressions)
def test_the_form_has_the_same_values(written: UOp) -> None:
    found = canonical(written)
    for k in (1, 2, 5, 8):
        for m in (0, 3, 4):
            want = _value(written, k, m)
            got = found if isinstance(found, int) else _value(found, k, m)
            assert got == want, show_size(found)
            if not isinstance(found, int):
                low, high = bounds(found)
                assert low <= got <= high


@given(expressions)
def test_what_is_printed_is_the_arithmetic(written: UOp) -> None:
    for k, m in ((1, 0), (5, 3), (8, 4)):
        assert eval(show_size(written), {"k": k, "m": m}) == _value(written, k, m), show_size(written)


def test_a_divisor_is_in_parentheses() -> None:
    assert show_size(K // (M * 2)) == "k//(2*m)"
    assert show_size((K * 2) // (M + 1)) == "2*k//(m+1)"


def test_a_size_is_printed_as_arithmetic() -> None:
    assert repr(bind(K, 5)) == "k"
    assert f"{(bind(K, 5) + 2, 4)}" == "(k+2, 4)"
    assert repr(size(3)).startswith("<CONST")
    assert repr(rng(8, 0) + K).startswith("<ADD")  # which depends on a loop, and is no size
    deep: UOp = K
    for _ in range(2000):
        deep = deep * K + 1
    assert repr(deep).startswith("<ADD")  # too long to read, and to print
