"""The language of rules: what can be written, what it means, and what is refused when a set is built."""

from typing import Any

import pytest

from morok.dtype import bool_, float32, index, int8, int32, uint8
from morok.errors import RuleError
from morok.ir.arithmetic.alu import evaluate
from morok.ir.build import cast, gep, group, sink, variable, vectorize, where
from morok.ir.node import UOp, alu, const
from morok.ir.ops import Ops
from morok.rewrite.engine import rewrite
from morok.rewrite.rules import REASSOCIATING, Rules, grows, unproved, when, why
from morok.rewrite.ruleset import REGISTRY, RuleSet, rules
from morok.rewrite.terms import (
    HEADS,
    Add,
    AnyBinary,
    Arg,
    Bool,
    Cast,
    Const,
    Float,
    Index,
    Int,
    IntConst,
    Many,
    Max,
    Mul,
    Sub,
    Var,
    Where,
    dtype,
    one,
    true,
    vmax,
    vmin,
    zero,
)


@pytest.fixture(autouse=True)
def _leave_the_registry_alone() -> Any:
    before = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


X, Y, Z = (variable(n, -50, 50) for n in "xyz")


def num(value: int) -> UOp:
    return const(index, value)


def test_the_example_of_the_founding_document_reads_almost_word_for_word() -> None:
    def eval_binary_op(op: Any) -> Any:
        def folded(node: UOp, a: UOp, b: UOp) -> UOp:
            return const(node.dtype, evaluate(op, a.dtype, a.arg, b.arg))

        return folded

    @rules("test.founding")
    def optimizer(x: Var, a: Const, b: Const) -> Rules:
        # identity folding (commutative)
        yield "add-zero", Add[x, zero] >> x
        yield "mul-one", Mul[x, one] >> x
        # constant folding
        for op in (Add, Mul, Sub):
            yield f"fold-{op}", op(a, b) >> eval_binary_op(op.ops[0]), why("computes on the values")

    assert rewrite(num(0) + X, optimizer) is X
    assert rewrite(X * 1, optimizer) is X
    assert rewrite(num(6) - num(2) * num(5), optimizer) is num(-4)
    assert [r.name for r in optimizer] == [
        "test.founding.add-zero", "test.founding.mul-one", "test.founding.fold-Add",
        "test.founding.fold-Mul", "test.founding.fold-Sub",
    ]  # fmt: skip


def test_brackets_match_in_any_order_and_parentheses_in_theirs() -> None:
    @rules("test.order")
    def either(x: Var) -> Rules:
        yield "either", Add[x, 7] >> x

    @rules("test.ordered")
    def ordered(x: Var) -> Rules:
        yield "ordered", Add(x, 7) >> x

    @rules("test.infix")
    def infix(x: Var) -> Rules:
        yield "infix", x + 7 >> x

    assert rewrite(num(7) + X, either) is X and rewrite(X + 7, either) is X
    assert rewrite(num(7) + X, infix) is X and rewrite(X + 7, infix) is X
    assert rewrite(X + 7, ordered) is X
    assert rewrite(num(7) + X, ordered) is num(7) + X


def test_the_same_name_twice_is_the_same_node() -> None:
    @rules("test.same")
    def same(x: Var) -> Rules:
        yield "same", x - x >> 0

    assert rewrite(X - X, same) is num(0)
    assert rewrite(X - Y, same) is X - Y


def test_numbers_match_by_meaning() -> None:
    @rules("test.meaning")
    def meaning(x: Var, p: Bool) -> Rules:
        yield "zero", Add[x, zero] >> x
        yield "true", HEADS["And"][p, true] >> p

    for d in (int8, uint8, index, float32):
        v = variable("v", 0, 3, d) if d.is_int else alu(Ops.NEG, const(d, 2.0))
        assert rewrite(v + 0, meaning) is v
    minus = alu(Ops.NEG, const(float32, 2.0))
    assert rewrite(minus + -0.0, meaning) is minus + -0.0  # -0.0 is another constant than 0.0
    p = X < Y
    assert rewrite(p & True, meaning) is p
    assert rewrite(alu(Ops.ADD, p, const(bool_, False)), meaning) is alu(Ops.ADD, p, const(bool_, False))


def test_annotations_restrict_the_type() -> None:
    @rules("test.types")
    def types(i: Int, f: Float, b: Bool, k: Index) -> Rules:
        yield "int", Max(i, i) >> i
        yield "bool", HEADS["And"](b, b) >> b

    f = alu(Ops.NEG, const(float32, 2.0))
    assert rewrite(f.maximum(f), types) is f.maximum(f)
    v = variable("v", 0, 9, int32)
    assert rewrite(v.maximum(v), types) is v
    assert rewrite(v & v, types) is v & v
    assert rewrite((v < 3) & (v < 3), types) is (v < 3)


