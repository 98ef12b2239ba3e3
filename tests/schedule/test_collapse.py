"""Which reductions lose their loops, which keep them, and what the sums are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.dtype import (
    DType,
    bool_,
    float8_e4m3,
    float8_e5m2,
    float16,
    float32,
    index,
    int8,
    int32,
    int64,
    uint8,
)
from morok.ir import build
from morok.ir.infer import ranges
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Op, Ops
from morok.proof.graphs import evaluate_graph
from morok.rewrite.match import apply_rule
from morok.schedule.kernel import probe
from morok.schedule.kernel.collapse import collapse_rules, exact_limit
from morok.schedule.kernel.reductions import reduction_rules
from morok.symbolic.sets import simplify

(COLLAPSE,) = collapse_rules.rules
REDUCTIONS = {rule.name.rpartition(".")[2]: rule for rule in reduction_rules}
K, J = build.rng(5, 0), build.rng(3, 1)
E = make(Ops.DEFINE_VAR, index, (), ("e", -3, 8))
FLAG = make(Ops.DEFINE_VAR, bool_, (), ("flag", 0, 1))


def num(value: int) -> UOp:
    return const(index, value)


def read(place: UOp, dtype: DType = int32, number: int = 0, gate: UOp | None = None) -> UOp:
    memory = build.define_global(dtype, 64, number)
    return make(Ops.INDEX, dtype, (memory, place) if gate is None else (memory, place, gate))


def collapsed(value: UOp, *loops: UOp, op: Op = Ops.ADD) -> UOp | None:
    return apply_rule(COLLAPSE, make(Ops.REDUCE, value.dtype, (value, *(loops or (K,))), (op,)), None)


def values(root: UOp) -> list[object]:
    """For every e."""
    return [evaluate_graph(root, {E: e})[0] for e in range(-3, 9)]


def where(p: UOp, x: UOp, y: object) -> UOp:
    return alu(Ops.WHERE, p, x, const(x.dtype, y))


# --- sums that are arithmetic


@pytest.mark.parametrize(("dtype", "count"), [(float8_e4m3, 841), (float16, 70_001), (float8_e5m2, 100_000)])
def test_zeros_are_zero_however_many(dtype: DType, count: int) -> None:
    """Also where the type has no such number, so that it is infinite, or none, when it is converted."""
    many = build.rng(count, 0)
    zero = const(dtype, 0.0)
    for value in (zero, const(dtype, -0.0), where(alu(Ops.CMPLT, many, num(count - 1)), zero, 0.0)):
        found = collapsed(value, many)
        assert found is None or simplify(found) is zero


@pytest.mark.parametrize("slope", [1, -1, 2, -3])
@pytest.mark.parametrize("more", [0, 7])
def test_sums_of_lines(slope: int, more: int) -> None:
    line = build.cast(K * slope + E * 2 + more, int32)
    found = collapsed(line)
    assert found is not None and not ranges(found)
    assert values(found) == [sum(slope * k + 2 * e + more for k in range(5)) for e in range(-3, 9)]
    halves = collapsed(build.cast(K * slope, int32) + build.cast(K, int32))
    assert halves is not None and simplify(halves) is const(int32, 10 * slope + 10)
    scaled = collapsed(alu(Ops.MUL, line, build.cast(E, int32)))
    assert scaled is not None
    assert values(scaled) == [e * sum(slope * k + 2 * e + more for k in range(5)) for e in range(-3, 9)]
    scaled = collapsed(alu(Ops.MUL, build.cast(E, int32), line))
    assert scaled is not None and not ranges(scaled)


def test_sums_that_are_no_lines_keep_their_loop() -> None:
    assert collapsed(alu(Ops.MUL, build.cast(K, int32), build.cast(K, int32))) is None
    assert collapsed(build.cast(alu(Ops.FLOORDIV, K, num(2)), int32)) is None
    assert collapsed(read(K)) is None
    assert collapsed(alu(Ops.ADD, build.cast(K, int32), read(K))) is None
    assert collapsed(build.cast(K, float32), op=Ops.MAX) is None
    assert collapsed(alu(Ops.ADD, build.cast(K, float32), const(float32, 1.0))) is None
    assert collapsed(build.cast(K, int32), op=Ops.MAX) is None
    assert collapsed(alu(Ops.MUL, build.cast(K, float32), read(E, float32))) is None, "floats round"


def test_a_cast_that_may_have_changed_the_index_is_not_looked_through() -> None:
    for start, fits in ((123, True), (124, False), (-128, True), (-129, False)):
        line = build.cast(build.cast(K + start, int8), int32)
        assert (collapsed(line) is not None) == fits, start
    for start, fits in ((0, True), (-1, False), (251, True), (252, False)):
        assert (collapsed(build.cast(build.cast(K + start, uint8), int32)) is not None) == fits, start
    for start, fits in ((2044, True), (2045, False), (-2048, True), (-2049, False)):
        assert (collapsed(build.cast(K + start, float16)) is not None) == fits, start


def test_whole_numbers_that_floats_hold() -> None:
    assert exact_limit(float16) == 2**11
    assert exact_limit(float32) == 2**24
    n = build.rng(2047, 0)
    assert collapsed(const(float16, 1.0), n) is not None
    assert collapsed(const(float16, 1.0), build.rng(2048, 0)) is None
    assert collapsed(const(float16, -1.0), n) is not None
    assert collapsed(const(float16, -1.0), build.rng(2048, 0)) is None
    assert collapsed(const(float16, 0.5), n) is None
    assert collapsed(const(float16, float("nan"))) is None
    assert collapsed(const(float16, float("inf"))) is None
    assert collapsed(read(E, float32)) is None
    unknown = build.rng(make(Ops.DEFINE_VAR, index, (), ("n", 1, 2047)), 0)
    assert collapsed(const(float16, 1.0), unknown) is not None
    unknown = build.rng(make(Ops.DEFINE_VAR, index, (), ("n", 1, 2048)), 0)
    assert collapsed(const(float16, 1.0), unknown) is None


# --- values that do not change


def test_what_does_not_change() -> None:
    x = read(E)
    assert simplify(collapsed(x)) is simplify(x * 5)  # type: ignore[arg-type]
    for op in (Ops.MAX, Ops.MIN):
        assert collapsed(x, op=op) is x
        assert collapsed(read(E, float32), op=op) is read(E, float32)
    for op in (Ops.AND, Ops.OR):
        assert collapsed(FLAG, op=op) is FLAG
    assert collapsed(x, op=Ops.MUL) is None
    assert collapsed(FLAG, build.rng(4, 0), op=Ops.XOR) is None, "four times is never"
    perhaps = build.rng(make(Ops.DEFINE_VAR, index, (), ("n", 0, 3)), 0)
    some = build.rng(make(Ops.DEFINE_VAR, index, (), ("n", 1, 3)), 0)
    assert collapsed(x, perhaps, op=Ops.MAX) is None, "the maximum of nothing is another one"
    assert collapsed(x, some, op=Ops.MAX) is x
    assert collapsed(FLAG, perhaps, op=Ops.OR) is None
    assert collapsed(x, perhaps) is not None


def test_sums_of_truths_say_whether_there_is_one() -> None:
    """As NumPy's sum with dtype=bool."""
    found = collapsed(FLAG)
    assert found is not None and simplify(found) is FLAG
    times = make(Ops.DEFINE_VAR, index, (), ("n", 0, 3))
    found = collapsed(FLAG, build.rng(times, 0))
    assert found is not None
    for n in range(4):
        for flag in (False, True):
            wanted = np.full(n, flag).sum(dtype=bool)
            assert evaluate_graph(found, {times: n, FLAG: flag})[0] == wanted, (n, flag)
    found = collapsed(where(alu(Ops.CMPLT, K, E), const(bool_, True), False))
    assert found is not None
    assert values(found) == [bool((np.arange(5) < e).sum(dtype=bool)) for e in range(-3, 9)]


