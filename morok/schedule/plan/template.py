"""A schedule without buffers: the stages of scheduling put together, and their result to be filled in."""

from __future__ import annotations

from collections.abc import Sequence

from morok import knobs
from morok.dtype import index, void
from morok.errors import IRError
from morok.ir.layout import mesh_of
from morok.ir.memory import base_of
from morok.ir.node import UOp, const, large_graph, make, toposort
from morok.ir.ops import Ops
from morok.ir.provenance import Origin, line_of
from morok.rewrite.observe import current, observed, report
from morok.rewrite.observer import By
from morok.rewrite.stage import run_pipeline
from morok.schedule.graph.stages import GRAPH_STAGES
from morok.schedule.indexing import known_shape
from morok.schedule.mesh.rank import bytes_on_the_wire, collective_name, observed_partition
from morok.schedule.parts import begins_anywhere
from morok.schedule.plan.checks import place_checks, without_checks
from morok.schedule.plan.grouping import group_writes
from morok.schedule.plan.kernels import Kernel, lower, normal_form
from morok.schedule.plan.lengthen import lengthened
from morok.schedule.plan.memory import LiveRange, place_live_ranges
from morok.schedule.plan.order import CyclicOrder, dependencies, levels, scan_all
from morok.schedule.plan.overwrite import use_temporaries
from morok.schedule.plan.repeat import find_repeat
from morok.schedule.plan.steps import MemoryTemplate, Step, StepList, Template
from morok.schedule.split import CUT, KernelWrite, Split, params_of, plain, split_kernels

UNCHECKED = By("stage", "without checks", "1.0a")


def build_template(sink: UOp) -> Template:
    """Runs all stages over a normalised graph."""
    with large_graph:
        return _build_template(sink)


def _build_template(sink: UOp) -> Template:
    graph = sink
    if not knobs.CHECK_INDICES.value:
        graph = observed(UNCHECKED, sink, lambda: without_checks(sink))
    params = params_of(sink)
    of_rank = observed_partition(graph)
    if of_rank is not None:
        graph, params = of_rank.sink, of_rank.params(params)
    told = current() is not None or knobs.explains("fusion")
    one_by_one = told or of_rank is not None
    listed = _list_steps(graph, params) if one_by_one else _list_steps_by_layer(graph, params)
    results, made = listed.results, tuple(listed.made)
    output_buffers = tuple(dict.fromkeys(n for v in results if (n := _number(v)) >= listed.inputs))
    memory = _plan(listed, output_buffers)
    if of_rank is not None:
        results, made = of_rank.of_the_whole(results, made, listed.inputs, [_number(v) for v in results])
    notes = () if of_rank is None else of_rank.notes
    return Template(tuple(listed.steps), results, made, output_buffers, memory, tuple(listed.checks), notes)


def _list_steps_by_layer(graph: UOp, params: Sequence[UOp]) -> StepList:
    """Of equal layers only a few are scheduled, if the steps of the others follow from theirs."""
    repeat = find_repeat(toposort(graph))
    if repeat is not None:
        few, memory, numbers = repeat.shortened(params)
        found = lengthened(_list_steps_by_layer(few, memory), repeat, params, numbers)
        if found is not None:
            return found
    return _list_steps(graph, params)


def _list_steps(graph: UOp, params: Sequence[UOp]) -> StepList:
    graph = run_pipeline(GRAPH_STAGES, graph)
    split = split_kernels(graph, params)
    reads = scan_all(split.writes)
    if use_temporaries(split, reads):
        reads = scan_all(split.writes)
    waits = dependencies(split.writes, reads, split.inputs)
    wanted = {*split.params[: split.inputs], *(base_of(view) for view in split.results)}
    groups = group_writes(split.writes, waits, reads, wanted)
    position = {write: n for n, group in enumerate(groups) for write in group}
    before = [{position[w] for d in group for w in waits[d]} - {n} for n, group in enumerate(groups)]
    try:
        level = levels(range(len(groups)), before)
    except CyclicOrder as cycle:
        raise _cyclic([groups[n] for n in cycle.nodes]) from None
    collective = [group[0].kind == "collective" for group in groups]
    # Of what is independent, collectives begin first, and what needs those of before comes last: the others
    # run while values are on their way.
    late = [2 * any(collective[w] for w in found) for found in before]
    order = sorted(range(len(groups)), key=lambda n: (level[n], 0 if collective[n] else 1 + late[n], n))
    names = {old: new for new, old in enumerate(sorted(set(level)))}
    listed = StepList(split.inputs, [], [], [], tuple(plain(view) for view in split.results), [])
    for n in order:
        _add_steps(listed, split, groups[n], names[level[n]])
    listed.made += [(p.dtype, int(p.arg[1]), str(p.arg[2])) for p in split.params[split.inputs :]]
    return listed


