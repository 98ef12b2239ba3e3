"""Execution plans: a schedule with its kernels compiled and its memory taken, ready to run many times.

A plan does not know what a tensor is. It runs kernels in order on buffers; inputs are looked up when it runs,
so the same plan serves other data and other values of variables. Intermediate results share one arena per
device, which the plan keeps between runs.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, NoReturn, Protocol, final

from morok import knobs
from morok.caches import Cache, watch
from morok.device.base import Device, Program
from morok.device.buffer import Buffer, bind_buffer, find_buffer, show_bytes
from morok.device.error_flags import ErrorFlags
from morok.device.registry import get_device
from morok.dtype import uint8
from morok.dtype.records import record
from morok.errors import OutOfRange, VariableError
from morok.forks import cached_property
from morok.ir.memory import own_device, written_in
from morok.ir.node import UOp, large_graph, toposort
from morok.ir.ops import COLLECTIVES, TRANSFERS, Ops
from morok.ir.provenance import caller, line_of
from morok.optimize.strategy import DEFAULT, Beam, Config, Heuristic, Plain, Strategy
from morok.render.program import extent_of, extent_value
from morok.rewrite.gc_pause import gc_paused
from morok.runtime.beginnings import copy_fronts, for_item, place_numbers
from morok.runtime.interrupts import keep_interrupts
from morok.runtime.launch import PlanLaunch, are_loaded
from morok.runtime.mesh_launch import meet, plan_launch
from morok.runtime.profile import current
from morok.runtime.requests import requests
from morok.schedule.plan.memory import MemoryPlan
from morok.schedule.schedule import Schedule, ScheduleItem, kept_by

if TYPE_CHECKING:
    from morok.schedule.plan.stored import PlanStore

keep_interrupts()


def _plan_store() -> PlanStore | None:
    from morok.device.store import plan_store  # SQLite is for processes that compute something

    return plan_store()


kept_by(_plan_store)


# Kernels that a device has compiled, by graph. Equal kernels are the same node, so each is compiled once.
_programs: Cache[tuple[object, ...], weakref.WeakKeyDictionary[UOp, Program]] = Cache("runtime.options", 64)
watch("runtime.kernels", lambda: sum(len(known) for _, known in _programs.items()))


def program_for(
    device: str, ast: UOp, name: str, place: str | None = None, config: Config = DEFAULT
) -> Program:
    """The compiled kernel: remembered, or made now. What the options change is another kernel."""
    strategy = config.chosen
    known = _known_programs(device, strategy)
    found = known.get(ast)
    if found is None:
        found = known[ast] = _compile(device, ast, name, place, strategy)
        from_disk = getattr(found, "from_disk", False)
        requests.from_disk += from_disk
        requests.compiled += not from_disk
    else:
        requests.remembered += 1
    return found


def _known_programs(device: str, strategy: Strategy) -> weakref.WeakKeyDictionary[UOp, Program]:
    options = (device, knobs.compile_environment()[0], strategy)
    known = _programs.get(options)
    if known is None:
        known = _programs[options] = weakref.WeakKeyDictionary()
    return known


def _compile_together(items: Sequence[ScheduleItem], strategy: Strategy) -> None:
    """Has each device compile side by side what it likes of the kernels that nobody has compiled yet."""
    wanted: dict[str, dict[UOp, str]] = {}
    for item in items:
        if item.ast.op not in TRANSFERS:
            wanted.setdefault(_device(item), {}).setdefault(item.ast, item.name)
    for device, kernels in wanted.items():
        known = _known_programs(device, strategy)
        missing = [(ast, name) for ast, name in kernels.items() if ast not in known]
        if len(missing) > 1:
            with knobs.override(NOOPT=isinstance(strategy, Plain)):
                made = get_device(device).compile_all(missing)
            requests.compiled += len(made)
            requests.remembered -= len(made)  # they are asked for once more
            known.update(made)


def _compile(device: str, ast: UOp, name: str, place: str | None, strategy: Strategy) -> Program:
    if isinstance(strategy, Beam) and written_in(ast) is None:
        from morok.runtime.tuning import tuner

        ast = tuner.tuned(device, ast, name, place, strategy)
    with knobs.override(NOOPT=isinstance(strategy, Plain)):
        return get_device(device).compile(ast, name)


def buffer_for(node: UOp) -> Buffer:
    """The memory behind a BUFFER node; new memory if it never had any."""
    found = find_buffer(node)
    if found is None:
        found = get_device(str(node.src[1].arg)).buffer(node.arg, node.dtype)
        bind_buffer(node, found)
    return found


@final
@record(frozen=True)
class PlannedKernel:
    """What a plan tells about one of its kernels."""

    name: str
    place: str | None  # the user's file:line
    ops: int  # arithmetic on floats
    bytes: int  # memory that it must touch
    ast: UOp
    device: str
    group: int

    def __str__(self) -> str:
        where = self.place or "-"
        if self.ast.op in COLLECTIVES:
            return f"{self.name:<28} {where:<24} {'':>12} {show_bytes(self.bytes):>14} sent"
        return f"{self.name:<28} {where:<24} {self.ops:>12,} ops {show_bytes(self.bytes):>10}"


class Owner(Protocol):
    """Whoever had a plan made, and has to know about its first run."""

    overwrites: bool  # whether values that somebody may still want are replaced

    def begin(self) -> None:
        """Before anything runs; may refuse by raising."""

    def finish(self) -> None:
        """Everything has run."""

    def fail(self) -> None:
        """Something has stopped the run half-way: memory that it writes may hold anything."""


@final
class ExecutionPlan:
    """Kernels in order, on memory that has been laid out. Nothing has run when a plan is made."""

    def __init__(self, schedule: Schedule, owner: Owner | None = None) -> None:
        self.schedule = schedule
        self.memory: MemoryPlan = schedule.memory
        self.values: dict[str, int] = dict(schedule.values)
        self.limits = _limits(schedule)
        place_numbers(schedule)
        self._meets = any(i.ast.op in COLLECTIVES for i in schedule.items)  # whether ranks of a mesh do
        self.config = DEFAULT  # may be changed until the kernels are compiled
        placed = self.memory.placements
        self._written = [n for n in _written(schedule) if n not in placed]
        if schedule.checks:
            noted = {c.buffer for c in schedule.checks}
            self._written = [n for n in self._written if n not in noted]
        self._owner = owner
        self._arenas: dict[str, Buffer] = {}
        self._programs: tuple[Program | None, ...] | None = None
        self._searched: Beam | None = None  # how; until the plan has been raced
        self._again = False
        self._launch: PlanLaunch | Literal[False] | None = None
        self._bound: Mapping[str, int] = self.values  # of the last run
        self._wrote = False  # whether memory that held values may have been changed
        self._error_flags: dict[UOp, ErrorFlags] = {}
        self._known: list[memoryview] = []  # notes that are there as soon as kernels have been called
        self._unknown: list[tuple[Device, ErrorFlags]] = []
        for node in dict.fromkeys([check.buffer for check in schedule.checks]):
            device = get_device(own_device(node))
            flags = self._error_flags[node] = device.error_flags(node.arg)
            if device.waits:
                self._known.append(flags.words)
            else:
                self._unknown.append((device, flags))

    @cached_property
    def kernels(self) -> tuple[PlannedKernel, ...]:
        """What there is to tell about the kernels, in order."""
        items = self.schedule.items
        return tuple(
            PlannedKernel(i.name, i.place, i.flops, i.bytes, i.ast, _device(i), i.group) for i in items
        )

    # --- running

    def compile(self) -> None:
        """Make every kernel ready; the first run does it otherwise."""
        if self._programs is None:
            if knobs.DUMP.value or knobs.STOP_AFTER.value:
                _check_stages()
            with gc_paused, large_graph:
                strategy = self.config.chosen
                self._searched = strategy if isinstance(strategy, Beam) else None
                if self._searched is None:
                    _compile_together(self.schedule.items, strategy)
                self._programs = tuple(
                    None
                    if item.ast.op is Ops.COPY
                    else for_item(
                        program_for(_device(item), item.ast, item.name, item.place, self.config), item
                    )
                    for item in self.schedule.items
                )

    def run(self, inputs: Mapping[UOp, Buffer] | None = None, **values: int) -> None:
        """Run all kernels in order.

        `inputs` gives other memory to BUFFER nodes of the schedule, for this run; keywords give other values
        to variables. Results are written where the first run has written them.
        """
        bound = self._bind(values)
        self.compile()
        owner = self._owner
        if owner is None:
            self._run(inputs or {}, bound)
            return
        owner.begin()
        varied = self.schedule.varied
        if varied is not None:
            copy_fronts(varied.read, False, buffer_for)
        if owner.overwrites:
            self._make_ready(inputs or {})
        try:
            self._run(inputs or {}, bound)
        except BaseException:
            if self._wrote:
                owner.fail()
            raise
        if varied is not None:
            copy_fronts(varied.made, True, buffer_for)
        self._owner = None
        owner.finish()

    def _make_ready(self, inputs: Mapping[UOp, Buffer]) -> None:
        """Memory and code of all kernels, before one runs: what fails here has overwritten nothing."""
        for node in self._written:
            _make_private(node)
        for item, program in zip(self.schedule.items, self._programs or (), strict=True):
            for node in item.buffers:
                buffer = inputs.get(node)
                _ = (self._memory(node) if buffer is None else buffer).memory
            if program is not None:
                get_device(_device(item)).prepare(program)

    def _run(self, inputs: Mapping[UOp, Buffer], bound: Mapping[str, int]) -> None:
        assert self._programs is not None
        for node in self._written:
            _make_private(node)
        found: dict[UOp, Buffer] = dict(inputs)
        if self._searched is not None:
            self._final_race(found, bound, self._searched)
            self._searched = None
        self._bound = bound
        if (watched := current()) is not None:
            watched.runs(self)
        at_once = watched is None and not knobs.DEBUG.value and (self._again or self._goes_at_once())
        if at_once and self._replay(found, bound):
            if self._error_flags:
                self.hear()
            return
        self._again = True
        if self._meets:
            meet(list(zip(self._programs, (i.buffers for i in self.schedule.items), strict=True)))
        held = self._held() if self._owner is not None and self._owner.overwrites else None
        for item, program in zip(self.schedule.items, self._programs, strict=True):
            if held and not self._wrote and not held.isdisjoint(written_by(item)):
                self.hear()  # nothing has been overwritten so far
                self._wrote = True
            buffers = [found[n] if n in found else found.setdefault(n, self._memory(n)) for n in item.buffers]
            if watched is None and not knobs.DEBUG.value:
                _run_one(program, buffers, bound)
                continue
            device = get_device(_device(item))
            if program is not None:
                device.prepare(program)  # the time is that of the kernel, not of its making
            started = time.perf_counter()
            seconds = device.measure_kernel(program, partial(_run_one, program, buffers, bound))
            if watched is not None:
                ast, where = None if program is None else item.ast, _device(item)
                watched.record(item.name, item.place, where, started, seconds, item.flops, item.bytes, ast)
            if knobs.DEBUG.value >= 1:
                _report(item, seconds)
        if self._error_flags:
            self.hear()

    def _held(self) -> set[UOp]:
        """Memory with values that this run replaces."""
        return {node for node in self._written if find_buffer(node) is not None}

    # --- positions that were outside

    def hear(self) -> None:
        """Looks whether positions were outside, or has it looked at as soon as that is known."""
        for words in self._known:
            if any(words):
                self._complain()
        for device, flags in self._unknown:
            device.check_later(flags, self._look)

    @property
    def word(self) -> memoryview | None:
        """The only note that there may be, if it is there as soon as the kernels have been called."""
        alone = len(self._known) == 1 and not self._unknown and len(self._known[0]) == 1
        return self._known[0] if alone else None

    def _look(self) -> None:
        if any(any(flags.words) for flags in self._error_flags.values()):
            self._complain()

    def _complain(self) -> NoReturn:
        """An OutOfRange about the first position that a kernel has noted; then all is forgotten."""
        wrong = next(c for c in self.schedule.checks if self._error_flags[c.buffer].words[c.slot])
        position = int(self._error_flags[wrong.buffer].words[wrong.slot])
        for flags in self._error_flags.values():
            flags.clear()
        if wrong.dtype.is_unsigned:
            position %= 1 << 64
        elif position < 0 and wrong.complaint.from_the_end:
            position -= extent_value(extent_of(wrong.limit), self._bound)
        raise OutOfRange(wrong.complaint.text.replace("{}", str(position)), place=line_of(wrong.origin))

    def _final_race(self, given: Mapping[UOp, Buffer], values: Mapping[str, int], beam: Beam) -> None:
        """Races the kernels that were searched for against the heuristics', all of them together."""
        from morok.runtime.pick_winners import Raced, pick_winners

        items = self.schedule.items
        programs = [program for program in self._programs or () if program is not None]
        devices = {_device(item) for item in items}
        if len(programs) < len(items) or len(devices) != 1:  # copies have no place in a race
            return
        (device,) = devices
        self._programs = pick_winners(
            Raced(
                device,
                items,
                programs,
                lambda i: program_for(device, i.ast, i.name, i.place, Config(Heuristic())),
                lambda node: given[node] if node in given else self._memory(node),
                self._written,
                values,
            ),
            beam,
        )

    def _goes_at_once(self) -> bool:
        """Whether a first run is one native call, too: one that has nothing to wait for or to look at."""
        waits = self._meets or (self._owner is not None and self._owner.overwrites)
        return not waits and are_loaded(self._programs or ())

    def _replay(self, given: Mapping[UOp, Buffer], values: Mapping[str, int]) -> bool:
        """All kernels in one native call; False if the plan has other steps."""
        if self._launch is None:
            pairs = list(zip(self._programs or (), (i.buffers for i in self.schedule.items), strict=True))
            self._launch = plan_launch(pairs, values) or False
        if self._launch is False:
            return False
        for node in self._launch.nodes:
            found = given.get(node)
            self._launch.bind(node, self._memory(node) if found is None else found)
        for name, value in values.items():
            self._launch.set(name, value)
        self._launch()
        return True

    def _bind(self, values: Mapping[str, int]) -> dict[str, int]:
        for name, value in values.items():
            if name not in self.limits:
                known = ", ".join(self.limits) or "none"
                raise VariableError(f"the plan has no variable {name}; it has: {known}", place=caller())
            low, high = self.limits[name]
            if not low <= value <= high:
                raise VariableError(
                    f"variable {name} lies in {low} … {high}, so it cannot be {value}", place=caller()
                )
        return {**self.values, **values}

    def _memory(self, node: UOp) -> Buffer:
        """Where a buffer of the schedule lies: in the arena, or on its own."""
        place = self.memory.placements.get(node)
        if place is None:
            flags = self._error_flags.get(node)
            return buffer_for(node) if flags is None else flags.buffer
        arena = self._arenas.get(place.device)
        if arena is None:
            size = self.memory.arenas[place.device]
            arena = self._arenas[place.device] = get_device(place.device).buffer(size, uint8)
        return arena.view(node.arg, node.dtype, place.offset)

    # --- telling

    @property
    def wire_bytes(self) -> int:
        """Bytes that each device of a mesh sends to others."""
        return sum(kernel.bytes for kernel in self.kernels if kernel.ast.op in COLLECTIVES)

    @property
    def peak(self) -> int:
        """Bytes that a run takes on top of its inputs."""
        return self.memory.peak

    def __len__(self) -> int:
        return len(self.kernels)

    def __str__(self) -> str:
        count = len(self.kernels)
        sent = [k for k in self.kernels if k.ast.op in COLLECTIVES]
        count -= len(sent)
        between = f", {len(sent)} collective{'s' if len(sent) != 1 else ''}" if sent else ""
        kernels = f"{count} kernel{'s' if count != 1 else ''}"
        lines = [f"plan: {kernels}{between}, {show_bytes(self.peak)} on top of its inputs"]
        lines += [f"{number:>4}  {kernel}" for number, kernel in enumerate(self.kernels)]
        lines.append(
            f"memory: {show_bytes(self.memory.output_bytes)} results, "
            f"{show_bytes(self.memory.arena_bytes)} arena for intermediates"
        )
        if self.schedule.notes:
            lines.append(f"wire: {show_bytes(self.wire_bytes)} sent by each device")
            lines += self.schedule.notes
        if self.values:
            lines.append("variables: " + ", ".join(f"{k} = {v}" for k, v in sorted(self.values.items())))
        return "\n".join(lines)

    __repr__ = __str__