def test_one_loop_after_the_other() -> None:
    both = collapsed(read(J), K, J)
    assert both is not None and both.op is Ops.REDUCE and both.src[1:] == (J,)
    assert collapsed(read(J + K), K, J) is None
    assert collapsed(read(E), num(0), op=Ops.MAX) is None, "what has become a constant is no loop"
    found = collapsed(read(J), num(0), K, J, op=Ops.MAX)
    assert found is not None and found.src[1:] == (num(0), J)
    two = make(Ops.REDUCE, int32, (read(E), read(E), K), (Ops.ADD, Ops.ADD))
    assert apply_rule(COLLAPSE, two, None) is None


# --- choices


@pytest.mark.parametrize("factor", [1, -1, 2, -3])
def test_a_step_that_is_known(factor: int) -> None:
    for equal in (alu(Ops.CMPEQ, K * factor + 1, E), alu(Ops.CMPEQ, E, K * factor + 1)):
        found = collapsed(where(equal, build.cast(K * K, int32), 0))
        assert found is not None and K not in ranges(found)
        assert values(found) == [sum(k * k for k in range(5) if k * factor + 1 == e) for e in range(-3, 9)]
        for more in (alu(Ops.CMPLT, K, num(3)), alu(Ops.CMPLT, num(1), K)):
            for both in (alu(Ops.AND, equal, more), alu(Ops.AND, more, equal)):
                found = collapsed(where(both, build.cast(K + 1, int32), 0))
                assert found is not None and K not in ranges(found)
                steps = range(3) if more.src[0] is K else range(2, 5)
                assert values(found) == [
                    sum(k + 1 for k in steps if k * factor + 1 == e) for e in range(-3, 9)
                ]
    narrow = alu(Ops.CMPEQ, build.cast(K, int32), build.cast(E, int32))
    assert collapsed(where(narrow, read(K), 0)) is not None


