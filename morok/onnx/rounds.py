"""Rounds of a loop that run one part again and again, on memory that changes hands.

A round of a `Loop` is a program by itself: what it starts on is looked at, the part that fits is looked up
and called, and what it leaves is put under names. Where one part is all of the body, the next round that
starts on the same form is the same call, and nothing of that is needed:

    bind the states' memory, set the variables, call; what came out is what the next one starts on

No set of results is written while a state lies in it. Sizes that grow and counters are variables of the
part, and its memory has room for them; where they leave their bounds rounds go on as any program does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from morok import dtype as dt
from morok.device.buffer import Buffer
from morok.device.registry import get_device
from morok.dtype import DType
from morok.ir.node import UOp
from morok.onnx.graph import Program
from morok.onnx.replay import at_front, may_replay
from morok.onnx.run import Part, form_of, is_lasting
from morok.onnx.series import Series
from morok.onnx.sizes import bound_in, is_symbolic, sizes_of
from morok.onnx.states import Held, Known, Made, Passed, Rows, Source, State, reader
from morok.onnx.values import Host, Value
from morok.runtime.launch import NativeLaunch
from morok.tensor.calls.tracing import TRACE_ENVIRONMENT
from morok.tensor.jit.arguments import memory_of
from morok.tensor.jit.trace import Trace
from morok.tensor.jit.variables import unbound_shape
from morok.tensor.sizes import concrete
from morok.tensor.tensor import Tensor

Env = dict[str, Value]
MOST_WALKS = 16  # of one body
MOST_SERIES = 8  # of one of these
_HANDED_ON = {
    dt.bool_, dt.int8, dt.int16, dt.int32, dt.int64, dt.uint8, dt.uint16, dt.uint32, dt.uint64,
    dt.float16, dt.float32, dt.float64,
}  # fmt: skip


@final
@dataclass
class _Set:
    """Memory for the results of a round, and the call that fills it."""

    buffers: list[Buffer]
    launch: NativeLaunch


@final
@dataclass
class Walk:
    """Rounds of a body that one part computes."""

    body: Program
    part: Part
    trace: Trace
    around: list[object]
    sources: list[Source]
    inputs: dict[str, UOp]  # the memory that the plan takes a name's tensor from
    sets: list[_Set] = field(default_factory=list)
    series: dict[Any, Series | None] = field(default_factory=dict)  # by where they start and on what sizes

    def begins(self, names: list[str], env: Env) -> bool:
        """Whether a round that starts like this is one of these."""
        part = self.part
        if names != part.names or self.around != [look() for look in TRACE_ENVIRONMENT]:
            return False
        values = [env[name] for name in names]
        if any(form_of(v) != wanted for v, wanted in zip(values, part.forms, strict=True)):
            return False
        return self._fitting(enumerate(sizes_of(values))) is not None

    def _fitting(self, sizes: Any) -> dict[str, int] | None:
        """What variables have to be for sizes by their numbers; None where they are none of this part's."""
        values: dict[str, int] = {}
        for n, size in sizes:
            steps = self.part.variables.get(n)
            if steps is None:
                if size != self.part.sizes[n]:
                    return None
            else:
                value = steps.value(size)
                if value is None or values.setdefault(steps.name, value) != value:
                    return None
        return values

    def run(
        self, env: Env, i: int, most: int | None, state: list[Value], rows: list[list[Any]]
    ) -> tuple[int, list[Value], bool]:
        """Rounds from one on, while they have this form: how many are done, the states, whether to go on."""
        flow = Flow(self, env, state)
        blocks = [Rows() for _ in rows]
        going = True
        count = len(state)
        if most is not None:
            i = self._ahead(flow, i, most, blocks)
        while going and (most is None or i < most):
            values = flow.values(i)
            if values is None:
                break
            made = flow.round(values)
            going = flow.truth(made[0])
            for row, block, value in zip(rows, blocks, made[1 + count :], strict=True):
                if isinstance(value, Held):
                    block.add(value.array())
                else:
                    row.append(value)
            flow.state = made[1 : 1 + count]
            i += 1
        for row, block in zip(rows, blocks, strict=True):
            if block.count:
                row.append(block)
        return i, [s.value() if isinstance(s, Held) else s for s in flow.state], going

    def _ahead(self, flow: Flow, i: int, most: int, rows: list[Rows]) -> int:
        """As many rounds as are known before the first of them, in one call; the number of the next."""
        goes_on = self.sources[0]
        if not isinstance(goes_on, Known) or goes_on.like.symbolic or not goes_on.like.array.all():
            return i
        if any(not isinstance(source, Made) for source in self.sources[1 + len(flow.state) :]):
            return i
        key = (i, most, tuple(flow.known.items()), *flow.sizes())
        if key not in self.series:
            if len(self.series) >= MOST_SERIES:
                self.series.clear()
            self.series[key] = None  # the first time, and most come but once
            return i
        found = self.series[key]
        if found is None:
            found = self.series[key] = Series(flow, i, most)
        return i + found.run(flow, rows)

    def unused(self, states: Sequence[State]) -> _Set:
        """A set of results in which no state lies."""
        taken = {id(s.buffer) for s in states if isinstance(s, Held)}
        for found in self.sets:
            if not any(id(b) in taken for b in found.buffers):
                return found
        launch = self.trace._new_launch()
        assert isinstance(launch, NativeLaunch)
        spec = self.trace.output_spec.memory
        buffers = [get_device(device).buffer(size, dtype) for dtype, size, device in spec]
        for node, buffer in zip(self.trace.written, buffers, strict=True):
            launch.bind(node, buffer)
        self.sets.append(_Set(buffers, launch))
        return self.sets[-1]


