"""Steps from disk: a process that finds one neither traces nor schedules it.

What an ordinary function computes nobody can know before it has been traced: it may read whatever Python has.
A part of the library that says all it reads (its settings, and the tensors besides its arguments) and whose
source is known can be found by that: the key of an entry holds what it says, the forms of tensors, arguments
and variables, the options, the machine, and the source of everything that its module imports. An entry is a
schedule whose memory is numbered: first the tensors that were named, then the arguments.
"""

from __future__ import annotations

import base64
import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, final

from morok import knobs
from morok.device.buffer import keepers
from morok.device.store import plan_store
from morok.device.version import source_version
from morok.dtype import void
from morok.errors import MorokError
from morok.ir.layout import is_mesh
from morok.ir.memory import base_of
from morok.ir.node import UOp, make
from morok.ir.ops import Ops
from morok.ir.provenance import Origin
from morok.machine.devices import machine_of
from morok.runtime.plan import ExecutionPlan
from morok.schedule.plan.steps import Check, MemoryTemplate, Step, Template
from morok.schedule.plan.stored import from_bytes, to_bytes
from morok.schedule.schedule import Schedule, _fill_in
from morok.tensor.calls.tracing import TRACE_ENVIRONMENT
from morok.tensor.core import Core
from morok.tensor.jit.arguments import Input, plain_memory
from morok.tensor.jit.guards import Guards
from morok.tensor.jit.pytree import TENSOR, values_in
from morok.tensor.jit.results import Made
from morok.tensor.jit.trace import Trace
from morok.tensor.jit.variables import Bound
from morok.tensor.memory.names import new_buffer
from morok.tensor.memory.states import view_of
from morok.tensor.memory.storage import Storage


@final
@dataclass(frozen=True)
class Named:
    """A step by all that it depends on besides its arguments."""

    name: str
    module: str  # whose source, and that of what it imports, makes the step
    look: Callable[[], tuple[str, Sequence[Core]]]  # its settings, and the tensors that it reads

    def key(self, structure: Any, given: Sequence[Core], bound: Bound) -> str | None:
        """What an entry is found by; None if there is none for such a call."""
        said, tensors = self.look()
        values = []
        for value in values_in(structure):
            if isinstance(value, UOp) and value.op is not Ops.DEFINE_VAR:
                return None
            values.append(repr(value.arg) if isinstance(value, UOp) else repr(value))
        forms = [(repr(t.dtype), tuple(t.shape), t.device) for t in (*tensors, *given)]
        names = sorted({device for _, _, device in forms} | {knobs.default_device()})
        if any(map(is_mesh, names)):
            return None
        rows = (self.name, source_version(self.module), said, values, forms, len(tensors),
                sorted(repr(v.arg) for v in bound), [(n, machine_of(n).key) for n in names],
                [look() for look in TRACE_ENVIRONMENT])  # fmt: skip
        return "step|" + blake2b(repr(rows).encode(), digest_size=24).hexdigest()

    def memory(self) -> list[UOp] | None:
        """The memory of the tensors; None if one is not all of its own."""
        found = [plain_memory(t._uop) for t in self.look()[1]]
        return None if None in found else [node for node in found if node is not None]


@final
@dataclass
class Entry:
    """What is known of the calls of one form: the key, if there can be one, and the step, if it was there."""

    key: str | None
    trace: Trace | None
    kept: bool = False

    def keep(self, named: Named, trace: Trace | None, suits: Callable[[Trace], bool]) -> None:
        """Keeps a step for the next process, once."""
        if self.key is not None and trace is not None and not self.kept and self.trace is None:
            self.kept = True
            if suits(trace):
                _keep(named, self.key, trace)


# --- writing


def _keep(named: Named, key: str, trace: Trace) -> None:
    """Keeps a step whose only result is new memory, if there is a place for it."""
    store, known = plan_store(), named.memory()
    sizes = trace.output_spec.sizes(0) if len(trace.output_spec.outputs) == 1 else None
    if store is None or known is None or sizes is None or trace.structure is not TENSOR:
        return
    schedule = trace.plan.schedule
    if schedule.numbers:
        return  # memory that another process would have to fill
    inputs = [place.node for place in trace.inputs]
    numbers: dict[UOp, int] = {}
    for n, node in enumerate([*known, *inputs]):
        numbers.setdefault(node, n)
    first = len(known) + len(inputs)
    made: list[UOp] = []
    for item in schedule.items:
        for node in item.buffers:
            if node not in numbers:
                if node.src[0].arg >= 0:  # memory of a tensor that nobody has named
                    return
                numbers[node] = first + len(made)
                made.append(node)
    result = numbers.get(base_of(trace.views[0]))
    if result is None:
        return
    record = {
        "template": base64.b85encode(to_bytes(_template(schedule, numbers, made), _nothing())).decode(),
        "lines": [item.place for item in schedule.items],
        "inputs": [[place.number, place.node.arg] for place in trace.inputs],
        "written": sorted(trace.in_place),
        "result": [result, list(sizes)],
    }
    store.put_plan(key, json.dumps(record).encode())