def test_equations_that_say_nothing_of_the_step() -> None:
    assert collapsed(where(alu(Ops.CMPEQ, K, K * 2), read(K), 0)) is None
    for nothing in (K - K, alu(Ops.ADD, K, K * -1)):
        assert collapsed(where(alu(Ops.CMPEQ, nothing, E), read(K), 0)) is None
    assert collapsed(where(alu(Ops.CMPEQ, K * K, E), read(K), 0)) is None
    assert collapsed(where(alu(Ops.CMPNE, K, E), read(K), 0)) is None
    assert collapsed(where(alu(Ops.CMPEQ, build.cast(K, float32), read(E, float32)), read(K), 0)) is None
    far = make(Ops.DEFINE_VAR, index, (), ("far", 0, 1 << 40))
    assert collapsed(where(alu(Ops.CMPEQ, build.cast(K + far, int32), const(int32, 3)), read(K), 0)) is None


def test_a_choice_either_way_round() -> None:
    equal = alu(Ops.CMPEQ, K, E)
    zero, x = const(int32, 0), read(K)
    assert collapsed(alu(Ops.WHERE, equal, x, zero)) is not None
    assert collapsed(alu(Ops.WHERE, alu(Ops.CMPLT, K, E), zero, build.cast(K, int32))) is not None
    assert collapsed(where(equal, x, 1)) is None
    for op, neutral in ((Ops.MAX, int32.min), (Ops.MIN, int32.max), (Ops.MUL, 1)):
        assert collapsed(where(equal, x, neutral), op=op) is not None
        assert collapsed(where(equal, x, 0), op=op) is None


