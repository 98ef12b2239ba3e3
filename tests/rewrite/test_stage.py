"""Specs and the pipeline driver: verify, time, print, trace, stop."""

from types import SimpleNamespace
from typing import Any

import pytest

from morok import knobs
from morok.dtype import index, int8, int32
from morok.errors import KnobError, SpecError
from morok.ir.build import sink, variable
from morok.ir.node import UOp, const, make
from morok.ir.ops import Ops
from morok.rewrite.keep import drop_nodes, keep_nodes, kept_results
from morok.rewrite.observe import observing, tracing
from morok.rewrite.observer import By, Observer
from morok.rewrite.rules import Rules, when, why
from morok.rewrite.ruleset import rules
from morok.rewrite.spec import Spec, arithmetic_spec, legal, spec
from morok.rewrite.stage import Report, Stage, check_selection, describe, run_pipeline
from morok.rewrite.terms import HEADS, Many
from morok.symbolic.sets import simple, symbolic

X, Y = variable("x", 0, 7), variable("y", 0, 7)


@spec("test graph")
def graph_spec(rest: Many) -> Rules:
    yield "variable", HEADS["DefineVar"]() >> legal
    yield "sink", HEADS["Sink"](rest) >> legal


GRAPH: Spec = graph_spec + arithmetic_spec


def no_products(root: UOp, ctx: Any) -> UOp:
    from morok.rewrite.engine import substitute

    return substitute(root, {X * 2: X + X})


STAGES = (
    Stage("1", "tidy", "folds constants", simple, spec=GRAPH),
    Stage("2", "products", "writes a product as a sum", no_products, spec=GRAPH),
    Stage("3", "normal form", "everything symbolic", symbolic, spec=GRAPH),
)


def test_stages_run_in_order_and_are_timed() -> None:
    report = Report()
    got = run_pipeline(STAGES, sink(X * 2 + 0), report=report)
    assert got is sink(X * 2)  # stage 3 counts the terms again
    assert [row[0].name for row in report.rows] == ["tidy", "products", "normal form"]
    assert [row[2] for row in report.rows] == [True, True, True]
    assert report.seconds > 0


def test_stop_after_a_stage() -> None:
    with knobs.override(STOP_AFTER="products"):
        report = Report()
        assert run_pipeline(STAGES, sink(X * 2 + 0), report=report) is sink(X + X)
        assert report.stopped
    with knobs.override(STOP_AFTER="1"):
        assert run_pipeline(STAGES, sink(X * 2 + 0)) is sink(X * 2)


def test_dump_prints_the_graph(capsys: pytest.CaptureFixture[str]) -> None:
    with knobs.override(DUMP="tidy,3"):
        run_pipeline(STAGES, sink(X * 2 + 0))
    text = capsys.readouterr().err
    assert "after stage 1, tidy" in text and "after stage 3, normal form" in text
    assert "products" not in text


def test_a_name_that_is_no_stage_is_refused() -> None:
    with knobs.override(DUMP="linearize"), pytest.raises(KnobError, match="names no stage; there are: tidy"):
        check_selection(STAGES)
    with knobs.override(DUMP="tidy"):
        check_selection(STAGES)


def test_the_observer_sees_every_stage() -> None:
    class Names(Observer):
        def __init__(self) -> None:
            self.seen: list[str] = []

        def end(self, by: By, before: UOp, after: UOp | None) -> None:
            self.seen.append(f"{by.kind} {by.name}")

    names = Names()
    with observing(names):
        run_pipeline(STAGES, sink(X))
    assert names.seen == ["stage tidy", "stage products", "stage normal form"]


def test_the_trace_knows_the_stage() -> None:
    with tracing() as trace:
        run_pipeline(STAGES, sink(X * 2 + 0))
    assert {m.stage for m in trace.matches} == {"tidy", "normal form"}


def test_a_stage_without_its_trigger_is_skipped() -> None:
    calls: list[UOp] = []

    def remember(root: UOp, ctx: Any) -> UOp:
        calls.append(root)
        return root

    stage = Stage("1", "s", "m", remember, triggers=frozenset({Ops.MUL}))
    run_pipeline((stage,), sink(X + 1))
    assert not calls
    run_pipeline((stage,), sink(X * 3))
    assert len(calls) == 1


