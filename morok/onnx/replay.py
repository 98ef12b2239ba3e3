"""Calls of a model that are alike, as one native call.

    recorder = Recorder()                    # a call notes which plans ran, on which tensors
    replay = replay_of(recorder, inputs, outputs)
    replay(feeds)                            # the next call of that kind: look at inputs, run, give out

A call of a model goes from part to part by names, looks parts up by what they start on, and makes tensors for
whatever lies between them. Where shapes and types, and values that the host reads, are those of an earlier
call, all of that comes out the same, and what is left of it are the kernels with their tables of addresses.
Calls that read what a kernel has computed (conditions, sizes from data, rounds of a loop) go the long way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, final

import numpy as np

from morok import knobs
from morok.device.base import as_host
from morok.device.buffer import Buffer
from morok.device.registry import get_device
from morok.ir.node import UOp
from morok.ir.ops import Ops
from morok.onnx.recurrence import Recurrence
from morok.onnx.types import Array
from morok.onnx.values import Host, Value
from morok.runtime.launch import NativeLaunch, PlanLaunch, Runnable, joined
from morok.runtime.plan import ExecutionPlan
from morok.runtime.profile import current
from morok.tensor.calls.tracing import TRACE_ENVIRONMENT
from morok.tensor.jit.arguments import memory_of
from morok.tensor.jit.jit import Jit
from morok.tensor.jit.trace import Trace
from morok.tensor.memory.strides import Chain
from morok.tensor.tensor import Tensor

_PER_PLACE = 8192  # bytes that are copied as fast as an address is written to the table of one more kernel
_KEPT = 4  # sets of results that are filled again when nobody knows of them


@final
@dataclass
class _Part:
    plan: Jit
    given: list[Any]
    made: list[Tensor]


@final
@dataclass
class _Layer:
    recurrence: Recurrence
    given: list[Tensor]
    made: list[Tensor]


@final
@dataclass
class Recorder:
    """What a call has run, in order; `whole` as long as that is all of it."""

    runs: list[_Part | _Layer] = field(default_factory=list)
    whole: bool = True

    def part(self, plan: Jit, given: list[Any], made: list[Tensor]) -> None:
        self.runs.append(_Part(plan, given, made))

    def layer(self, recurrence: Recurrence, given: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        self.runs.append(_Layer(recurrence, list(given), list(made)))

    def refuse(self) -> None:
        """Something has been done that is not noted, or something was read."""
        self.whole = False


class _Refused(Exception):
    """A call that is no replay."""


@final
class _Input:
    """An input: where kernels look for it, and memory of ours that it may be copied to.

    A call reads its inputs and is over when it returns, so kernels may read a fed array where it lies. Small
    ones, those that many kernels read, and those that are given out again are copied.
    """

    def __init__(self, name: str, own: Array, places: list[tuple[PlanLaunch, UOp]], passed_on: bool) -> None:
        self.name, self._own, self._places = name, own, places
        self._home = self._now = own.ctypes.data
        self._in_place = not passed_on and own.nbytes >= _PER_PLACE * len(places)

    def take(self, array: Array) -> None:
        address, flags = self._home, array.flags
        if self._in_place and flags.c_contiguous and flags.aligned:
            address = array.__array_interface__["data"][0]
        else:
            np.copyto(self._own, array)
        if address != self._now:
            for launch, node in self._places:
                launch.point(node, address)
            self._now = address


@final
@dataclass
class _Output:
    """An output: in memory, or the same each time."""

    buffer: Buffer | None
    shape: tuple[int, ...] = ()
    constant: Any = None


def at_front(chain: Chain) -> bool:
    """Whether a view of memory is elements in order, from the first one on."""
    if chain and chain[0].op is Ops.SHRINK:
        start = chain[0].sizes[0]
        if len(chain[0].shape) > 1 or start.op is not Ops.CONST or start.arg:
            return False
        chain = chain[1:]
    return all(step.op is Ops.RESHAPE for step in chain)


@final
class _Builder:
    """Launches for what a recorder has noted, with memory between them."""

    def __init__(self, memory: dict[int, Buffer]) -> None:
        self.memory = memory  # of tensors, by their identity
        self.launches: list[PlanLaunch] = []
        self.own: dict[int, Buffer] = {}  # that other memory may take the place of
        self.bound: dict[int, list[tuple[PlanLaunch, UOp]]] = {}  # to a buffer
        self.checked: list[Trace] = []
        self.plans: list[ExecutionPlan] = []

    def found(self, tensor: Any) -> Buffer:
        if not isinstance(tensor, Tensor):
            raise _Refused
        known = self.memory.get(id(tensor))
        if known is not None:
            return known
        if "_made_by" in tensor.__dict__ or tensor._chain or tensor._storage.frozen is None:
            raise _Refused
        return memory_of(tensor)  # a constant of the model

    def bind(self, launch: PlanLaunch, node: UOp, buffer: Buffer) -> None:
        launch.bind(node, buffer)
        self.bound.setdefault(id(buffer), []).append((launch, node))

    def part(self, run: _Part) -> None:
        trace = _trace_of(run)
        launch = trace._new_launch()
        if not isinstance(launch, NativeLaunch):
            raise _Refused
        for place in trace.inputs:
            self.bind(launch, place.node, self.found(run.given[place.number]))
        written = [get_device(device).buffer(size, dtype) for dtype, size, device in trace.output_spec.memory]
        self.own.update((id(buffer), buffer) for buffer in written)
        for node, buffer in zip(trace.written, written, strict=True):
            self.bind(launch, node, buffer)
        for tensor, made in zip(run.made, trace.made, strict=True):
            if made.kind == "given":
                continue
            spec = (
                trace.output_spec.outputs[made.number] if made.kind == "output" and not made.chain else None
            )
            if spec is None or not at_front(spec[1]):
                raise _Refused
            self.memory[id(tensor)] = written[spec[0]]
        self.launches.append(launch)
        if trace.checks:
            self.checked.append(trace)

    def layer(self, run: _Layer) -> None:
        memory, made, fresh = run.recurrence.places([self.found(tensor) for tensor in run.given])
        tables = run.recurrence.tables(memory)
        if tables is None or not all(isinstance(launch, NativeLaunch) for launch in tables.launches):
            raise _Refused
        for node, places in tables.places.items():
            for launch, own in places:
                self.bind(launch, own, memory[node])
        self.launches += tables.launches
        self.plans += run.recurrence.plans
        self.own.update((id(buffer), buffer) for buffer in fresh)
        for tensor, buffer in zip(run.made, made, strict=True):
            self.memory[id(tensor)] = buffer


def _trace_of(run: _Part) -> Trace:
    """The only form in which a part has been compiled, if it does nothing but compute."""
    around = [look() for look in TRACE_ENVIRONMENT]
    traces = [trace for key, trace in run.plan._known.items() if list(key[1]) == around]
    if len(traces) != 1:
        raise _Refused
    trace = traces[0]
    more = trace.outside_nodes or trace.draws or trace.writes or trace.plan.limits
    if more or any(place.whole for place in trace.inputs):
        raise _Refused
    return trace


@final
class Replay:
    """A call of a model for inputs of known shapes."""

    def __init__(
        self,
        build: _Builder,
        call: Runnable | None,
        inputs: list[_Input],
        outputs: list[_Output],
    ) -> None:
        self._build, self._steps, self._inputs, self._outputs = build, call, inputs, outputs
        self._call = None if call is None else call.run or call
        self._around = [(look, look()) for look in TRACE_ENVIRONMENT]
        own = {id(o.buffer): o.buffer for o in outputs if o.buffer is not None and id(o.buffer) in build.own}
        self._first = list(own.values())
        self._sets: list[list[Buffer]] = [self._first]
        self._numbers = {id(buffer): n for n, buffer in enumerate(self._first)}
        self._now = self._first

    def fits(self) -> bool:
        """Whether nothing has changed that kernels depend on."""
        return all(look() == was for look, was in self._around)

    def __call__(self, feeds: Mapping[str, Any]) -> list[Any]:
        for given in self._inputs:
            given.take(feeds[given.name])
        chosen = self._unused()
        if chosen is not self._now:
            for first, buffer in zip(self._first, chosen, strict=True):
                for launch, node in self._build.bound[id(first)]:
                    launch.bind(node, buffer)
            self._now = chosen
        if self._call is not None:
            self._call()
        for trace in self._build.checked:
            if trace.word is None or trace.word[0]:
                trace.plan.hear()
        for plan in self._build.plans:
            plan.hear()
        return [self._given_out(output, chosen) for output in self._outputs]

    def _given_out(self, output: _Output, chosen: list[Buffer]) -> Any:
        if output.buffer is None:
            return output.constant.copy()
        number = self._numbers.get(id(output.buffer))
        if number is None:  # an input, or states of steps: filled again
            return _front(output.buffer.array(), output.shape).copy()
        return _front(as_host(chosen[number]), output.shape)

    def _unused(self) -> list[Buffer]:
        """Memory for results that no array shows."""
        for buffers in self._sets:
            for buffer in buffers:
                if buffer._lease is not None and buffer._lease() is not None:
                    break
            else:
                return buffers
        fresh = [get_device(b.device).buffer(b.size, b.dtype) for b in self._first]
        self._sets = [*self._sets[1 - _KEPT :], fresh]
        return fresh


def may_replay() -> bool:
    """Whether nobody watches each plan."""
    return current() is None and not knobs.DEBUG.value


def _front(array: Array, shape: tuple[int, ...]) -> Array:
    return array[: prod(shape)].reshape(shape)


def replay_of(
    recorder: Recorder, inputs: Mapping[str, tuple[Any, Tensor]], outputs: Sequence[Value]
) -> Replay | None:
    """The recorded call, to be run again; None if it cannot be."""
    if not recorder.whole:
        return None
    build = _Builder({id(tensor): memory_of(tensor) for _, tensor in inputs.values()})
    try:
        for run in recorder.runs:
            if isinstance(run, _Part):
                build.part(run)
            else:
                build.layer(run)
        given = [_output(build, value) for value in outputs]
    except _Refused:
        return None
    taken = [o.buffer for o in given if o.buffer is not None]
    if len({id(buffer) for buffer in taken}) < len(taken):
        return None
    call = joined(build.launches) if build.launches else None
    if call is None and build.launches:
        return None
    places = [(name, own, build.memory[id(tensor)]) for name, (own, tensor) in inputs.items()]
    passed_on = {id(buffer) for buffer in taken}
    taking = [_Input(n, own, build.bound.get(id(b), []), id(b) in passed_on) for n, own, b in places]
    return Replay(build, call, taking, given)


def _output(build: _Builder, value: Value) -> _Output:
    if isinstance(value, Host) and not value.symbolic:
        return _Output(None, constant=value.array)
    if not isinstance(value, Tensor):
        raise _Refused
    sizes = tuple([n for n in value.shape if isinstance(n, int)])
    if len(sizes) < value.ndim:
        raise _Refused
    return _Output(build.found(value), sizes)
