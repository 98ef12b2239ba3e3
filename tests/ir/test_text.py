"""Trees and mathematics for people; Python text that parses back to the same node."""

import dataclasses
import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from morok import dtype as dtypes
from morok.dtype import AddrSpace, bool_, float32, float64, index, int32, int64, void
from morok.errors import ParseError
from morok.ir.args import register_arg
from morok.ir.build import (
    cast,
    define_global,
    end,
    gep,
    load,
    reduce,
    rng,
    sink,
    store,
    variable,
    vectorize,
    where,
)  # fmt: skip
from morok.ir.build import index as element
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import AxisKind, Ops
from morok.ir.text import expr, parse, to_python, tree

I, J = variable("i", 0, 7), variable("j", 0, 7)
R = rng(8, 0)


@register_arg
@dataclasses.dataclass(frozen=True)
class Tile:
    name: str
    sizes: tuple[int, ...]
    scale: float
    kind: AxisKind = AxisKind.LOCAL
    inner: Any = None


def kernel() -> UOp:
    c = rng(variable("n", 1, 64), 1, AxisKind.REDUCE)
    x = load(element(define_global(float32, 512, 0), R * 64 + c, gate=c < 60), 0.0)
    total = reduce(x, Ops.ADD, (c,))
    return sink(end(store(element(define_global(float32, 8, 1), R), total * total), R))


# --- for people