def test_the_opposite_of_a_choice_is_one_for_sums_alone() -> None:
    equal, x = alu(Ops.CMPEQ, K, E), read(K)
    found = collapsed(alu(Ops.NEG, where(equal, x, 0)))
    assert found is not None and K not in ranges(found)
    for op, neutral in ((Ops.MAX, int32.min), (Ops.MIN, int32.max), (Ops.MUL, 1)):
        chosen = where(equal, x, neutral)
        assert collapsed(alu(Ops.NEG, chosen), op=op) is None, "elsewhere it changes what is found"


def test_masks_as_numbers() -> None:
    equal, x = alu(Ops.CMPEQ, K, E), read(K)
    mask = build.cast(equal, int32)
    assert collapsed(alu(Ops.MUL, mask, x)) is not None
    assert collapsed(alu(Ops.MUL, x, mask)) is not None
    assert collapsed(mask) is not None
    assert values(collapsed(mask)) == [int(0 <= e < 5) for e in range(-3, 9)]  # type: ignore[arg-type]
    counted = collapsed(build.cast(alu(Ops.CMPLT, K, E), float32))
    assert counted is not None and values(counted) == [max(0, min(5, e)) for e in range(-3, 9)]
    floats = alu(Ops.MUL, build.cast(equal, float32), read(K, float32))
    assert collapsed(floats) is None, "0 times infinity is not 0"
    threes = alu(Ops.WHERE, equal, const(int32, 3), const(int32, 0))
    assert collapsed(alu(Ops.MUL, threes, x)) is None, "no mask of ones"
    assert collapsed(read(K), op=Ops.OR) is None
    assert collapsed(alu(Ops.AND, x, mask), op=Ops.OR) is None
    assert collapsed(mask, op=Ops.MAX) is None
    assert collapsed(alu(Ops.MUL, mask, x), op=Ops.MAX) is None
    assert collapsed(equal, op=Ops.OR) is not None
    assert collapsed(alu(Ops.AND, equal, FLAG), op=Ops.OR) is not None
    assert collapsed(equal, op=Ops.AND) is None
    assert collapsed(alu(Ops.CMPLT, K, E), op=Ops.OR) is None


def test_a_row_is_read_only_if_it_is_there() -> None:
    found = collapsed(where(alu(Ops.CMPEQ, K, E), read(K), 0))
    assert found is not None
    (got,) = (n for n in toposort(found) if n.op is Ops.INDEX)
    assert got.src[1] is E or simplify(got.src[1]) is E
    gate = simplify(got.src[2])
    assert [evaluate_graph(gate, {E: e})[0] for e in range(-3, 9)] == [0 <= e < 5 for e in range(-3, 9)]
    found = collapsed(where(alu(Ops.CMPEQ, K, E), read(K, gate=alu(Ops.CMPLT, K, num(2))), 0))
    (got,) = (n for n in toposort(found) if n.op is Ops.INDEX)  # type: ignore[arg-type]
    gate = simplify(got.src[2])
    assert [evaluate_graph(gate, {E: e})[0] for e in range(-3, 9)] == [0 <= e < 2 for e in range(-3, 9)]
    found = collapsed(where(alu(Ops.CMPEQ, K, E), alu(Ops.ADD, read(K), read(num(2), number=1)), 0))
    gates = {n.src[0].arg: len(n.src) for n in toposort(found) if n.op is Ops.INDEX}  # type: ignore[arg-type]
    assert sorted(gates.values()) == [2, 3], "what does not depend on the step is read as before"


