"""Nothing changes a graph unreported: the changes that an observer hears lead from the user's graph to the
instructions, and a rewrite is exactly what its rules did."""

import gc
import weakref
from collections.abc import Callable

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.errors import CompileError
from morok.ir.build import variable
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.ir.provenance import history as rewrites_of
from morok.rewrite.observe import observing
from morok.rewrite.record import Change, Recorder, differences
from morok.runtime.history import History, KernelHistory, recording
from morok.schedule.normalise import normalise
from morok.schedule.plan import template

RANDOM = np.random.default_rng(5)


def _numbers(*shape: int) -> Tensor:
    return Tensor(RANDOM.standard_normal(shape).astype(np.float32))


def _positions() -> Tensor:
    return _numbers(6, 5)[Tensor([1, 4, 2])]


PROGRAMS: dict[str, Callable[[], Tensor]] = {
    "softmax": lambda: (_numbers(33, 40) * 2).softmax(-1),
    "product": lambda: (_numbers(48, 40) @ _numbers(40, 56)).relu(),
    "half product": lambda: (_numbers(64, 64).half() @ _numbers(64, 64).half()).float(),
    "padded": lambda: _numbers(5, 7).pad(((1, 1), (0, 2))).cumsum(1),
    "positions": _positions,
    "booleans": lambda: (_numbers(9, 9) > 0).T.contiguous(),
}


def _history(program: Callable[[], Tensor], device: str) -> tuple[History, list[UOp]]:
    with knobs.override(DEVICE=device), recording() as history:
        result = program()
        wanted = [result.uop]
        result.realize()
    return history, wanted


def _replayed(step: Change) -> UOp:
    """What the matches make of the graph, by a second, simpler engine: no order, no memory, no rules."""
    table = {before: after for _, before, after in step.matches}
    done: dict[UOp, UOp] = {}
    stack = [step.before]
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
            continue
        if node in table:
            follow = [table[node]]
        else:
            follow = list(node.src)
        pending = [n for n in follow if n not in done]
        if pending:
            stack += pending
            continue
        stack.pop()
        if node in table:
            done[node] = done[table[node]]
            continue
        rebuilt = node.replace(tuple([done[s] for s in node.src]))
        if rebuilt is node:
            done[node] = node
        elif rebuilt in done:
            done[node] = done[rebuilt]
        else:
            stack += [node, rebuilt]
    return done[step.before]


def _check_steps(stage: Change) -> None:
    """The steps of a stage follow one another, and those of rules are what the rules did."""
    at: UOp | None = stage.before
    for step in stage.steps():
        assert step.before is at, f"{stage.by.name}: something came before {step.by.name}"
        if step.by.kind == "rules":
            assert step.matches and _replayed(step) is step.after, f"{stage.by.name}, {step.by.name}"
        at = step.after
    assert at is stage.after, stage.by.name


def _check(kernel: KernelHistory) -> None:
    at: UOp | None = kernel.first
    for stage in kernel.stages:
        assert stage.before is at, f"something came before stage {stage.by.number}, {stage.by.name}"
        _check_steps(stage)
        at = stage.after
    assert at is kernel.instructions and kernel.instructions.op is Ops.LINEAR


@pytest.mark.parametrize("device", ["CPU", "EMULATOR"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_changes_lead_from_the_users_graph_to_the_instructions(program: str, device: str) -> None:
    history, wanted = _history(PROGRAMS[program], device)
    found = history.kernels
    assert found
    for kernel in found:
        assert kernel.stages[0].by.name == "normalise" and kernel.first.op is Ops.SINK
        _check(kernel)
    # the user's graph, on memory that stands for the user's
    forms = {normalise([node]).sink for node in wanted}
    assert any(normalise([node]).sink in forms for kernel in found for node in kernel.first.src)


def test_a_history_keeps_nothing_of_the_user() -> None:
    """Neither nodes, whose results would be found again and not computed, nor memory."""
    with recording() as history:
        x = Tensor(np.ones((16, 32), np.float32))
        y = (x + 1).softmax(-1)
        node, memory = weakref.ref(y.uop), weakref.ref(x.uop)
        y.realize()
        del x, y
    gc.collect()
    assert node() is None and memory() is None
    assert history.kernels[0].first.op is Ops.SINK


def test_what_nobody_reports_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above would notice: a stage that says nothing breaks the chain, a rule the replay."""
    history, _ = _history(PROGRAMS["softmax"], "CPU")
    steps = [step for stage in history.kernels[0].stages for step in stage.steps() if step.matches]
    for step in steps:
        step.matches.pop()
        assert _replayed(step) is not step.after, step.by.name
    monkeypatch.setattr(template, "report", lambda *_: None)
    history, _ = _history(PROGRAMS["softmax"], "CPU")
    assert history.kernels[0].stages[0].by.name != "normalise"


def test_actions_are_told_and_those_that_were_dropped_are_not_on_the_way() -> None:
    history, _ = _history(PROGRAMS["product"], "EMULATOR")
    kernel = history.kernels[-1]
    (stage,) = [s for s in kernel.stages if s.by.name == "optimise"]
    names = [step.by.name for step in stage.steps()]
    assert all(step.by.kind == "action" for step in stage.steps())
    assert names == [str(opt) for opt in stage.after.arg.opts]  # type: ignore[union-attr]
    assert len(stage.inner) >= len(names)


def test_instructions_know_the_rules_behind_them() -> None:
    history, _ = _history(PROGRAMS["softmax"], "CPU")
    kernel = history.kernels[0]
    rules = {rule for node in kernel.instructions.src for rule, _ in rewrites_of(node)}
    assert {"codegen.remove_reduce.accumulate", "codegen.add_loads.read"} <= rules
    assert "test_history.py" in kernel.place


def test_the_same_kernel_twice_is_one_history() -> None:
    def twice() -> Tensor:
        (_numbers(7, 3) + 1).realize()
        return _numbers(7, 3) + 1

    history, _ = _history(twice, "CPU")
    assert [len(history.kernels), history.kernels[0].number] == [1, 0]


def test_a_failed_change_is_kept_apart() -> None:
    recorder = Recorder()
    options = knobs.override(STOP_AFTER="expander", CACHE=False)
    with pytest.raises(CompileError, match="stopped after"), options, observing(recorder):
        (_numbers(3, 11) + 5).realize()
    assert not [k for k in History(recorder).kernels if k.instructions.op is Ops.LINEAR]


def test_differences_are_where_graphs_part() -> None:
    a, b = variable("a", 0, 9), variable("b", 0, 9)
    one, two = a + a * 3, a + b * 3
    assert differences(one, one) == []
    assert differences(one, two) == [(a, b)]
    assert differences(one, a) == [(one, a)]
