"""Identity, immutability and lifetime of nodes."""

import copy
import gc
import math
import pickle
import threading
import weakref
from typing import Any

import pytest

from morok.dtype import bool_, float32, float64, index, int32, void
from morok.errors import IRError, MorokError, VariableError
from morok.ir.build import cast, rng, variable
from morok.ir.node import UOp, alu, const, large_graph, live_nodes, make, toposort, users
from morok.ir.ops import AxisKind, Ops

X, Y = variable("x", 0, 9), variable("y", 0, 9)


def test_what_is_known_later_has_no_truth_now() -> None:
    """`if size > 3` would hold for every size, and `max(size, 3)` be the 3 or the size by chance."""
    for ask in (lambda: X > 3, lambda: X.eq(Y)):
        with pytest.raises(VariableError, match="is known when it runs, and not here"):
            bool(ask())
    with pytest.raises(VariableError, match="whether x < 3 is"):
        max(X, 3)
    assert X and const(index, 0) is not None


# --- identity


def test_equal_constructions_are_one_object() -> None:
    assert X + Y is X + Y
    assert X + 1 is alu(Ops.ADD, X, const(index, 1))
    assert UOp(Ops.ADD, index, (X, Y)) is X + Y
    assert rng(4, 0) is rng(4, 0)
    assert make(Ops.VCONST, float32.vec(2), (), (1.0, math.nan)) is make(
        Ops.VCONST, float32.vec(2), (), (1.0, float("nan"))
    )


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (X + Y, Y + X),
        (X + Y, X * Y),
        (const(int32, 1), const(index, 1)),
        (const(float64, 0.0), const(float64, -0.0)),
        (const(bool_, True), const(int32, 1)),
        (rng(4, 0), rng(4, 1)),
        (rng(4, 0), rng(4, 0, AxisKind.REDUCE)),
        (make(Ops.UNIQUE, void, (), 1), make(Ops.UNIQUE, void, (), True)),
        (make(Ops.UNIQUE, void, (), 1), make(Ops.UNIQUE, void, (), 1.0)),
        (make(Ops.UNIQUE, void, (), (1,)), make(Ops.UNIQUE, void, (), (True,))),
        (make(Ops.UNIQUE, void, (), ((0.0,),)), make(Ops.UNIQUE, void, (), ((-0.0,),))),
        (make(Ops.UNIQUE, void, (), "nan"), make(Ops.UNIQUE, void, (), math.nan)),
        (make(Ops.UNIQUE, void, (), ("-0.0",)), make(Ops.UNIQUE, void, (), (-0.0,))),
    ],
)
def test_different_constructions_are_different_objects(a: UOp, b: UOp) -> None:
    assert a is not b


def test_nan_is_one_constant() -> None:
    assert const(float32, math.nan) is const(float32, float("nan"))


def test_constants_are_brought_into_their_type() -> None:
    assert const(int32, 2**31).arg == -(2**31)
    assert const(float32, 0.1).arg != 0.1
    assert type(const(float32, 1).arg) is float
    assert const(bool_, 3).arg is True