@pytest.mark.parametrize("negated", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("factor", [1, -1])
def test_steps_between_limits(negated: bool, turned: bool, factor: int) -> None:
    sides = (K * factor + 2, E)
    p = alu(Ops.CMPLT, *(sides[::-1] if turned else sides))
    p = alu(Ops.NOT, p) if negated else p

    def holds(k: int, e: int) -> bool:
        return ((e < k * factor + 2) if turned else (k * factor + 2 < e)) != negated

    found = collapsed(where(p, build.cast(K, int32), 0))
    assert found is not None and not ranges(found)
    assert values(found) == [sum(k for k in range(5) if holds(k, e)) for e in range(-3, 9)]
    inside = alu(Ops.AND, p, alu(Ops.CMPLT, num(1), K))
    found = collapsed(where(alu(Ops.AND, inside, FLAG), const(int32, 1), 0))
    assert found is not None
    counts = [evaluate_graph(found, {E: e, FLAG: True})[0] for e in range(-3, 9)]
    assert counts == [sum(holds(k, e) for k in range(2, 5)) for e in range(-3, 9)]
    assert {evaluate_graph(found, {E: e, FLAG: False})[0] for e in range(-3, 9)} == {0}


def test_limits_that_are_not_solved() -> None:
    one = const(int32, 1)
    assert collapsed(where(alu(Ops.CMPLT, K * 2, E), one, 0)) is None
    assert collapsed(where(alu(Ops.CMPLT, K * K, E), one, 0)) is None
    assert collapsed(where(alu(Ops.CMPNE, K, E), one, 0)) is None
    assert collapsed(where(alu(Ops.CMPLT, K, E), const(int32, 1), 1), op=Ops.MUL) is None
    assert collapsed(where(alu(Ops.CMPLT, read(K), const(int32, 3)), one, 0)) is None
    assert collapsed(where(alu(Ops.CMPLT, build.cast(K, int32), read(E)), one, 0)) is None
    assert collapsed(where(alu(Ops.CMPLT, read(E), build.cast(K, int32)), one, 0)) is None
    assert collapsed(where(alu(Ops.CMPLT, read(K, float32), const(float32, 3)), one, 0)) is None


# --- less inside of the loop


def reduced(value: UOp, *loops: UOp, op: Op = Ops.ADD) -> UOp:
    return make(Ops.REDUCE, value.dtype, (value, *loops), (op,))


def made(rule: str, node: UOp) -> UOp | None:
    return apply_rule(REDUCTIONS[rule], node, None)


def test_reductions_of_reductions() -> None:
    inner = reduced(read(K + J), J)
    assert made("nested", reduced(inner, K)) is reduced(read(K + J), K, J)
    assert made("nested", reduced(inner, K, op=Ops.MAX)) is None
    assert made("nested", reduced(read(K), K)) is None
    two = make(Ops.REDUCE, int32, (inner, inner, K), (Ops.ADD, Ops.ADD))
    assert made("nested", two) is None
    both = make(Ops.REDUCE, int32, (read(J), read(J), J), (Ops.ADD, Ops.ADD))
    assert made("nested", make(Ops.REDUCE, int32, (both, read(K), K), (Ops.ADD, Ops.ADD))) is None


@pytest.mark.parametrize(("op", "neutral"), [(Ops.ADD, 0), (Ops.MAX, int32.min), (Ops.MUL, 1)])
def test_reductions_of_some_reductions(op: Op, neutral: int) -> None:
    p = alu(Ops.CMPLT, K, E)
    inner = reduced(read(K + J), J, op=op)
    want = reduced(where(p, read(K + J), neutral), K, J, op=op)
    assert made("nested-condition", reduced(where(p, inner, neutral), K, op=op)) is want
    assert made("nested-condition", reduced(where(p, inner, 5), K, op=op)) is None
    assert made("nested-condition", reduced(where(p, read(K), neutral), K, op=op)) is None
    assert made("nested-condition", reduced(inner, K, op=op)) is None
    other = Ops.MIN
    assert made("nested-condition", reduced(where(p, inner, int32.max), K, op=other)) is None
    asks = alu(Ops.CMPLT, J, E)  # of the inner loop, or of one with the same number outside
    assert made("nested-condition", reduced(where(asks, inner, neutral), K, op=op)) is None
    both = make(Ops.REDUCE, int32, (read(J), read(J), J), (op, op))
    for first in (inner, both):
        two = make(Ops.REDUCE, int32, (where(p, first, neutral), read(K), K), (op, op))
        assert made("nested-condition", two) is None


def test_factors_and_conditions_leave_the_loop() -> None:
    factor, x = read(E), read(K)
    for product in (alu(Ops.MUL, x, factor), alu(Ops.MUL, factor, x)):
        assert made("factor", reduced(product, K)) is alu(Ops.MUL, reduced(x, K), factor)
    assert made("factor", reduced(alu(Ops.MUL, x, read(K, number=1)), K)) is None
    assert made("factor", reduced(alu(Ops.MUL, x, factor), K, op=Ops.MAX)) is None
    assert made("factor", reduced(alu(Ops.ADD, x, factor), K)) is None
    floats = alu(Ops.MUL, read(K, float32), read(E, float32))
    assert made("factor", reduced(floats, K)) is None
    p = alu(Ops.CMPLT, E, num(2))
    assert made("condition", reduced(where(p, x, 0), K)) is alu(Ops.WHERE, p, reduced(x, K), const(int32, 0))
    assert made("condition", reduced(where(p, x, 1), K)) is None
    assert made("condition", reduced(where(alu(Ops.CMPLT, K, E), x, 0), K)) is None
    assert made("condition", reduced(x, K)) is None
    most = where(p, x, int32.min)
    assert made("condition", reduced(most, K, op=Ops.MAX)) is not None
    assert made("condition", reduced(where(p, x, 0), K, op=Ops.MAX)) is None
    two = make(Ops.REDUCE, int32, (where(p, x, 0), x, K), (Ops.ADD, Ops.ADD))
    assert made("condition", two) is None


def test_long_sums_do_not_wrap() -> None:
    found = collapsed(build.cast(build.rng(1 << 20, 0), int64), build.rng(1 << 20, 0))
    assert found is not None and simplify(found) is const(int64, (1 << 20) * ((1 << 20) - 1) // 2)


def test_one_number_everywhere_is_no_reason_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums over products with an expanded constant were all lowered, to find that they keep their loops."""
    tried: list[UOp] = []
    collapses = probe._collapses

    def note(node: UOp, opaque: set[UOp]) -> bool:
        tried.append(node)
        return collapses(node, opaque)

    monkeypatch.setattr(probe, "_collapses", note)
    x = Tensor.empty(7, 33)
    scale = Tensor.full((1, 1), 0.37).expand(7, 33)
    (x * scale).sum(1).prepare()
    assert not tried
    (x * scale.pad(((0, 0), (1, 0))).shrink(((0, 7), (0, 33)))).sum(1).prepare()
    assert len(tried) == 1  # padding says where one is
    (x * (Tensor.arange(33) < 5)).sum(1).prepare()
    assert len(tried) == 2


def test_arithmetic_without_positions_is_memory_to_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is picked out of a long chain: the chain need not be lowered to know that; what is the same
    along an axis is no memory of that axis."""
    sizes: list[int] = []
    usual = probe.on_memory

    def counted(value: UOp, is_leaf: Callable[[UOp], bool]) -> UOp | None:
        form = usual(value, is_leaf)
        sizes.append(0 if form is None else len(toposort(form)))
        return form

    monkeypatch.setattr(probe, "on_memory", counted)
    x, bias, scalar = Tensor.empty(8, 6), Tensor.empty(6), Tensor.empty(1, 6)
    for _ in range(30):
        x = (x * 0.5 + bias).sigmoid().pad(((1, 1), (0, 0)))[1:9]
    rows = Tensor.arange(8).reshape(8, 1)
    picked = rows.eq(3).where(x, 0.0).sum(0)  # a gather
    same = rows.eq(3).where((scalar + bias).expand(8, 6), 0.0).sum(0)  # a factor in front
    with knobs.override(CACHE=0):
        for value in (picked, same):
            plan = value.prepare()
            assert not any(n.op is Ops.REDUCE for kernel in plan.kernels for n in toposort(kernel.ast))
    assert len(sizes) >= 2 and max(sizes) < 60