def test_broken_ir_is_caught_at_the_stage_that_broke_it() -> None:
    def break_it(root: UOp, ctx: Any) -> UOp:
        return sink(make(Ops.ADD, int8, (const(int8, 1), const(int32, 1))))

    stages = (STAGES[0], Stage("2", "breaker", "mixes types", break_it, spec=GRAPH))
    with pytest.raises(SpecError, match=r"stage 2 \(breaker\) made a node that is not legal in a test graph"):
        run_pipeline(stages, sink(X))
    with knobs.override(SPEC=0):
        run_pipeline(stages, sink(X))


@pytest.mark.parametrize(
    ("node", "fine"),
    [
        (const(int8, 5), True),
        (make(Ops.CONST, int8, (), 500), False),
        (make(Ops.CONST, int8, (), 5.0), False),
        (X + 1, True),
        (make(Ops.ADD, int8, (X, X)), False),
        (X < Y, True),
        (make(Ops.CMPLT, index, (X, Y)), False),
        ((X < Y).where(X, Y), True),
        (make(Ops.WHERE, index, (X, X, Y)), False),
        (make(Ops.CAST, int8, (X,)), True),
        (make(Ops.CAST, int8.vec(4), (X,)), False),
        (make(Ops.LOAD, int8, (X,)), False),
    ],
)
def test_the_arithmetic_spec(node: UOp, fine: bool) -> None:
    assert GRAPH.admits(node) is fine


def test_conditions_work_in_specs() -> None:
    def even(node: UOp) -> bool:
        return node.arg % 2 == 0

    @spec("test even")
    def even_spec() -> Rules:
        yield "even", HEADS["Const"]() >> legal, when(even)

    assert even_spec.admits(const(index, 2)) and not even_spec.admits(const(index, 3))


def test_the_table_documents_itself() -> None:
    text = describe(STAGES)
    assert "| 1 | tidy | folds constants | fixpoint | test graph" in text
    assert "| 2 | products | writes a product as a sum | function |" in text


def test_functions_say_why_they_are_no_rules() -> None:
    from morok.codegen import pipeline
    from morok.rewrite.ruleset import RuleSet
    from morok.schedule.graph.stages import GRAPH_STAGES
    from morok.schedule.kernel.stages import KERNEL_STAGES

    for stage in (*GRAPH_STAGES, *KERNEL_STAGES, *pipeline.STAGES):
        assert bool(stage.because) != isinstance(stage.run, RuleSet), stage.name
    assert "- 15 lower index dtype: the bounds" in describe(pipeline.STAGES)


def test_a_local_stage_remembers_while_nodes_are_kept() -> None:
    """What became of a node is remembered for the next kernel, by machine, as long as nodes are kept."""
    seen: list[UOp] = []

    @rules("test.local")
    def local_rules() -> Rules:
        def double(node: UOp, ctx: Any) -> UOp | None:
            seen.append(node)
            return const(index, node.arg * ctx.machine) if node.arg < 100 else None

        yield "double", HEADS["Const"].any() >> double, why("the context decides")

    stage = Stage("1", "local", "doubles", local_rules, is_local=True)
    one, other = SimpleNamespace(machine=200), SimpleNamespace(machine=300)
    shared = (X + 7) * (Y + 5)
    keep_nodes()
    try:
        assert stage.apply(sink(shared), one) is sink((X + 1400) * (Y + 1000))
        count = len(seen)
        assert stage.apply(sink(shared, X * 3), one) is sink((X + 1400) * (Y + 1000), X * 600)
        assert not any(node.arg in (5, 7) for node in seen[count:])  # not asked again
        assert stage.apply(sink(shared), one) is sink((X + 1400) * (Y + 1000))
        assert stage.apply(sink(shared), other) is sink((X + 2100) * (Y + 1500))
        assert stage.apply(sink(X), one) is sink(X)
    finally:
        drop_nodes()
    count = len(seen)
    assert stage.apply(sink(shared), one) is sink((X + 1400) * (Y + 1000))
    assert len(seen) > count and kept_results("test") is None