def test_identity_holds_in_many_threads() -> None:
    found: list[list[UOp]] = []
    barrier = threading.Barrier(8)

    def build() -> None:
        barrier.wait()
        n = X
        made = []
        for i in range(2000):
            n = n * 3 + i
            made.append(n)
        found.append(made)

    threads = [threading.Thread(target=build) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    for made in found[1:]:
        assert all(a is b for a, b in zip(made, found[0], strict=True))


def test_making_and_dropping_in_many_threads() -> None:
    failures: list[Any] = []

    def churn(seed: int) -> None:
        try:
            for i in range(3000):
                n = (X + (i % 7)) * (seed % 2)
                assert n is (X + (i % 7)) * (seed % 2)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=churn, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# --- lifetime


def settled() -> int:
    gc.collect()
    return live_nodes()


def test_a_dropped_graph_is_freed() -> None:
    """Its own nodes are counted, not all there are: other tests' graphs may go in the meantime."""
    n = (variable("dropped", 0, 5) * 12_345_671 + 67_891_113) % 10_111_217
    made = [weakref.ref(node) for node in toposort(n)]
    assert len(made) == 7
    del n
    gc.collect()
    assert [ref() for ref in made] == [None] * 7


def test_a_dropped_chain_of_200_000_nodes_is_freed() -> None:
    before = settled()
    n = variable("chain", 0, 5)
    one = const(index, 1)
    for _ in range(200_000):
        n = n + one
    assert live_nodes() >= before + 200_000
    del n, one
    assert settled() <= before + 1


def test_a_node_that_was_freed_can_be_made_again() -> None:
    for _ in range(3):
        n = variable("again", 0, 5) + 1
        assert n.op is Ops.ADD
        del n


# --- immutability


@pytest.mark.parametrize("field", ["op", "dtype", "src", "arg", "origin", "bounds_", "new"])
def test_a_node_cannot_be_changed(field: str) -> None:
    n = X + Y
    with pytest.raises(AttributeError, match="a node is immutable"):
        setattr(n, field, None)
    with pytest.raises(AttributeError, match="a node is immutable"):
        delattr(n, field)
    assert not hasattr(n, "__dict__")


def test_copies_are_the_node_itself() -> None:
    n = X + Y
    assert copy.copy(n) is n
    assert copy.deepcopy([n])[0] is n
    with pytest.raises(TypeError, match="nodes are not pickled"):
        pickle.dumps(n)


def test_replace() -> None:
    n = X + Y
    assert n.replace((X, Y)) is n
    assert n.replace((Y, X)) is Y + X


# --- operators


def test_operators_read_like_mathematics() -> None:
    f = cast(X, float32)
    cases: list[tuple[UOp, Any]] = [
        (X + Y, Ops.ADD), (1 + X, Ops.ADD), (X - 1, Ops.SUB), (1 - X, Ops.SUB), (2 * X, Ops.MUL),
        (f / 2.0, Ops.FDIV), (X // 2, Ops.FLOORDIV), (7 // X, Ops.FLOORDIV), (X % 2, Ops.FLOORMOD),
        (X & 1, Ops.AND), (X | 1, Ops.OR), (X ^ 1, Ops.XOR), (-X, Ops.NEG), (~X, Ops.NOT),
        (X < 3, Ops.CMPLT), (X > 3, Ops.CMPLT), (X.eq(3), Ops.CMPEQ), (X.ne(3), Ops.CMPNE),
        (X.maximum(3), Ops.MAX), (X.minimum(3), Ops.MIN), ((X < 3).where(X, 0), Ops.WHERE),
    ]  # fmt: skip
    for node, op in cases:
        assert node.op is op
    assert (X > 3) is (const(index, 3) < X)
    assert (1 - X).src == (const(index, 1), X)
    assert (X < 3).where(1, Y).src == (X < 3, const(index, 1), Y)


# --- traversal


def test_the_order_of_a_large_graph_is_kept_in_a_block_and_no_longer() -> None:
    node = X
    for i in range(2000):
        node = node * Y + i
    expected = toposort(node)
    alive = live_nodes()
    with large_graph:
        with large_graph:
            first = toposort(node)
        second = toposort(node)
        second.clear()  # it is the caller's own
        assert first == toposort(node) == expected
        assert toposort(node.src[0]) == expected[: expected.index(node.src[0]) + 1]  # another graph
        assert toposort(X + Y) == [X, Y, X + Y]
        assert toposort(node) == expected
        same = make(Ops.SINK, void, (node, X + Y), "another")  # the sources of two roots with other arguments
        assert toposort(make(Ops.SINK, void, (node, X + Y)))[:-1] == toposort(same)[:-1]
        assert toposort(same)[-1] is same
        assert toposort(X) == [X]
        del same
    del node, first, second, expected
    gc.collect()
    assert live_nodes() < alive - 3000


def test_toposort_lists_sources_first_and_each_node_once() -> None:
    n = (X + Y) * (X + Y)
    order = toposort(n)
    assert order == [X, Y, X + Y, n]
    assert toposort(n, stop=lambda node: node is X + Y) == [X + Y, n]
    assert toposort(X, Y) == [X, Y]


def test_users() -> None:
    n = (X + Y) * (X + Y)
    found = users(toposort(n))
    assert found[X + Y] == [n]
    assert found[n] == []
    assert found[X] == [X + Y]


def test_toposort_of_a_chain_of_100_000_nodes() -> None:
    n = X
    for _ in range(100_000):
        n = n + 1
    assert len(toposort(n)) == 100_002


# --- errors


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (("ADD", index, (X, Y)), "unknown op 'ADD'; the table of ops is in morok/ir/ops.py"),
        ((Ops.ADD, "index", (X, Y)), "ADD needs a dtype, got 'index'"),
        ((Ops.ADD, index, [X, Y]), "ADD needs its sources as a tuple, got list"),
        ((Ops.ADD, index, (X,)), "ADD takes 2 sources, got 1"),
        ((Ops.NEG, index, ()), "NEG takes 1 source, got 0"),
        ((Ops.ADD, index, (X, 1)), "a source of ADD is 1, which is not a node"),
        ((Ops.UNIQUE, void, (), [1]), r"the argument of UNIQUE must not change, so \[1\] cannot be one"),
    ],
)
def test_wrong_fields_are_refused_in_one_sentence(fields: Any, sentence: str) -> None:
    with pytest.raises(IRError, match=f"^{sentence}$"):
        make(*fields)


def test_mismatched_types_name_the_users_line() -> None:
    with pytest.raises(
        IRError, match=r"^ADD needs operands of one type, got index and int32; cast one of them \(at t"
    ):
        alu(Ops.ADD, X, const(int32, 1))


def test_a_failed_construction_leaves_nothing_behind() -> None:
    before = settled()
    with pytest.raises(IRError):
        make(Ops.ADD, index, (X,))
    assert settled() == before


@pytest.mark.parametrize(
    ("make_node", "sentence"),
    [
        (lambda x: alu(Ops.SQRT, x), "SQRT is not defined on index"),
        (lambda x: x / x, "FDIV is not defined on index"),
        (lambda x: alu(Ops.ADD, x, 3), "3, which is not a node"),
        (lambda x: x * 0.5, "0.5 is no index; cast the other operand"),
    ],
)
def test_arithmetic_that_means_nothing_is_refused(make_node: Any, sentence: str) -> None:
    with pytest.raises(MorokError, match=sentence):
        make_node(variable("x", 0, 9))


def test_a_malformed_constant_is_not_handed_out_again() -> None:
    wrong = make(Ops.CONST, float32, (), 1)
    assert const(float32, 1) is not wrong
    assert type(const(float32, 1).arg) is float
