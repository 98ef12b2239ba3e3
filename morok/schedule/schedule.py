"""The schedule: what has to run, in which order, on which memory.

    plan = schedule([y.node])
    for item in plan.items: ...        # kernels, breadth-first; items of one group are independent
    plan.results[y.node]               # the memory that holds y afterwards

A schedule is made once per signature of a computation. The signature, a graph without buffers' identities and
variables' values, is the key of a cache that holds a template; a second computation of the same signature
only fills in its buffers. Two keys lead to it: a quick one over the graph as it is (`signature.py`), and the
normalised graph.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, NamedTuple, final

from morok import knobs
from morok.caches import Cache
from morok.dtype import DType, void
from morok.dtype.records import record
from morok.ir.checks import Complaint
from morok.ir.infer import shape
from morok.ir.movement import reshape
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import Ops
from morok.ir.provenance import Origin, instruction_of, numbers_by_instruction, place
from morok.rewrite.observe import current, report
from morok.rewrite.observer import By
from morok.schedule.normalise import Normalised, normalise
from morok.schedule.numbers import from_memory, numbers_that_vary
from morok.schedule.parts import without_beginnings
from morok.schedule.plan.homes import check_homes
from morok.schedule.plan.memory import MemoryPlan, Placement
from morok.schedule.signature import Walk, graph_signature
from morok.schedule.varying import Varying, filled_by, refuse, shows_memory, with_variable

if TYPE_CHECKING:
    from morok.schedule.plan.steps import Step, Template
    from morok.schedule.plan.stored import PlanStore


NORMALISED = By("stage", "normalise", "1.0")


class ScheduleItem(NamedTuple):
    """One kernel, or one transfer (`ast.op is Ops.COPY`: buffers[1] to buffers[0]), on actual buffers."""

    ast: UOp
    buffers: tuple[UOp, ...]  # BUFFER nodes by DEFINE_GLOBAL number
    variables: tuple[str, ...]
    name: str
    place: str | None  # the user's file:line
    flops: int
    bytes: int
    group: int  # items of one group do not depend on each other
    starts: tuple[int, ...] = ()  # for each buffer the element that it begins with here; () if all with 0


@final
@record(frozen=True)
class Checked:
    """A place for notes about positions that are outside, and what they mean."""

    buffer: UOp
    slot: int
    complaint: Complaint
    limit: UOp
    dtype: DType
    origin: Origin | None  # of the user's line


@final
@record
class Varied:
    """Memory that is as long as it may become, in place of what is as long as it is now."""

    read: tuple[tuple[UOp, UOp], ...]  # the longer one, and what is copied there before
    made: tuple[tuple[UOp, UOp], ...]  # and what gets the front of it afterwards
    of: Varying


@final
@record
class Schedule:
    """Everything that running a computation takes."""

    items: tuple[ScheduleItem, ...]
    results: dict[UOp, UOp]  # requested node → a view of the BUFFER that holds it
    values: dict[str, int]  # of the variables
    memory: MemoryPlan
    checks: tuple[Checked, ...] = ()
    notes: tuple[str, ...] = ()  # how values lie on a mesh
    numbers: tuple[tuple[UOp, float | int], ...] = ()  # memory of one element each, and what is to lie there
    varied: Varied | None = None


# Where the line of a step is found in another graph of the form: the number of a node, and what it said here.
_Line = tuple[int, Origin | None, str | None]
_KEPT = 512
_templates: Cache[object, Template] = Cache("schedule.templates", _KEPT)
# By a key that needs no new nodes: templates, and where the buffers stand among the nodes of the graph.
_Known = tuple[
    "Template", tuple[int, ...], tuple[_Line | None, ...], tuple[int, ...], dict[int, int], dict[int, UOp]
]
_known: Cache[object, _Known] = Cache("schedule.known_graphs", _KEPT)
_WORTH_KEEPING = 0.02  # seconds that making a schedule took
_store: Callable[[], PlanStore | None] | None = None  # where schedules are kept between processes
# Buffers that schedules make count down, those of tensors count up: the two never meet.
_numbers = itertools.count(-1, -1)


def schedule(
    outputs: Sequence[UOp], walk: Walk | None = None, with_numbers: bool = False, with_sizes: bool = False
) -> Schedule:
    """The kernels that compute the outputs. `walk` is the one from them, where it is known already.

    With `with_numbers` the schedule may have memory for numbers that were others each time, and with
    `with_sizes` a variable for sizes that were.
    """
    if walk is None:
        walk = Walk(outputs)
    nodes = list(walk.number)
    quick = graph_signature(outputs, walk)
    key = (quick, *_environment())
    known = _known.get(key) if quick is not None else None
    if known is not None:
        template, places, lines, checked, starts, shows = known
        told, where = _told(template, lines, nodes), _at(nodes, checked)
        return _fill_in(template, [nodes[n] for n in places], {}, outputs, where, told, starts, shows)
    whole = normalise(outputs)
    form, starts, shows = without_beginnings(whole)
    if with_numbers:
        vary, device = numbers_that_vary(form.sink)
        if vary:
            return _with_numbers(outputs, vary, device)
    if current() is not None:
        report(NORMALISED, _likeness(outputs, nodes), form.sink)
    if with_sizes and knobs.VARYING_SIZES.value and (form.sink, *_environment()) not in _templates:
        varying = with_variable(whole)
        found = None if varying is None else _with_sizes(outputs, walk, whole, varying)
        if found is not None:
            return found
    template = find_template(form)
    checked = _checked(template, form, walk.number)
    lines = _lines(template, form, walk.number)
    if quick is not None:
        _known[key] = template, tuple([walk.number[b] for b in form.buffers]), lines, checked, starts, shows
    told, where = _told(template, lines, nodes), _at(nodes, checked)
    return _fill_in(template, list(form.buffers), form.values, outputs, where, told, starts, shows)


def _with_numbers(outputs: Sequence[UOp], numbers: Sequence[UOp], device: str) -> Schedule:
    """The schedule of the graph that reads some of its numbers from memory."""
    where = make(Ops.DEVICE, void, (), device)
    memory = {
        c: make(Ops.BUFFER, c.dtype, (make(Ops.UNIQUE, void, (), next(_numbers)), where), 1) for c in numbers
    }
    others = from_memory(outputs, memory)
    found = schedule(others)
    results = {node: found.results[other] for node, other in zip(outputs, others, strict=True)}
    held = tuple([(node, c.arg) for c, node in memory.items()])
    return Schedule(found.items, results, found.values, found.memory, found.checks, found.notes, held)


def _with_sizes(outputs: Sequence[UOp], walk: Walk, whole: Normalised, varying: Varying) -> Schedule | None:
    """The schedule of the graph with a variable, on memory that is as long as it may become."""
    form, nodes = varying.form, list(walk.number)
    try:
        template = find_template(form)
    except Exception:  # nobody has written this graph: the user's own is scheduled instead
        refuse(varying)
        return None
    made = [filled_by(view, len(form.buffers) + len(varying.numbers)) for view in template.results]
    shown = [s.src[0] if s.op is Ops.AFTER else s for s in whole.sink.src]
    shows = {n: shown[n] for n, number in enumerate(made) if number is None}
    if not all(shows_memory(view, varying) for view in shows.values()):
        refuse(varying)
        return None
    buffers = list(form.buffers)
    read, kept, exact = [], [], dict[int, UOp]()
    for number, most in varying.fronts.items():
        read.append((_memory(buffers[number].dtype, buffers[number].src[1], most), buffers[number]))
        buffers[number] = read[-1][0]
    numbers = []
    for dtype, device, value in varying.numbers:
        buffers.append(_memory(dtype, make(Ops.DEVICE, void, (), device), 1))
        numbers.append((buffers[-1], value))
    told = _told(template, _lines(template, form, walk.number), nodes)
    where = _at(nodes, _checked(template, form, walk.number))
    found = _fill_in(template, buffers, form.values, outputs, where, told, {}, shows)
    for node, result in zip(outputs, made, strict=True):
        if result is None:
            continue
        sizes = [size for size in shape(node) or () if isinstance(size, int)]  # the user's own are all known
        if result not in exact:
            exact[result] = _memory(buffers[result].dtype, buffers[result].src[1], prod(sizes))
            kept.append((buffers[result], exact[result]))
        found.results[node] = reshape(exact[result], sizes)
    found.numbers, found.varied = tuple(numbers), Varied(tuple(read), tuple(kept), varying)
    return found


def _memory(dtype: DType, device: UOp, size: int) -> UOp:
    return make(Ops.BUFFER, dtype, (make(Ops.UNIQUE, void, (), next(_numbers)), device), size)


def _likeness(outputs: Sequence[UOp], nodes: Sequence[UOp]) -> UOp:
    """The user's graph on memory that nobody has. Who keeps it keeps no tensor and finds no result again."""
    like: dict[UOp, UOp] = {}
    for node in nodes:
        if node.op is Ops.UNIQUE:
            like[node] = make(Ops.UNIQUE, void, (), next(_numbers))
        else:
            like[node] = node.replace(tuple([like[s] for s in node.src]))
    return make(Ops.SINK, void, tuple([like[node] for node in outputs]))


