"""The engine: strategies, cycles, long chains, memory, traces, provenance."""

import gc
import random
import threading
from typing import Any

import pytest

from morok import knobs
from morok.dtype import float32, index, int32
from morok.errors import RewriteCycle
from morok.ir.build import sink, variable
from morok.ir.node import UOp, const, live_nodes, make, toposort
from morok.ir.ops import Ops
from morok.ir.provenance import history, place
from morok.rewrite.engine import rewrite, statistics, substitute
from morok.rewrite.observe import tracing
from morok.rewrite.rules import Rules, grows, why
from morok.rewrite.ruleset import REGISTRY, rules
from morok.rewrite.terms import HEADS, Add, Index, IndexConst, Mul, Sub, Var, zero
from morok.rewrite.trace import Teller
from morok.symbolic.sets import full, simplify, symbolic

X, Y, Z = (variable(n, -50, 50) for n in "xyz")


@pytest.fixture(autouse=True)
def _leave_the_registry_alone() -> Any:
    before = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


def test_fixpoint_goes_on_until_nothing_changes() -> None:
    @rules("test.fix")
    def fix(x: Var) -> Rules:
        yield "a", Mul(x, 2) >> x + 0, grows("for the test")
        yield "b", Add(x, zero) >> x

    assert rewrite((X * 2) * 2, fix) is X


def test_walk_takes_each_result_as_it_is() -> None:
    @rules("test.walk")
    def walk(x: Var) -> Rules:
        yield "grow", Add(x, 1) >> (x + 1) + 1, grows("for the test: each node once")

    assert rewrite(X + 1, walk, strategy="walk") is (X + 1) + 1


def test_original_sees_sources_before_they_are_rewritten() -> None:
    @rules("test.original")
    def original(x: Var, y: Var) -> Rules:
        yield "outer", Mul(Add(x, y), y) >> x, grows("for the test")
        yield "inner", Add(x, y) >> y

    # bottom-up the sum would be gone before the product is looked at
    assert rewrite((X + Y) * Y, original) is Y * Y
    assert rewrite((X + Y) * Y, original, strategy="original") is X


def test_combined_mode_enters_what_the_early_rules_make() -> None:
    @rules("test.early")
    def early(x: Var, y: Var) -> Rules:
        yield "e", Mul(Add(x, y), y) >> x + 0, grows("for the test")

    @rules("test.late")
    def late(x: Var) -> Rules:
        yield "l", Add(x, 0) >> x

    assert rewrite((X + Y) * Y, late, before=early) is X


def test_a_cycle_is_an_error_that_names_its_rules() -> None:
    @rules("test.cycle")
    def cycle(x: Var, y: Var) -> Rules:
        yield "there", Add(x, y) >> Sub(x, y), grows("for the test")
        yield "and-back", Sub(x, y) >> Add(x, y), grows("for the test")
        yield "innocent", Mul(x, 1) >> x

    with pytest.raises(RewriteCycle) as error:
        rewrite(X * 1 + Y, cycle)
    assert "test.cycle.there" in str(error.value) and "test.cycle.and-back" in str(error.value)
    assert "innocent" not in str(error.value)
    assert "test_engine.py:" in str(error.value)


def test_endless_growth_is_an_error_too() -> None:
    @rules("test.growth")
    def growth(x: Index, c: IndexConst) -> Rules:
        yield "more", Add(x, c) >> x + (c + 1), grows("for the test")

    with pytest.raises(RewriteCycle, match=r"test\.growth\.more"):
        rewrite(X + 1, growth)


def test_the_process_goes_on_after_a_cycle() -> None:
    assert simplify(X * 1 + 0) is X


LENGTH = 100_000


def test_a_chain_of_a_hundred_thousand_nodes_that_stays() -> None:
    f = make(Ops.DEFINE_VAR, float32, (), ("chain", float("-inf"), float("inf")))
    x: UOp = f
    for i in range(LENGTH):
        x = x + f if i % 2 else x * 3.0
    assert rewrite(x, symbolic) is x
    other = substitute(x, {f: const(float32, 1.0)})
    assert len(toposort(other)) == LENGTH + 2