@final
class Flow:
    """One run of rounds: the states that they hand on."""

    def __init__(self, walk: Walk, env: Env, state: list[Value]) -> None:
        self.walk = walk
        names = walk.part.names
        self.fixed: list[tuple[UOp, Buffer]] = []
        places = {name: n for n, name in enumerate(walk.body.inputs)}
        self.counter: int | None = None  # the number of the size that the number of the round is
        self.starts: list[tuple[int, int]] = []  # a state, and the number of its first size
        self.forms: dict[int, Any] = {}  # of states
        self.bound: list[tuple[int, UOp]] = []  # a state, and the memory that it is taken from
        at, self.known = 0, dict[str, int]()
        held: dict[int, Held] = {}
        for name in names:
            value, place = env[name], places.get(name)
            sizes = sizes_of([value])
            if place == 0:
                self.counter = at if sizes else None
            elif place is not None and place > 1:
                self.starts.append((place - 2, at))
                self.forms[place - 2] = walk.part.forms[names.index(name)]
                if isinstance(value, Tensor):
                    held[place - 2] = self._held(value, walk.inputs[name])
                    self.bound.append((place - 2, walk.inputs[name]))
            else:
                found = walk._fitting(enumerate(sizes, at))
                assert found is not None
                self.known.update(found)
                if isinstance(value, Tensor):
                    self.fixed.append((walk.inputs[name], self._held(value, walk.inputs[name]).buffer))
            at += len(sizes)
        self.hosts = {
            p: walk.part.forms[n] for n, name in enumerate(names) if (p := places.get(name, -1)) > 1
        }
        self.state: list[State] = []
        for n, value in enumerate(state):
            kept = held.get(n)
            if kept is None:  # one that no kernel reads
                kept = self._held(value, None) if isinstance(value, Tensor) else None
            assert kept is not None or isinstance(value, Host)
            self.state.append(value if kept is None else kept)  # type: ignore[arg-type]
        self.ready: set[int] = set()

    @staticmethod
    def _held(tensor: Tensor, node: UOp | None) -> Held:
        """A tensor's memory, or a copy of it with the room that the plan asks for."""
        sizes = tuple([concrete(n) for n in tensor.shape])
        memory = memory_of(tensor)
        if node is not None and memory.size < node.arg:
            room = get_device(memory.device).buffer(node.arg, memory.dtype)
            room.array()[: memory.size] = memory.array()
            memory = room
        return Held(memory, sizes, tensor)

    def sizes(self) -> list[Any]:
        """What decides about the rounds that follow, but for the values of variables."""
        return [
            (state.form, state.sizes) if isinstance(state, Held) else (form_of(state), sizes_of([state]))
            for state in self.state
        ]

    def values(self, i: int) -> dict[str, int] | None:
        """What the variables are in the next round; None if it is none of this walk's."""
        sizes: list[tuple[int, int]] = [] if self.counter is None else [(self.counter, i)]
        for n, start in self.starts:
            state = self.state[n]
            form = state.form if isinstance(state, Held) else form_of(state)
            if form != self.forms[n]:
                return None
            sizes += enumerate(state.sizes if isinstance(state, Held) else sizes_of([state]), start)
        found = self.walk._fitting(sizes)
        if found is None or any(self.known.get(name, n) != n for name, n in found.items()):
            return None
        return {**self.known, **found}

    def round(self, values: dict[str, int]) -> list[State]:
        """One call, and what it leaves."""
        trace = self.walk.trace
        chosen = self.walk.unused(self.state)
        launch = chosen.launch
        if id(chosen) not in self.ready:
            self.ready.add(id(chosen))
            for node, buffer in self.fixed:
                launch.bind(node, buffer)
        for n, node in self.bound:
            state = self.state[n]
            assert isinstance(state, Held)
            launch.bind(node, state.buffer)
        for name in trace.plan.limits:
            launch.set(name, values[name])
        launch()
        self.hear()
        return self.left(values, chosen.buffers)

    def hear(self) -> None:
        """What a call has to complain about."""
        trace = self.walk.trace
        if trace.checks and (trace.word is None or trace.word[0]):
            trace.plan.hear()

    def left(self, values: dict[str, int], buffers: Sequence[Buffer]) -> list[State]:
        """What a round leaves, its results being in these buffers."""
        made: list[State] = []
        for source in self.walk.sources:
            if isinstance(source, Made):
                made.append(Held(buffers[source.number], tuple([read(values) for read in source.sizes])))
            elif isinstance(source, Known):
                made.append(source.host(values))
            else:
                made.append(self.state[source.number - 2])
        return made

    @staticmethod
    def truth(value: State) -> bool:
        array = value.array() if isinstance(value, Held) else value.array
        return bool(array.reshape(-1)[0])