def test_conditions_are_terms_on_values_and_bounds() -> None:
    @rules("test.conditions")
    def conditions(x: Int, c: IntConst, d: IntConst) -> Rules:
        yield "mod", x % c >> x, when(vmin(x) >= 0, vmax(x) < c)
        yield "nest", (x % c) % d >> x % d, when(d > 0, (c % d).eq(0))

    small = variable("s", 0, 6)
    assert rewrite(small % 7, conditions) is small
    assert rewrite(small % 6, conditions) is small % 6
    assert rewrite((X % 12) % 4, conditions) is X % 4
    assert rewrite((X % 12) % 5, conditions) is (X % 12) % 5


def test_facts_may_stand_on_the_right() -> None:
    @rules("test.facts")
    def facts(x: Int, c: IntConst) -> Rules:
        yield "constant", x // c >> vmin(x) // c, when(c > 0, (vmin(x) // c).eq(vmax(x) // c))

    assert rewrite(variable("s", 8, 11) // 4, facts) is num(2)


def test_code_may_decline_and_the_next_rule_is_tried() -> None:
    seen: list[int] = []

    def only_even(x: UOp, c: UOp) -> UOp | None:
        seen.append(c.arg)
        return x if c.arg % 2 == 0 else None

    @rules("test.decline")
    def decline(x: Int, c: IntConst) -> Rules:
        yield "even", Add(x, c) >> only_even, why("asks for parity")
        yield "rest", Add(x, c) >> x * c, grows("another op, and no rule leads back")

    assert rewrite(X + 4, decline) is X
    assert rewrite(X + 3, decline) is X * 3
    assert seen == [4, 3]


def test_context_reaches_the_rules_that_ask_for_it() -> None:
    def count(node: UOp, ctx: list[UOp]) -> None:
        ctx.append(node)

    @rules("test.context")
    def context(x: Var, y: Var) -> Rules:
        yield "count", AnyBinary(x, y) >> count, why("collects nodes")

    found: list[UOp] = []
    assert context.uses_context
    rewrite(X * Y + Z, context, ctx=found)
    assert found == [X * Y, X * Y + Z]


def test_variadic_sources_arguments_and_dtypes() -> None:
    head = HEADS["Sink"]

    @rules("test.variadic")
    def variadic(x: Var, rest: Many) -> Rules:
        yield "drop-first-number", head(Add(x, 0), rest) >> head(x, rest)

    got = rewrite(sink(X + 0, Y, Z), variadic, strategy="walk")
    assert got.src == (X, Y, Z)

    @rules("test.extras")
    def extras(x: Var, n: Var, lanes: Arg) -> Rules:
        yield "gep", HEADS["Gep"](HEADS["Vectorize"](x, x), arg=lanes) >> x
        yield "cast", n @ Cast(Cast(x, dtype=int32)) >> Cast(x, dtype=dtype(n))

    v = variable("v", 0, 5, int8)
    assert rewrite(gep(vectorize(v, v), 1), extras) is v
    assert rewrite(cast(cast(v, int32), float32), extras) is cast(v, float32)
    assert rewrite(cast(cast(v, uint8), float32), extras) is cast(cast(v, uint8), float32)


def test_templates_compute_constants_and_find_their_types() -> None:
    @rules("test.templates")
    def templates(x: Int, a: IntConst, b: IntConst) -> Rules:
        yield "sum", Add(Add(x, a), b) >> x + (a + b)
        yield "choose", Mul(x, a) >> Where(x < 0, 0, x), grows("for the test")

    v = variable("v", 0, 100, int8)
    assert rewrite((v + 100) + 100, templates) is v + const(int8, 200)  # wraps as int8 does
    assert rewrite(v * 3, templates) is where(v < 0, const(int8, 0), v)


def place_of(error: pytest.ExceptionInfo[RuleError]) -> str:
    assert error.value.place is not None
    return error.value.place


def test_an_unbound_variable_is_refused_with_its_place() -> None:
    with pytest.raises(
        RuleError, match=r"test\.unbound\.bad: y is not bound by the left side x \+ 0"
    ) as error:

        @rules("test.unbound")
        def unbound(x: Var, y: Var) -> Rules:
            yield "bad", x + 0 >> y

    assert place_of(error).startswith("tests/rewrite/test_language.py:")


def test_unbound_in_a_condition_or_in_code_is_refused() -> None:
    with pytest.raises(RuleError, match="c is not bound"):

        @rules("test.unbound2")
        def unbound2(x: Var, c: IntConst) -> Rules:
            yield "bad", x + 0 >> x, when(c > 0)

    def code(x: UOp, other: UOp) -> UOp:
        return x

    with pytest.raises(RuleError, match="other is not bound"):

        @rules("test.unbound3")
        def unbound3(x: Var) -> Rules:
            yield "bad", x + 0 >> code, why("test")


def test_a_rule_that_can_never_fire_is_refused() -> None:
    with pytest.raises(RuleError, match=r"test\.dead\.second can never fire: test\.dead\.first"):

        @rules("test.dead")
        def dead(x: Var, i: Int, c: IntConst) -> Rules:
            yield "first", Add[x, 0] >> x
            yield "second", Add[0, i] >> i

    with pytest.raises(RuleError, match="can never fire"):

        @rules("test.dead2")
        def dead2(x: Int, c: IntConst) -> Rules:
            yield "first", x % c >> x, when(vmax(x) < c)
            yield "second", x % c >> x, when(vmin(x) >= 0, vmax(x) < c)


def test_adding_sets_looks_for_dead_rules_again() -> None:
    @rules("test.left")
    def left(x: Var) -> Rules:
        yield "a", Add[x, 0] >> x

    @rules("test.right")
    def right(x: Int) -> Rules:
        yield "b", Add[x, 0] >> x

    with pytest.raises(RuleError, match=r"test\.right\.b can never fire"):
        left + right
    assert len(right + left) == 2  # the more special one first is fine


def test_a_rule_against_the_termination_order_must_say_so() -> None:
    with pytest.raises(RuleError, match="does not make terms smaller"):

        @rules("test.growing")
        def growing(x: Int) -> Rules:
            yield "bad", x * 2 >> x + x

    @rules("test.growing2")
    def fine(x: Int) -> Rules:
        yield "good", x * 2 >> x + x, grows("on purpose")

    assert rewrite(X * 2, fine) is X + X


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda x, y: x & y >> x, "put the left side in parentheses"),
        (lambda x, y: ("name", x), "a rule is written"),
        (lambda x, y: ("name", x >> y), "must start with an op"),
        (lambda x, y: ("name", x + 0 >> x, "loose words"), "cannot follow a rule"),
        (lambda x, y: ("name", x + 0 >> (lambda x: x)), "does not say why"),
        (lambda x, y: ("name", x + "one" >> x), "cannot stand in a rule"),
    ],
)
def test_what_is_no_rule_is_refused_in_one_sentence(make: Any, sentence: str) -> None:
    with pytest.raises(RuleError, match=sentence):

        @rules("test.malformed")
        def malformed(x: Var, y: Var) -> Rules:
            yield make(x, y)


