"""Rounds whose number and sizes are known before the first of them, as one native call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from morok.device.buffer import Buffer
from morok.device.registry import get_device
from morok.ir.node import UOp
from morok.onnx.states import Held, Made, Rows, State
from morok.runtime.launch import NativeLaunch, joined

_MOST = 1024  # rounds
_MOST_BYTES = 1 << 26  # of rows that they leave


@final
class Series:
    """Rounds from one on, for states of known sizes: their tables are filled in once.

    Results that are handed on take turns in a few sets of memory; rows have places of their own.
    """

    def __init__(self, flow: Any, i: int, most: int) -> None:
        walk, given = flow.walk, list(flow.state)
        trace, count = walk.trace, len(given)
        self._launches: list[NativeLaunch] = []
        self._starts: list[tuple[int, NativeLaunch, UOp]] = []  # a state that is read as it was given
        self._rows: list[list[Held]] = []
        self._memory, self._sets = trace.output_spec.memory, list[list[Buffer]]()
        # Each stands for itself, also where two are in the same memory now. Nothing is allocated for these.
        state: list[State] = [
            Held(get_device(s.buffer.device).buffer(s.buffer.size, s.buffer.dtype), s.sizes)
            if isinstance(s, Held)
            else s
            for s in given
        ]
        self._numbers = {id(s.buffer): n for n, s in enumerate(state) if isinstance(s, Held)}
        self._given = state  # they hold what is told apart by identity
        own = {s.number for s in walk.sources[1 + count :] if isinstance(s, Made)}
        room = sum(self._memory[n][0].itemsize * self._memory[n][1] for n in own)
        for k in range(i, min(most, i + _MOST, i + _MOST_BYTES // max(room, 1))):
            flow.state = state
            values = flow.values(k)
            if values is None:
                break
            launch = trace._new_launch()
            assert isinstance(launch, NativeLaunch)
            buffers = [self._room(n) if n in own else kept for n, kept in enumerate(self._unused(state))]
            for node, buffer in zip(trace.written, buffers, strict=True):
                launch.bind(node, buffer)
            for n, node in flow.bound:
                self._read(launch, node, n, state)
            for name in trace.plan.limits:
                launch.set(name, values[name])
            made = flow.left(values, buffers)
            self._launches.append(launch)
            self._rows.append([row for row in made[1 + count :] if isinstance(row, Held)])
            state = made[1 : 1 + count]
        self._last, flow.state = state, given
        self._call = joined(self._launches) if self._launches else None

    def _read(self, launch: NativeLaunch, node: UOp, n: int, state: list[State]) -> None:
        held = state[n]
        assert isinstance(held, Held)
        number = self._numbers.get(id(held.buffer))
        if number is None:
            launch.bind(node, held.buffer)
        else:
            self._starts.append((number, launch, node))

    def _room(self, number: int) -> Buffer:
        dtype, size, device = self._memory[number]
        return get_device(device).buffer(size, dtype)

    def _unused(self, states: Sequence[State]) -> list[Buffer]:
        """Memory in which no state lies."""
        taken = {id(s.buffer) for s in states if isinstance(s, Held)}
        for buffers in self._sets:
            if not any(id(b) in taken for b in buffers):
                return buffers
        self._sets.append([self._room(n) for n in range(len(self._memory))])
        return self._sets[-1]

    def run(self, flow: Any, rows: list[Rows]) -> int:
        """All of them, from the flow's states to those that it has then; how many there were."""
        if self._call is None:
            return 0
        for node, buffer in flow.fixed:
            for launch in self._launches:
                launch.bind(node, buffer)
        for number, launch, node in self._starts:
            state = flow.state[number]
            assert isinstance(state, Held)
            launch.bind(node, state.buffer)
        self._call()
        flow.hear()
        for made in self._rows:
            for block, row in zip(rows, made, strict=True):
                block.add(row.array())
        flow.state = [self._handed_on(state, flow.state) for state in self._last]
        return len(self._launches)

    def _handed_on(self, state: State, given: list[State]) -> State:
        """A state at the end; one that was given may be another one now."""
        number = self._numbers.get(id(state.buffer)) if isinstance(state, Held) else None
        return state if number is None else given[number]