def walk_of(body: Program, part: Part) -> Walk | None:
    """The rounds that a part computes; None if it is not all of the body, or does more than that."""
    if part.plan is None or part.end < len(body.nodes) or part.asked is not None or not part.forms:
        return None
    around = [look() for look in TRACE_ENVIRONMENT]
    for key, trace in part.plan._known.items():
        if list(key[1]) == around and not any(place.whole for place in trace.inputs):
            break
    else:
        return None
    alone = not (trace.outside_nodes or trace.draws or trace.writes)
    if not alone or not isinstance(trace.launch, NativeLaunch):
        return None
    sources = [_source(name, body, part, trace) for name in body.outputs]
    tensors = [name for name, wanted in zip(part.names, part.forms, strict=True) if _is_tensor(wanted)]
    inputs = {tensors[place.number]: place.node for place in trace.inputs}
    known = [s for s in sources if s is not None]
    if len(known) < len(sources) or set(inputs) != set(tensors):
        return None
    return Walk(body, part, trace, around, known, inputs)


def _is_tensor(form: Any) -> bool:
    return isinstance(form, tuple) and len(form) == 2 and isinstance(form[1], DType)


def _from_outside(name: str, body: Program) -> Source | None:
    """An output that no node makes: a state as it was, or a constant."""
    if name == body.inputs[1]:
        return Known([], Host(np.array(True)))
    if name in body.inputs[2:]:
        return Passed(body.inputs.index(name))
    held = body.constants.get(name)
    return None if held is None else Known([], Host(held.array, held.elem))


def _source(name: str, body: Program, part: Part, trace: Trace) -> Source | None:
    """Where an output of the body comes from."""
    if name not in part.left:
        return _from_outside(name, body)
    value = part.left[name]
    if isinstance(value, Host):
        if value.is_text or bound_in([value]):
            return None
        flat = value.array.reshape(-1) if value.symbolic else ()
        return Known([reader(n) for n in flat], value)
    if not isinstance(value, Tensor) or value.dtype not in _HANDED_ON:
        return None
    if any(not isinstance(v, Tensor | Host) for v in part.left.values()):
        return None
    number = [n for n, v in part.left.items() if isinstance(v, Tensor)].index(name)
    made = trace.made[number]
    if made.kind == "given":
        taken = [n for n, form in zip(part.names, part.forms, strict=True) if _is_tensor(form)]
        return _from_outside(taken[made.number], body)
    output = trace.output_spec.outputs[made.number] if made.kind == "output" and not made.chain else None
    if output is None:
        return None
    place, chain = output
    return Made(place, [reader(n) for n in unbound_shape(value.shape)]) if at_front(chain) else None


@final
class Walks:
    """The rounds of a body that are one part each, as far as they have run."""

    def __init__(self, body: Program) -> None:
        self.body = body
        body.ran = None

    def find(self, env: Env) -> Walk | None:
        """Those that begin like this."""
        body = self.body
        if not body.walks or not may_replay() or not body.constants.keys().isdisjoint(env):
            return None
        names = [name for name in body.varying[0] if name in env and not is_lasting(env[name])]
        for value in map(env.__getitem__, names):
            if not isinstance(value, Tensor | Host) or is_symbolic(value):
                return None
        if any(name in body.read_on_host and isinstance(env[name], Tensor) for name in names):
            return None
        return next((walk for walk in body.walks if walk.begins(names, env)), None)

    def learn(self) -> None:
        """Take down the part that has just run, if it is a round."""
        body, part = self.body, self.body.ran
        if part is None or part.plan is None or part.looked_at == part.plan.traces:
            return
        part.looked_at = part.plan.traces
        walk = walk_of(body, part)
        if walk is not None:
            del body.walks[: len(body.walks) - MOST_WALKS + 1]
            body.walks.append(walk)