def test_two_rules_of_one_name_are_refused() -> None:
    with pytest.raises(RuleError, match="two rules are called"):

        @rules("test.twice")
        def twice(x: Var) -> Rules:
            yield "a", x + 0 >> x
            yield "a", x * 1 >> x


def test_a_term_has_no_truth_value() -> None:
    with pytest.raises(RuleError, match="no truth value"):

        @rules("test.truth")
        def truth(x: Int, c: IntConst) -> Rules:
            if c > 0:
                yield "a", x + 0 >> x


def test_rules_carry_name_place_class_and_remarks() -> None:
    @rules("test.data")
    def data(f: Float, g: Float) -> Rules:
        # (f + g) - g = f
        yield "back", (f + g) - g >> f, REASSOCIATING, unproved("for the test")

    (rule,) = data
    assert rule.name == "test.data.back"
    assert rule.place.startswith("tests/rewrite/test_language.py:")
    assert rule.numeric is REASSOCIATING
    assert rule.unproved == "for the test"
    assert rule.formula() == "f + g - g → f"
    assert data.active() == ()  # off by default
    assert REGISTRY["test.data"] is data


def test_sets_add_and_keep_order() -> None:
    @rules("test.one")
    def first(x: Var) -> Rules:
        yield "a", Mul[x, 1] >> x

    @rules("test.two")
    def second(x: Var) -> Rules:
        yield "b", Add[x, 0] >> x

    both = first + second
    assert isinstance(both, RuleSet)
    assert [r.name for r in both] == ["test.one.a", "test.two.b"]
    assert len(both + first) == 2


def test_a_condition_on_something_that_is_no_constant_is_refused() -> None:
    with pytest.raises(RuleError, match=r"x is no constant; a condition can ask for vmin\(x\) and vmax\(x\)"):

        @rules("test.condition")
        def condition(x: Int) -> Rules:
            yield "bad", x % 8 >> x, when(x > -1, x < 8)