def test_a_long_chain_that_collapses() -> None:
    n = variable("n", 0, 1, int32)
    x: UOp = n
    factor = 1
    for i in range(LENGTH // 4):
        x = x + n if i % 2 else x * 3
        factor = (factor + 1 if i % 2 else factor * 3) % 2**32
    assert rewrite(x, symbolic) is n * const(int32, factor)


def test_wide_graphs() -> None:
    parts = [(X + i) * 2 + 0 for i in range(20_000)]
    got = simplify(sink(*parts))
    assert got.src[7] is X * 2 + 14


def test_results_are_remembered_on_the_nodes_and_freed_with_them() -> None:
    gc.collect()
    before = live_nodes()
    v = variable("remembered", 0, 100)
    root = ((v * 8 + 3) // 4 + v) % 16
    first = simplify(root)
    count = statistics.rewrites
    assert simplify(root) is first
    assert statistics.rewrites == count  # nothing was done again
    del root, first, v
    gc.collect()
    assert live_nodes() <= before + 8  # a few constants may have been seen for the first time


def test_a_trace_shows_every_match() -> None:
    root = (X * 1 + 0) * Y
    simplify(root)  # remembered results must not hide matches from the trace
    with tracing() as trace:
        simplify(root)
    assert trace.hits() == {"symbolic.identities.mul-one": 1, "symbolic.identities.add-zero": 1}
    first = trace.matches[0]
    assert first.before is X * 1 and first.after is X
    assert "test_engine.py:" in str(trace)


def test_rules_are_explained_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with knobs.override(EXPLAIN="fusion, add-zero"):
        simplify((X * 1 + 0) * Y)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("symbolic.identities.add-zero ") and line.endswith("x + 0  →  x")
    teller = Teller(("add-zero", "no-such-rule"))
    teller.heard.add("add-zero")
    teller.finish()
    (line,) = capsys.readouterr().err.splitlines()
    assert "EXPLAIN=no-such-rule: no rule" in line


def test_substitute_replaces_and_does_not_enter() -> None:
    assert substitute(X * 2 + Y, {X: Y, Y: X}) is Y * 2 + X
    assert substitute(X, {X: X * 2}) is X * 2
    assert substitute(X, {}) is X


def test_rewritten_nodes_know_their_parent_and_rule() -> None:
    v = variable("provenance", 0, 100)
    old = v * 3 + v * 4
    new = simplify(old)
    steps = history(new)
    assert new is v * 7
    assert steps and steps[0][0] == "symbolic.sums.count" and steps[0][1] is old
    assert place(new) == place(old)
    assert "test_engine.py:" in str(place(new))


def test_provenance_changes_no_result() -> None:
    def build() -> UOp:
        v = variable("unseen", 0, 100)
        return simplify(((v * 12 + 7) // 4) % 32 + v)

    with knobs.override(PROVENANCE=False):
        off = build()
        assert off.origin is None
    assert build() is off


def test_threads_share_nodes_and_results() -> None:
    found: list[UOp] = []

    def work() -> None:
        v = variable("shared", 0, 1000)
        total: UOp = v
        for i in range(300):
            total = simplify((total * 2 + i) // 2)
        found.append(total)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 4 and len(set(found)) == 1


def test_context_rules_are_not_remembered() -> None:
    def answer(ctx: int) -> UOp:
        return const(index, ctx)

    @rules("test.fresh")
    def fresh(x: Var) -> Rules:
        yield "a", HEADS["Neg"](x) >> answer, why("the context decides")

    assert rewrite(-X, fresh, ctx=1) is const(index, 1)
    assert rewrite(-X, fresh, ctx=2) is const(index, 2)


def test_numeric_classes_are_off_unless_asked_for() -> None:
    f = make(Ops.DEFINE_VAR, float32, (), ("f", float("-inf"), float("inf")))
    root = f - f
    assert rewrite(root, full) is root
    with knobs.override(UNSAFE_MATH=True):
        assert rewrite(root, full) is const(float32, 0.0)
    assert rewrite(root, full) is root


def test_long_sums_are_sorted_without_a_cycle() -> None:
    """A term that belongs in front of 12,000 others moves there in one step."""
    terms = [variable(f"t{i:05}", 0, 9) for i in range(12_000)]
    total = terms[1]
    for t in terms[2:]:
        total = total + t
    got = simplify(total + terms[0])
    front = got
    while front.op is Ops.ADD:
        front = front.src[0]
    assert front is terms[0]
    assert len(toposort(got)) == 2 * len(terms) - 1


def test_a_sum_in_reverse_order_takes_no_age() -> None:
    terms = [variable(f"t{i:05}", 0, 9) for i in range(300)]
    total = terms[-1]
    for t in reversed(terms[:-1]):
        total = total + t
    in_order = terms[0]
    for t in terms[1:]:
        in_order = in_order + t
    with tracing() as trace:
        assert simplify(total) is in_order
    assert len(trace) < 2 * len(terms)  # one step per term, not one per pair


def test_a_watched_walk_ends_where_an_unwatched_one_does() -> None:
    """Whoever listens hears every match, so results are not taken from memory there."""
    chance = random.Random(3)
    for _ in range(60):
        known = [X, Y, Z, const(index, 3), const(index, 12)]
        for _ in range(40):
            a, b = chance.choices(known[-12:], k=2)
            c = chance.choice((2, 3, 4, 8))
            known.append(chance.choice((a + b, a * c, a // c, a % c, (a < b).where(a, b), a.maximum(b))))
        root = sink(*known[-6:])
        with tracing():
            watched = rewrite(root, symbolic)
        assert rewrite(root, symbolic) is watched


def test_who_listens_hears_every_match_each_time() -> None:
    """Only where nothing matches is remembered, which is not walked again."""
    left, right = X * 8 + Y, (Z + 0) * 2 + Z
    for _ in range(2):
        rewrite(sink(left, right), symbolic)  # whose results are remembered, for others
        with tracing() as trace:
            first = rewrite(sink(left, right), symbolic)
        before = statistics.nodes
        with tracing() as again:
            assert rewrite(sink(left, right), symbolic) is first
        looked_at = statistics.nodes - before
        assert [(m.rule, m.before, m.after) for m in again.matches] == [
            (m.rule, m.before, m.after) for m in trace.matches
        ]
        assert trace.hits() and looked_at < len(toposort(sink(left, right)))


def test_what_a_rule_makes_may_stand_elsewhere_in_the_graph() -> None:
    """A result that is a node of the graph, not yet looked at, is rewritten like any other."""

    @rules("test.elsewhere")
    def elsewhere(x: Var, y: Var) -> Rules:
        yield "swap", Sub(x, y) >> (lambda x, y: y * 2), why("for the test")
        yield "two", Mul(x, 2) >> x + x, grows("for the test")

    graph = sink(X * 2, make(Ops.SUB, index, (Y, X)))  # the last source is looked at first
    assert rewrite(graph, elsewhere).src == (X + X, X + X)
    graph = sink(make(Ops.SUB, index, (Y, X)), X * 2)
    assert rewrite(graph, elsewhere).src == (X + X, X + X)