def _nothing() -> UOp:
    return make(Ops.SINK, void, ())


def _template(schedule: Schedule, numbers: dict[UOp, int], made: list[UOp]) -> Template:
    """A schedule with numbers for its memory."""
    memory, place = schedule.memory, {node: n for n, node in enumerate(made)}
    steps = [
        Step(
            i.ast,
            tuple(numbers[b] for b in i.buffers),
            i.variables,
            i.name,
            None,
            i.flops,
            i.bytes,
            i.group,
            i.starts,
        )
        for i in schedule.items
    ]
    return Template(
        tuple(steps),
        (),
        tuple((node.dtype, node.arg, str(node.src[1].arg)) for node in made),
        tuple(numbers[node] for node in memory.outputs if node in numbers),
        MemoryTemplate(
            tuple(
                (place[n], p.device, p.offset, p.nbytes) for n, p in memory.placements.items() if n in place
            ),
            memory.arenas,
            memory.output_bytes,
            memory.live_bytes,
        ),
        tuple(Check(numbers[c.buffer], c.slot, c.complaint, c.limit, c.dtype, None) for c in schedule.checks),
        schedule.notes,
    )


# --- reading


def found_on_disk(named: Named, structure: Any, given: Sequence[Core], bound: Bound) -> Entry:
    """What was kept for a call."""
    key = named.key(structure, given, bound)
    return Entry(key, None if key is None else _restored(named, key, given, bound))


def _restored(named: Named, key: str, given: Sequence[Core], bound: Bound) -> Trace | None:
    """A step as it was kept; None if there is none, or if it is not understood."""
    store, known = plan_store(), named.memory()
    packed = None if store is None or known is None else store.get_plan(key)
    if packed is None or known is None:
        return None
    try:
        record = json.loads(packed)
        template = from_bytes(base64.b85decode(record["template"]), _nothing(), ())
        if template is None or len(record["lines"]) != len(template.steps):
            return None
        inputs = []
        for number, size in record["inputs"]:
            tensor = given[number]
            node = new_buffer(tensor.dtype, size, tensor.device)
            inputs.append(Input(number, False, Storage(node), node))
        buffers = [*known, *(place.node for place in inputs)]
        used = {name for step in template.steps for name in step.variables}
        values = {str(variable.arg[0]): int(bind.src[1].arg) for variable, bind in bound.items()}
        values = {name: value for name, value in values.items() if name in used}
        origins: list[Origin | None] = [None] * len(template.checks)
        made = _fill_in(template, buffers, values, (), origins, record["lines"], {}, {})
        view = view_of(buffers[record["result"][0]], tuple(record["result"][1]))
        written = {number: inputs[number].node for number in record["written"]}
    except (LookupError, MorokError, ValueError, TypeError):
        return None
    return _trace(ExecutionPlan(made), inputs, written, view, type(given[0]))


def _trace(
    plan: ExecutionPlan, inputs: list[Input], written: dict[int, UOp], view: UOp, kind: type[Core]
) -> Trace:
    """A form that was traced in another process: of arguments that share nothing, some of which may be
    written in place, it makes one new tensor. Nothing has run."""
    trace = Trace.__new__(Trace)
    trace.guards, trace.now = Guards(), None
    trace.arranged, trace.inputs = tuple(range(len(inputs))), inputs
    trace.given, trace.storages, trace.outputs, trace.outside_nodes = [], [], [], []
    trace.inside, trace.count, trace.draws, trace.cells = 0, 1, 0, {}
    trace.structure, trace.made, trace.changes = TENSOR, [Made("output", 0)], []
    trace.own, trace.rebound = 1, []
    trace.in_place, trace.writes = written, bool(written)
    trace.plan, trace.views = plan, [view]
    plan.compile()
    trace.checks, trace.word = bool(plan.schedule.checks), plan.word
    trace.launch = trace._new_launch()
    trace.output_spec = trace._output_spec(kind)
    trace.plain_results, trace.simple, trace.single, trace.first = True, False, False, []
    trace.idle = deque([] if trace.launch is None else [trace._new_results(trace.launch)])
    keepers.add(trace)
    return trace