def _lines(template: Template, form: Normalised, number: dict[UOp, int]) -> tuple[_Line | None, ...]:
    """For each step a node, by number, of the line that asks for it; the last one is nearest to its result.

    A template, and the nodes of a normalised graph, may have come about for other lines.
    """
    inner = toposort(form.sink)
    numbers = numbers_by_instruction(inner)
    asked = {new: old for old, new in reversed(form.made.items()) if old in number}
    found: list[_Line | None] = []
    for step in template.steps:
        at = numbers.get(instruction_of(step.origin))
        node = None if at is None else asked.get(inner[at])
        found.append(None if node is None else (number[node], node.origin, place(node)))
    return tuple(found)


def _at(nodes: Sequence[UOp], numbers: Sequence[int]) -> list[Origin | None]:
    """Where some nodes come from."""
    return [nodes[n].origin if n >= 0 else None for n in numbers]


def _checked(template: Template, form: Normalised, number: dict[UOp, int]) -> tuple[int, ...]:
    """For each check of a template the number of its node in the graph; -1 if there is none."""
    if not template.checks:
        return ()
    checks = [(new, old) for old, new in form.made.items() if old.op is Ops.CHECK]
    return tuple(
        [
            next(
                (
                    number[old]
                    for new, old in checks
                    if new.origin is check.origin and new.arg == check.complaint
                ),
                -1,
            )
            for check in template.checks
        ]
    )