@pytest.mark.parametrize(
    ("n", "text"),
    [
        ((I * 4 + J) % 8 < 3, "(i*4 + j) % 8 < 3"),
        (I * (J + 1), "i*(j + 1)"),
        (I - (J - 1), "i - (j - 1)"),
        (I - J - 1, "i - j - 1"),
        (I + (J + 1), "i + j + 1"),
        (I // (J // 2), "i//(j//2)"),
        (I // J // 2, "i//j//2"),
        (I * (J * 2), "i*(j*2)"),
        (-(I + 1), "-(i + 1)"),
        (I + -3, "i + -3"),
        (-I * 2, "-i*2"),
        (I & 3 | J, "i & 3 | j"),
        (I & (J | 3), "i & (j | 3)"),
        ((I < 3) & (J < 4), "(i < 3) & (j < 4)"),
        (~(I < 3), "~(i < 3)"),
        ((I < 3).eq(J < 4), "(i < 3) == (j < 4)"),
        (where(I < 3, I, 0) + 1, "(i if i < 3 else 0) + 1"),
        (where(I < 3, where(J < 2, I, J), 0), "(i if j < 2 else j) if i < 3 else 0"),
        (alu(Ops.SHL, I, J) + 1, "(i << j) + 1"),
        (I.maximum(J + 1), "max(i, j + 1)"),
        (cast(I + 1, float32), "float32(i + 1)"),
        (R * 2, "r0*2"),
        (load(element(define_global(float32, 8, 0), R + 1)), "data0[r0 + 1]"),
        (load(element(define_global(float32, 8, 0), R, gate=R < 5), 0.0), "data0[r0 if r0 < 5] else 0.0"),
        (alu(Ops.CDIV, I, J), "cdiv(i, j)"),
        (const(bool_, True), "True"),
        (gep(vectorize(I, J), 1), "gep[(1,)](vectorize(i, j))"),
    ],
)
def test_mathematics(n: UOp, text: str) -> None:
    assert expr(n) == text


OPERATORS = [Ops.ADD, Ops.SUB, Ops.MUL, Ops.FLOORDIV, Ops.FLOORMOD, Ops.AND, Ops.OR, Ops.XOR]


@pytest.mark.parametrize(
    ("outer", "inner"), list(itertools.product(OPERATORS, OPERATORS)), ids=lambda op: op.name
)
def test_brackets_are_where_python_needs_them(outer: Any, inner: Any) -> None:
    from morok.ir.arithmetic.alu import evaluate

    k = variable("k", 1, 9)
    left, right = alu(outer, alu(inner, I, J), k), alu(outer, I, alu(inner, J, k))
    for i, j, k_value in itertools.product((1, 5), (2, 3), (3, 4)):
        values = {"i": i, "j": j, "k": k_value}
        inner_left, inner_right = evaluate(inner, index, i, j), evaluate(inner, index, j, k_value)
        if not (inner_right and inner_left):
            continue
        assert eval(expr(left), {}, values) == evaluate(outer, index, inner_left, k_value)
        assert eval(expr(right), {}, values) == evaluate(outer, index, i, inner_right)


def test_long_mathematics_is_shortened() -> None:
    n = I
    for k in range(50_000):
        n = n * 3 + k
    assert len(expr(n)) <= 160
    assert len(expr(n, limit=40)) <= 40
    assert "…" in expr(n)


def test_tree() -> None:
    n = (I * 2 + J) * (I * 2 + J)
    assert tree(n) == "\n".join(
        [
            "MUL index",
            "├─ #1 ADD index",
            "│  ├─ MUL index",
            "│  │  ├─ DEFINE_VAR index ('i', 0, 7)",
            "│  │  └─ CONST index 2",
            "│  └─ DEFINE_VAR index ('j', 0, 7)",
            "└─ → #1",
        ]
    )


def test_tree_with_places() -> None:
    n = variable("text_places", 0, 3) * 424242
    assert tree(n, places=True).count("· test_text.py:") == 3


def test_tree_of_a_deep_graph_stays_small() -> None:
    n = I
    for k in range(20_000):
        n = n + k
    text = tree(n)
    assert max(map(len, text.splitlines())) < 120
    assert text.count("ADD index") == 20_000


def test_tree_prints_every_shared_node_once() -> None:
    n = I
    for _ in range(200):
        n = n * n
    assert tree(n).count("MUL index") == 200


def test_a_printer_does_not_fail_on_a_strange_argument() -> None:
    assert "frozenset" in tree(make(Ops.LINEAR, void, (), frozenset((1,))))


# --- Python


def test_the_python_form() -> None:
    assert to_python(I * 4 + I).splitlines() == [
        "n0 = UOp(Ops.DEFINE_VAR, dtypes.index, (), ('i', 0, 7))",
        "n1 = UOp(Ops.CONST, dtypes.index, (), 4)",
        "n2 = UOp(Ops.MUL, dtypes.index, (n0, n1))",
        "n3 = UOp(Ops.ADD, dtypes.index, (n2, n0))",
        "n3",
    ]


def test_the_python_form_runs() -> None:
    n = kernel()
    names = {"UOp": UOp, "Ops": Ops, "dtypes": dtypes, "AxisKind": AxisKind, "AddrSpace": AddrSpace}
    *lines, last = to_python(n).splitlines()
    exec("\n".join(lines), names)
    assert names[last] is n


ARGUMENTS: list[Any] = [
    None, True, False, 0, -1, 10**40, 0.0, -0.0, 1.5, -2.5e-300, 5e-324, math.inf, -math.inf, math.nan, "",
    "it's", 'a "quoted"\n\\ text', "ä→", b"", b"\x00\xff'", Ops.ADD, AxisKind.REDUCE, AddrSpace.LOCAL,
    float32, bool_, float32.vec(4), (), (1,), (1, 2), ((1, "a"), (Ops.MUL, (None, True))),
    (-0.0, math.nan, -math.inf), Tile("x", (1, 2), -0.0), Tile("x", (1, 2), 0.0),
    Tile("x", (), math.nan, AxisKind.WARP, Tile("y", (3,), math.inf)),
]  # fmt: skip


@pytest.mark.parametrize("arg", ARGUMENTS, ids=repr)
def test_every_argument_comes_back(arg: Any) -> None:
    n = make(Ops.LINEAR, void, (), arg)
    assert parse(to_python(n)) is n


@pytest.mark.parametrize(
    "dtype",
    [
        *dtypes.ALL_SCALARS, void, float32.vec(4), bool_.vec(8), float32.ptr(16),
        int64.ptr(-1, AddrSpace.REG),
        float32.vec(4).ptr(16, AddrSpace.LOCAL), float32.ptr(16).vec(4),
    ],
    ids=str,
)  # fmt: skip
def test_every_dtype_comes_back(dtype: dtypes.DType) -> None:
    n = make(Ops.LINEAR, dtype, (I,), dtype)
    assert parse(to_python(n)) is n


def test_graphs_come_back_as_the_same_node() -> None:
    n = kernel()
    assert parse(to_python(n)) is n
    assert parse("from morok.ir import UOp, Ops\nimport morok.dtype as dtypes\n" + to_python(n)) is n
    assert parse("# a comment\n\n" + to_python(I)) is I


def test_sources_may_be_nested() -> None:
    one = "UOp(Ops.CONST, dtypes.index, (), 1)"
    assert parse(f"UOp(Ops.ADD, dtypes.index, ({one}, {one}))") is const(index, 1) + 1


def test_a_chain_of_20_000_nodes_comes_back() -> None:
    n = I
    for k in range(10_000):
        n = n + k
    assert parse(to_python(n)) is n


@given(st.floats(), st.integers(-(2**63), 2**63 - 1), st.text(), st.binary())
def test_random_arguments_come_back(f: float, i: int, s: str, b: bytes) -> None:
    for n in (const(float64, f), const(int64, i), make(Ops.LINEAR, void, (), (s, b, (f, (i,))))):
        assert parse(to_python(n)) is n


# --- errors with their position

X = "x = UOp(Ops.DEFINE_VAR, dtypes.index, (), ('x', 0, 7))\n"


@pytest.mark.parametrize(
    ("text", "line", "column", "sentence"),
    [
        ("x = UOp(Ops.ADD,,", 1, 17, "this is not Python"),
        (X + "y = UOp(Ops.BLEND, dtypes.index, (x, x))", 2, 9, "unknown op BLEND"),
        (X + "UOp(Ops.ADD, dtypes.index, (x,))", 2, 1, "ADD takes 2 sources, got 1"),
        (X + "UOp(Ops.ADD, dtypes.index, (x, z))", 2, 32, "the name z is not defined"),
        (X + "UOp(Ops.ADD, dtypes.float31, (x, x))", 2, 14, "unknown dtype float31"),
        (X + "UOp(Ops.ADD, 'float32', (x, x))", 2, 14, "expected a dtype like dtypes.float32, got 'float32'"),
        (X + "UOp(Ops.ADD, dtypes.index.vec(-1), (x, x))", 2, 14, "needs a positive number of lanes"),
        (X + "UOp(Ops.ADD, dtypes.index.foo(1), (x, x))", 2, 14, r"a dtype has .vec\(lanes\) and .ptr"),
        (X + "UOp('ADD', dtypes.index, (x, x))", 2, 5, "expected an op like Ops.ADD, got 'ADD'"),
        (X + "UOp(Ops.ADD, dtypes.index, [x, x])", 2, 28, r"sources are a tuple like \(n0, n1\)"),
        (X + "UOp(Ops.ADD)", 2, 1, "UOp takes an op, a dtype, a tuple of sources and an argument"),
        (X + "x + x", 2, 1, r"expected UOp\(op, dtype, sources, arg\) or a node's name, got x \+ x"),
        (X + "print('hello')", 2, 1, "expected UOp"),
        (X + "a = b = x", 2, 1, "a node is assigned to one name"),
        (X + "for i in x: pass", 2, 1, "only assignments"),
        ("UOp(Ops.CONST, dtypes.int32, (), 2.5)", 1, 1, "2.5 is not a value of int32"),
        ("UOp(Ops.CONST, dtypes.int8, (), 300)", 1, 1, "300 is not a value of int8"),
        ("UOp(Ops.CONST, dtypes.int8, (), 'a')", 1, 1, "'a' is not a number"),
        ("UOp(Ops.LINEAR, dtypes.void, (), open('x'))", 1, 34, "open is not a registered class of arguments"),
        ("UOp(Ops.LINEAR, dtypes.void, (), [1])", 1, 34, r"\[1\] cannot be an argument"),
        ("UOp(Ops.LINEAR, dtypes.void, (), AxisKind.SIDEWAYS)", 1, 34, "AxisKind.SIDEWAYS is not known"),
        ("UOp(Ops.LINEAR, dtypes.void, (), Tile(name='a'))", 1, 34, "Tile needs each of its fields by name"),
        ("UOp(Ops.LINEAR, dtypes.void, (), float('1e5'))", 1, 34, "only nan, inf, -inf are written as float"),
        ("", 1, 1, "the text holds no node"),
    ],
)  # fmt: skip
def test_text_that_does_not_parse(text: str, line: int, column: int, sentence: str) -> None:
    with pytest.raises(ParseError, match=sentence) as caught:
        parse(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert str(caught.value).startswith(f"line {line}, column {column}: ")
    assert "\n" not in str(caught.value)


def test_int32_is_not_index() -> None:
    assert parse(to_python(const(int32, 1))) is const(int32, 1)