def _check_stages() -> None:
    """A KnobError if an option names a stage that no pipeline has."""
    from morok.codegen.pipeline import STAGES
    from morok.rewrite.stage import check_selection
    from morok.schedule.graph.stages import GRAPH_STAGES
    from morok.schedule.kernel.stages import KERNEL_STAGES

    check_selection((*GRAPH_STAGES, *KERNEL_STAGES, *STAGES))


def _run_one(program: Program | None, buffers: Sequence[Buffer], values: Mapping[str, int]) -> None:
    """A kernel, or a copy where there is none."""
    if program is None:
        buffers[0].copy_from(buffers[1])
    else:
        program(buffers, values)


def _device(item: ScheduleItem) -> str:
    return own_device(item.buffers[0])


def _written(schedule: Schedule) -> list[UOp]:
    """The buffers that some kernel writes."""
    return list(dict.fromkeys([node for item in schedule.items for node in written_by(item)]))


def written_by(item: ScheduleItem) -> list[UOp]:
    """The memory that a kernel or a transfer writes."""
    if item.ast.op in TRANSFERS:
        return [item.buffers[0]]
    stores = [effect.src[0] if effect.op is Ops.END else effect for effect in item.ast.src]
    return [item.buffers[store.src[0].src[0].arg] for store in stores]


def _make_private(node: UOp) -> None:
    """Before a write: memory that others look at is left to them, and the write goes into a copy."""
    found = find_buffer(node)
    if found is not None and not found.is_private:
        bind_buffer(node, found.clone())


def _limits(schedule: Schedule) -> dict[str, tuple[int, int]]:
    """The bounds of every variable in the kernels."""
    found: dict[str, tuple[int, int]] = {}
    for ast in {item.ast: None for item in schedule.items if item.variables}:
        for node in toposort(ast):
            if node.op is Ops.DEFINE_VAR:
                name, low, high = node.arg
                found[name] = (low, high)
    return found


def _report(item: ScheduleItem, seconds: float) -> None:
    rate = item.bytes / seconds / 1e9 if seconds > 0 else 0.0
    where = item.place or ""
    print(f"{item.name:<28} {where:<24} {seconds * 1e6:>10.1f} µs {rate:>8.2f} GB/s", file=sys.stderr)