def _told(template: Template, lines: tuple[_Line | None, ...], nodes: Sequence[UOp]) -> list[str | None]:
    """The line of each step in another graph of the form. Loops come from the same place every time."""
    texts: dict[Origin | None, str | None] = {}  # many steps come from one line
    told: list[str | None] = []
    for step, line in zip(template.steps, lines, strict=True):
        if line is None:
            told.append(step.place)
            continue
        origin = nodes[line[0]].origin
        if origin is line[1]:
            told.append(line[2])
            continue
        if origin not in texts:
            texts[origin] = place(nodes[line[0]])
        told.append(texts[origin])
    return told


def find_template(form: Normalised) -> Template:
    """The template of a computation of this signature: remembered, or made now."""
    key = (form.sink, *_environment())
    found = _templates.get(key)
    if found is None:
        found = _templates[key] = _stored_or_built(form.sink)
    return found


def _stored_or_built(sink: UOp) -> Template:
    store = None if current() is not None or _store is None else _store()
    known = None
    if store is not None:
        from morok.schedule.plan.stored import from_bytes, plan_key, to_bytes

        nodes = toposort(sink)
        known = plan_key(sink, nodes)
        packed = store.get_plan(known)
        stored = None if packed is None else from_bytes(packed, sink, nodes)
        if stored is not None:
            return stored
    # loaded here: all rules come along, which a process that finds its schedules on disk never needs
    started = time.perf_counter()
    from morok.schedule.plan.template import build_template

    found = build_template(sink)
    if store is not None and known is not None and time.perf_counter() - started > _WORTH_KEEPING:
        store.put_plan(known, to_bytes(found, sink))
    return found