def _add_steps(listed: StepList, split: Split, writes: Sequence[KernelWrite], group: int) -> None:
    """What runs for some writes, the memory that outputs and inputs may share, and what is checked."""
    first = writes[0]
    nothing = first.places is not None and 0 in known_shape(first.value)
    if nothing or 0 in known_shape(first.target):
        return
    if first.kind == "written":
        listed.add(_by_hand(first, group))
        return
    if first.kind != "kernel":
        listed.add(_transfer(first, group))
        return
    form = normal_form(writes)
    report(CUT, split.graph, form.sink)
    kernel = lower(form.sink)
    numbers = tuple(int(form.params[n].arg[0]) for n in kernel.params)
    notes, checks, others = place_checks(split, writes, form.checks, kernel.checks)
    if notes is not None and kernel.checks:
        numbers = (*numbers, int(notes.arg[0]))
    where = first.origin
    for other in others:
        if not other.is_late:
            listed.add(_step(other.kernel, other.numbers, where, group, first.device))
    listed.add(_step(kernel, numbers, where, group, first.device), tuple(sorted(kernel.shared)))
    for other in others:
        if other.is_late:
            listed.add(_step(other.kernel, other.numbers, where, group, first.device))
    listed.checks += checks


def _step(kernel: Kernel, numbers: tuple[int, ...], where: Origin | None, group: int, device: str) -> Step:
    ast, begins = kernel.from_its_beginnings if begins_anywhere(device) else (kernel.ast, {})
    starts = tuple([begins.get(n, 0) for n in range(len(numbers))]) if begins else ()
    return Step(
        ast,
        numbers,
        kernel.variables,
        kernel.name,
        where,
        kernel.flops,
        kernel.bytes,
        group,
        starts,
    )


def _by_hand(write: KernelWrite, group: int) -> Step:
    """A kernel whose instructions its device finds by name."""
    made, *read = (base_of(view) for view in (write.target, *write.value.src))
    memory = [
        make(Ops.DEFINE_GLOBAL, param.dtype.ptr(int(param.arg[1])), (), n)
        for n, param in enumerate((made, *read))
    ]
    place = make(Ops.INDEX, memory[0].dtype, (memory[0], const(index, 0)))
    value = make(Ops.WRITTEN, write.value.dtype, tuple(memory[1:]), write.value.arg, write.origin)
    ast = make(Ops.SINK, void, (make(Ops.STORE, void, (place, value)),))
    size = sum(int(param.arg[1]) * param.dtype.itemsize for param in (made, *read))
    name, key, _ = write.value.arg
    title = "_".join(map(str, (name, *key)))
    return Step(
        ast, tuple(int(param.arg[0]) for param in (made, *read)), (), title, write.origin, 0, size, group
    )


def _transfer(write: KernelWrite, group: int) -> Step:
    source = write.value
    view = base_of(source)
    target = base_of(write.target)
    given = make(Ops.PARAM, source.dtype, (), (1, view.arg[1], ""))
    size = int(target.arg[1]) * source.dtype.itemsize
    what, moved = "copy", 2 * size
    if write.collective is None:
        ast = make(Ops.COPY, source.dtype, (given, make(Ops.DEVICE, void, (), write.device)))
    else:
        ast = make(
            write.collective.op, source.dtype, (given, *write.collective.src[1:]), write.collective.arg
        )
        what, moved = collective_name(ast, mesh_of(write.device)), bytes_on_the_wire(ast)
    return Step(
        ast,
        (int(target.arg[0]), int(view.arg[0])),
        (),
        f"{what}_{target.arg[1]}",
        write.origin,
        0,
        moved,
        group,
    )


def _number(view: UOp) -> int:
    while view.src and view.op is not Ops.PARAM:
        view = view.src[0]
    return int(view.arg[0]) if view.op is Ops.PARAM else -1


def _plan(listed: StepList, outputs: Sequence[int]) -> MemoryTemplate:
    kept = {*outputs, *(check.buffer for check in listed.checks)}
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    readers: dict[tuple[int, int], int] = {}
    for step in listed.steps:
        for n in step.buffers:
            if n < listed.inputs or n in kept:
                continue
            first.setdefault(n, step.group)
            last[n] = step.group
            readers[n, step.group] = readers.get((n, step.group), 0) + 1
    live_ranges = []
    for n, start in first.items():
        dtype, size, device = listed.made[n - listed.inputs]
        live_ranges.append(LiveRange(n, device, size * dtype.itemsize, start, last[n]))
    # An input may give its place away if this kernel is the only one of its group that touches it.
    shared = [
        (step.buffers[out], step.buffers[source])
        for step, pairs in zip(listed.steps, listed.shared, strict=True)
        for out, source in pairs
    ]
    alone = [pair for pair in shared if readers.get((pair[1], last.get(pair[1], -1))) == 1]
    arenas, bound = place_live_ranges(live_ranges, alone)
    places = tuple((life.key - listed.inputs, life.device, life.offset, life.nbytes) for life in live_ranges)
    sizes = (listed.made[n - listed.inputs] for n in outputs)
    return MemoryTemplate(places, arenas, sum(size * dtype.itemsize for dtype, size, _ in sizes), bound)


def _cyclic(groups: list[list[KernelWrite]]) -> IRError:
    places = [line_of(write.origin) for group in groups for write in group if write.kind == "kernel"]
    known = [p for p in dict.fromkeys(places) if p is not None]
    where = " and ".join(known[:3]) or "this computation"
    return IRError(
        f"the assignments at {where} need each other's old values; copy one with contiguous() first",
        place=known[0] if known else None,
    )