def test_brackets_need_an_op_that_commutes() -> None:
    with pytest.raises(RuleError, match="Sub does not commute"):

        @rules("test.brackets")
        def brackets(x: Var) -> Rules:
            yield "bad", Sub[x, zero] >> x


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda x, y, rest: Cast(x, dtype=dtype(y)) >> x, r"dtype\(y\) stands before y is bound"),
        (lambda x, y, rest: Add(vmin(x), y) >> y, r"vmin\(x\) cannot be matched"),
        (lambda x, y, rest: Add(x, y, y) >> x, "ADD takes 2 sources"),
        (lambda x, y, rest: Add(x, y) >> Add(x), "ADD takes 2 sources"),
        (lambda x, y, rest: HEADS["Sink"](x, rest) >> rest, "stands for several nodes"),
        (lambda x, y, rest: Add(x, y) >> (Add | Mul)(x, y), "does not say what to build"),
        (lambda x, y, rest: Add(x, y) >> HEADS["Load"](x), "needs dtype="),
    ],
)
def test_what_cannot_work_is_refused_when_the_set_is_built(make: Any, sentence: str) -> None:
    with pytest.raises(RuleError, match=sentence) as error:

        @rules("test.impossible")
        def impossible(x: Var, y: Var, rest: Many) -> Rules:
            yield "bad", make(x, y, rest), grows("for the test")

    assert "test_language.py:" in place_of(error)


def test_rearrangements_have_no_order_of_their_own() -> None:
    for make in (lambda v, w: Add(v, -w) >> Add(-w, v), lambda v, w: Add(v, w) >> Add(w, v)):
        with pytest.raises(RuleError, match="does not make terms smaller"):

            @rules("test.rearranged")
            def rearranged(v: Var, w: Var) -> Rules:
                yield "bad", make(v, w)  # noqa: B023 - built at once


def test_a_rule_that_rearranges_hides_no_later_one() -> None:
    @rules("test.hides")
    def hides(v: Int, w: Int) -> Rules:
        yield "order", Add(v, w) >> Add(w, v), grows("for the test")
        yield "double", Add(v, v) >> v * 2, grows("for the test")

    assert len(hides) == 2


def test_typed_variables_hide_what_they_cover() -> None:
    for later in (lambda v, w, c: Add(v, 3) >> v, lambda v, w, c: Add(v * w, c) >> v):
        with pytest.raises(RuleError, match="can never fire"):

            @rules("test.typed")
            def typed(v: Int, w: Int, c: IntConst) -> Rules:
                yield "first", Add(v, c) >> v
                yield "second", later(v, w, c)  # noqa: B023 - built at once


def test_the_rest_of_the_sources_twice_is_the_same_rest() -> None:
    from morok.rewrite.compile import Matcher
    from morok.rewrite.engine import reference

    head = HEADS["Group"]

    @rules("test.rest")
    def rest_twice(x: Var, rest: Many) -> Rules:
        yield "same", HEADS["Sink"](head(x, rest), head(x, rest)) >> x

    one_group, other = group(X, Y, Z), group(X, Z, Y)
    compiled, plain = Matcher("test", rest_twice.rules), reference(rest_twice.rules)
    for node in (sink(one_group, one_group), sink(one_group, other)):
        assert compiled(node) == plain(node, None)
    assert compiled(sink(one_group, other)) is None


def test_code_that_gives_no_node_is_named() -> None:
    def wrong(x: UOp) -> int:
        return 5

    @rules("test.wrong")
    def code(x: Var) -> Rules:
        yield "five", HEADS["Neg"](x) >> wrong, why("for the test")

    with pytest.raises(RuleError, match=r"test\.wrong\.five gave 5, which is not a node"):
        rewrite(-X, code)


def test_functions_may_have_any_name() -> None:
    def n(x: UOp) -> UOp:
        return x

    @rules("test.names")
    def names(x: Int) -> Rules:
        yield "n", HEADS["Neg"](x) >> n, why("for the test")

    assert rewrite(-X, names) is X


def test_a_scalar_type_in_a_template_takes_the_lanes_of_the_match() -> None:
    @rules("test.lanes")
    def lanes(x: Int, n: Var) -> Rules:
        yield "through", n @ Cast(HEADS["Neg"](x)) >> Cast(Cast(x, dtype=float32), dtype=dtype(n))

    v = vectorize(*(variable(f"v{i}", 0, 5, int32) for i in range(4)))
    got = rewrite(cast(-v, int8), lanes)
    assert got.src[0].dtype is float32.vec(4)