def kept_by(store: Callable[[], PlanStore | None]) -> None:
    """From now on schedules are looked for, and kept, where a function says; None is nowhere."""
    global _store
    _store = store


def _environment() -> tuple[object, object]:
    return knobs.compile_environment()


def clear_cache() -> None:
    """Forgets all templates."""
    _known.clear()
    _templates.clear()


def _fill_in(
    template: Template,
    buffers: list[UOp],
    values: dict[str, int],
    outputs: Sequence[UOp],
    checked: list[Origin | None],
    lines: list[str | None],
    starts: Mapping[int, int],
    shows: Mapping[int, UOp],
) -> Schedule:
    """The template on the actual buffers. Intermediate and output buffers are new ones each time.

    `starts` says of which buffers, by number, the template has a stretch that begins further on, and `shows`
    which outputs are more than such a stretch.
    """
    first = len(buffers)
    devices: dict[str, UOp] = {}
    for dtype, size, device in template.made:
        where = devices.get(device)
        if where is None:
            where = devices[device] = make(Ops.DEVICE, void, (), device)
        number = make(Ops.UNIQUE, void, (), next(_numbers))
        buffers.append(make(Ops.BUFFER, dtype, (number, where), size, number.origin))
    items = tuple(
        [
            ScheduleItem(
                step.ast,
                tuple([buffers[b] for b in step.buffers]),
                step.variables,
                step.name,
                lines[n],
                step.flops,
                step.bytes,
                step.group,
                _added(step, starts) if starts else step.starts,
            )
            for n, step in enumerate(template.steps)
        ]
    )
    results = {}
    for n, (node, view) in enumerate(zip(outputs, template.results, strict=True)):
        results[node] = _on_buffers(shows.get(n, view), buffers)
    made = template.memory
    plan = MemoryPlan(
        {buffers[first + n]: Placement(device, offset, nbytes) for n, device, offset, nbytes in made.places},
        made.arenas,
        tuple([buffers[n] for n in template.output_buffers]),
        made.output_bytes,
        made.live_bytes,
    )
    checks = [
        Checked(buffers[c.buffer], c.slot, c.complaint, c.limit, c.dtype, where)
        for c, where in zip(template.checks, checked, strict=True)
    ]
    if knobs.SPEC.value:
        check_homes(items)
    return Schedule(items, results, dict(values), plan, tuple(checks), template.notes)


def _added(step: Step, starts: Mapping[int, int]) -> tuple[int, ...]:
    """Where the buffers of a step begin, in stretches that begin somewhere themselves."""
    own = step.starts or (0,) * len(step.buffers)
    found = tuple([n + starts.get(b, 0) for n, b in zip(own, step.buffers, strict=True)])
    return found if any(found) else ()


def _on_buffers(view: UOp, buffers: list[UOp]) -> UOp:
    chain = [view]
    while chain[-1].src and chain[-1].op is not Ops.PARAM:
        chain.append(chain[-1].src[0])
    bottom = chain.pop()
    if bottom.op is not Ops.PARAM:
        return view
    found: UOp = buffers[bottom.arg[0]]
    for node in reversed(chain):
        found = node.replace((found, *node.src[1:]))
    return found
