"""A stretch of a graph as one plan: compiled for sizes and strides, run on torch's memory.

Inputs are read where torch has them, and results are written into memory that torch has just given out, in
the strides that torch expects: nothing is copied on the way in or out, except inputs with gaps between their
elements. What only shows an input, or another result, is a view in torch's sense too.

Where torch has symbolic sizes the plan has variables, and serves all sizes of their ranges: `bind` finds what
is different about a call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from threading import RLock
from typing import Any, final

import torch

from morok import knobs
from morok.device.buffer import Buffer
from morok.device.registry import get_device
from morok.dtype import uint8
from morok.forks import renewed
from morok.ir.build import bind
from morok.ir.memory import base_of
from morok.ir.node import UOp, make
from morok.ir.ops import Ops
from morok.optimize.strategy import Beam
from morok.runtime.plan import ExecutionPlan
from morok.runtime.profile import current
from morok.schedule.schedule import schedule
from morok.tensor.jit.variables import rebound_nodes
from morok.tensor.memory.states import is_memory
from morok.tensor.tensor import Tensor
from morok.torch.layout import Layout, in_layout, known_layout, layout_of, shared_bases, shown_by
from morok.torch.lower import at_line
from morok.torch.parts import Item, Part, bind_all, delayed, parts_of
from morok.torch.results import Made, Number, Planned, Shown, Twin
from morok.torch.sizes import Sizes, Variables
from morok.torch.streams import fresh_cell, ordered
from morok.torch.traced import Traced

_MOST_BRIEF = 32 << 20  # bytes: above it the system gives memory out anew, page by page


@final
class Program:
    """One plan: made from what was traced (`of`), or found on disk (`stored.restore`)."""

    def __init__(self, device: str, cell: UOp) -> None:
        self.device = device
        self.on_gpu = self.device.startswith("CUDA")
        self.torch_device = torch.device(
            "cuda:" + (self.device.partition(":")[2] or "0") if self.on_gpu else "cpu"
        )
        self.far = not self.on_gpu and not get_device(device).on_host
        self.variables: Variables | None = None
        self.cell = cell
        self.lock = renewed(self, "lock", RLock)
        # of an argument: its number, the memory that is read, and whether it is copied there first
        self.places: list[tuple[int, UOp, bool]] = []
        self.layouts: list[Layout | None] = []
        self.results: list[Planned] = []
        self.count = 0  # results that people see
        self.owned: frozenset[int] = frozenset()  # arguments that nobody holds but who calls
        self.draws = False
        self.plan: ExecutionPlan | None = None
        self.parts: list[Part] | None = None  # the kernels, as few native calls
        self.brief = False  # intermediate results have memory only while they are needed
        self._rooms: dict[int, int] = {}  # by a part's identity: where its room was last
        self.targets: list[UOp] = []
        self.wanted: list[UOp] | None = None  # what was scheduled, until it is kept on disk

    @classmethod
    def of(cls, traced: Traced, outputs: Sequence[Any], sizes: Sizes, config: Any = None) -> Program:
        """What was traced is computed from its inputs, and `outputs` are given back."""
        made = cls(traced.device, traced.cell)
        made.variables = traced.known if isinstance(traced.known, Variables) else None
        made.places = traced.places
        made.layouts = [traced.layouts.get(node) for node in traced.inputs]
        with traced.recording():
            made.results = made._results(traced, outputs, sizes)
        made.draws = traced.draws
        made.plan = made._planned(config, sizes)
        return made

    # --- making the plan

    def _results(self, traced: Traced, outputs: Sequence[Any], sizes: Sizes) -> list[Planned]:
        env, layouts = traced.env, traced.layouts
        numbers = {node: n for n, node in enumerate(traced.inputs)}
        shared = shared_bases(outputs, numbers, self.device)
        whole = [*outputs, *shared]
        made = {base: len(outputs) + n for n, base in enumerate(shared)}
        ends = {*numbers, *whole}
        self.count = len(outputs)
        results: dict[int, Planned] = {}
        # what is shown is known before whoever shows it, also where that is an earlier result
        for number, node in sorted(enumerate(whole), key=lambda found: _views_below(found[1])):
            if not isinstance(node, torch.fx.Node):
                results[number] = Planned(node)
                continue
            val = node.meta.get("val")
            if not isinstance(env[node], Tensor):
                varies = isinstance(val, torch.SymInt | torch.SymFloat | torch.SymBool)
                results[number] = Planned(Number(val) if varies and self.variables else env[node])
                continue
            base = node
            while base not in numbers and (base is node or base not in ends):
                below = shown_by(base)
                if below is None or base in made:
                    break
                base = below
            shown = None
            if number < len(outputs):
                shown = self._shown(node, base, sizes, numbers, made, layouts)
            if shown is None:
                made.setdefault(node, number)
                layout = known_layout(val, sizes)
                shown = Planned(at_line(node, self._made, (env[node], layout, val.dtype)), val)
            results[number] = shown
        return [results[number] for number in range(len(whole))]

    def _shown(
        self, node: Any, base: Any, sizes: Sizes, numbers: Any, made: Any, layouts: dict[Any, Layout]
    ) -> Planned | None:
        layout = known_layout(node.meta["val"], sizes)
        if base is node:
            if base in made:
                return Planned(Shown(False, made[base], layout, 0), node.meta["val"])
            return Planned(Shown(True, numbers[base], layouts[base], 0)) if base in numbers else None
        if base not in numbers and base not in made:
            return None
        if base in numbers and layouts[base] != known_layout(base.meta["val"], sizes):
            return None  # other strides than torch has thought of
        val, other = node.meta["val"], base.meta["val"]
        offset = sizes(val.storage_offset()) - sizes(other.storage_offset())
        number = numbers[base] if base in numbers else made[base]
        return Planned(Shown(base in numbers, number, layout, offset), val, other)

    def _made(self, tensor: Tensor, layout: Layout, dtype: Any) -> Made:
        if 0 in layout.sizes:
            return Made(layout, dtype, None, False)
        copied = layout.order is None
        own = tensor if copied else in_layout(tensor, layout)
        count: Any = 1
        for n in own.shape:
            count = count * n
        flat = own.reshape(count)._uop
        # in row-major order and in the layout are two results, also where the elements are the same
        self.targets.append(make(Ops.CONTIGUOUS, flat.dtype, (flat,), "row-major" if copied else None))
        return Made(layout, dtype, self.targets[-1], copied)

    def _planned(self, config: Any, sizes: Sizes) -> ExecutionPlan | None:
        if not self.targets:
            return None
        unique = list(dict.fromkeys(self.targets))
        forced = {t: make(Ops.CONTIGUOUS, t.dtype, t.src, t.arg or "torch's memory") for t in unique}
        chosen = {t: forced[t] if is_memory(t.src[0]) else _stored(t) for t in unique}
        found = self._scheduled(chosen, sizes)
        if found is None:  # a result that shows another one, or an input: a copy of its own
            found = self._scheduled(forced, sizes)
        assert found is not None, "a result that no kernel writes"
        plan, memory = found
        if config is not None:
            plan.config = config
        first: dict[UOp, int] = {}
        for number, result in enumerate(self.results):
            of = result.of
            if isinstance(of, Made) and of.node is not None:
                of = replace(of, node=memory[of.node])
                assert of.node is not None
                result.of = Twin(first[of.node], of) if of.node in first else of
                first.setdefault(of.node, number)
        self.targets = []
        return plan

    def _scheduled(
        self, targets: dict[UOp, UOp], sizes: Sizes
    ) -> tuple[ExecutionPlan, dict[UOp, UOp]] | None:
        """A plan that writes every target, whole and in order, and where; None if one is only shown."""
        wanted = list(dict.fromkeys(targets.values()))
        valued = wanted
        if self.variables is not None:
            values = self.variables.values(sizes)
            variables = {v.uop: bind(v.uop, values[v.name]) for v in self.variables.of.values()}
            valued = rebound_nodes(wanted, variables)
        with knobs.override(DEVICE=self.device):
            plan = ExecutionPlan(schedule(valued))
        written = set(plan._written)
        memory = {}
        for target, node in zip(wanted, valued, strict=True):
            view = plan.schedule.results[node]
            while view.op is Ops.RESHAPE or (view.op is Ops.SHRINK and self.variables is not None):
                view = view.src[0]
            if view.op is not Ops.BUFFER or view not in written:
                return None
            memory[target] = base_of(view)
        self.wanted = valued
        return plan, {target: memory[node] for target, node in targets.items()}

    # --- running

    def bind(self, sizes: Sizes, given: Sequence[Any]) -> Bound | None:
        """The program for arguments of a call; None if they are not what it was made for."""
        if self.variables is not None:
            if not self.variables.fits(sizes):
                return None
            for layout, value in zip(self.layouts, given, strict=True):
                if layout is not None and layout_of(value).form != layout.form:
                    return None
        try:
            results = [result.bound(sizes, given) for result in self.results]
        except LookupError:
            return None
        return Bound(self, results, {} if self.variables is None else self.variables.values(sizes))

    def argument(self, value: Any, copied: bool) -> Any:
        """An argument where and as the plan reads it."""
        if copied:
            value = value.resolve_neg().resolve_conj().contiguous()
        if self.on_gpu:
            if value.device.type == "cpu":  # a number, which torch takes from the host
                value = value.to(self.torch_device)
            if value.data_ptr() % 16:  # vectors are read as such
                value = value.clone(memory_format=torch.preserve_format)
        return value

    def in_parts(self, values: dict[str, int]) -> bool:
        """Whether there are several native calls; they are made when this is first asked."""
        if self.plan is None or self.far or current() is not None:
            return False
        return (self.parts is not None or self._ready(self.plan, values)) and len(self.parts or ()) > 1

    def run(self, pairs: list[tuple[UOp, Any]], values: dict[str, int]) -> None:
        """Run the plan on memory of torch's, for values of its variables."""
        plan = self.plan
        assert plan is not None
        if self.draws:
            pairs.append((self.cell, fresh_cell(self.torch_device)))
        if self.far:
            self._run_far(plan, pairs, values)
            return
        if current() is not None or (self.parts is None and not self._ready(plan, values)):
            known = {name: number for name, number in values.items() if name in plan.limits}
            with ordered(self.torch_device):
                plan.run({node: self._buffer(node, value) for node, value in pairs}, **known)
            return
        for part in self.parts or ():
            for node, value in pairs:
                part.launch.point(node, value.data_ptr())
            self.start(part, values)
        self.ran(values)

    def start(self, part: Part, values: dict[str, int]) -> None:
        """Run a part whose memory is known, but for what it has for itself."""
        for name, number in values.items():
            part.launch.set(name, number)
        room = torch.empty(part.room, dtype=torch.uint8) if part.room else None
        if room is not None and self._rooms.get(id(part)) != room.data_ptr():
            base = self._rooms[id(part)] = room.data_ptr()
            for node, offset in part.inner:
                part.launch.point(node, base + offset)
        with ordered(self.torch_device):
            part.launch()

    def ran(self, values: dict[str, int]) -> None:
        """All parts have been started."""
        assert self.plan is not None
        self.plan._bound = values
        self.plan.hear()

    def _run_far(self, plan: ExecutionPlan, pairs: list[tuple[UOp, Any]], values: dict[str, int]) -> None:
        """Run the plan on the emulator, whose memory is not torch's: there and back."""
        device = get_device(self.device)
        buffers = {node: device.buffer(node.arg, node.dtype) for node, _ in pairs}
        for node, value in pairs:
            buffers[node].view(_numbers(value, node.arg).size, uint8, 0).copy_in(_numbers(value, node.arg))
        plan.run(buffers, **{name: number for name, number in values.items() if name in plan.limits})
        for node, value in pairs:
            _numbers(value, node.arg)[:] = (
                buffers[node].view(_numbers(value, node.arg).size, uint8, 0).copy_out()
            )

    def _ready(self, plan: ExecutionPlan, values: dict[str, int]) -> bool:
        """Whether all kernels are one native call; a search is for a plan that runs them one by one."""
        if plan._searched is None and not isinstance(plan.config.chosen, Beam) and not knobs.DEBUG.value:
            plan.compile()
            items: list[Item] = [
                (program, item.buffers)
                for program, item in zip(plan._programs or (), plan.schedule.items, strict=True)
            ]
            sizes = {
                r.of.node: r.of.node.arg * r.of.node.dtype.itemsize
                for r in self.results
                if isinstance(r.of, Made) and r.of.node is not None
            }
            arguments = {node: number for number, node, _ in self.places} | {self.cell: -1}
            stays = {r.of.number for r in self.results if isinstance(r.of, Shown) and r.of.of_input}
            owned = {
                node: node.arg * node.dtype.itemsize
                for number, node, _ in self.places
                if number in self.owned and number not in stays
            }
            brief = self.brief and not self.on_gpu and plan.memory.arena_bytes <= _MOST_BRIEF
            placed = plan.memory.placements if brief else {}
            items = delayed(items) if self.brief and not self.on_gpu else items
            self.parts = parts_of(items, {**plan.values, **values}, arguments, sizes, owned, placed)
        if self.parts is None:
            return False
        bind_all(self.parts, plan._memory)
        return True

    def _buffer(self, node: UOp, value: Any) -> Buffer:
        target = get_device(self.device)
        if not target.on_host:
            return Buffer(
                self.device, node.arg, node.dtype, target.allocator, memory=value.data_ptr(), shared=True
            )
        flat = _numbers(value, node.arg)
        return Buffer(self.device, node.arg, node.dtype, target.allocator, memory=flat, shared=True)


def _numbers(value: Any, most: int = 1 << 62) -> Any:
    """The bytes of a tensor on the host, from its first element on."""
    room = value.untyped_storage().nbytes() // value.element_size() - value.storage_offset()
    count = min(most, room)  # where sizes vary, the plan's memory is for the largest
    return torch.as_strided(value.detach(), (count,), (1,)).view(torch.uint8).numpy()


def _stored(target: UOp) -> UOp:
    """What is asked for: of a computed value the value itself, so that its other readers read the result."""
    value = target.src[0]
    while value.op is Ops.RESHAPE:
        value = value.src[0]
    if target.arg is not None or value.op.is_movement or value.op in _FREE or is_memory(value):
        return target
    return target.src[0]


_FREE = frozenset((Ops.CONST, Ops.IOTA, Ops.DEFINE_VAR))


def _views_below(node: Any) -> int:
    """Of how many views in turn a node is the last."""
    count = 0
    while isinstance(node, torch.fx.Node) and (below := shown_by(node)) is not None:
        node, count = below, count + 1
    return count


def _in_order(views: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """Results that show others, or copy them, after what they show: that may be a later one."""
    left, found = dict(views), []
    while left:
        for number, result in list(left.items()):
            of = result.first if isinstance(result, Twin) else None if result.of_input else result.number
            if of not in left:
                found.append((number, left.pop(number)))
    return found


@final
class Bound:
    """A program for the sizes of a call: what is new about its results, and values of its variables."""

    __slots__ = ("program", "results", "values", "views")

    def __init__(self, program: Program, results: list[Any], values: dict[str, int]) -> None:
        self.program = program
        self.results = results
        self.values = values
        self.views = _in_order([(n, r) for n, r in enumerate(results) if isinstance(r, Shown | Twin)])

    def __call__(self, given: Sequence[Any]) -> list[Any]:
        """The results for arguments of these sizes and strides."""
        program = self.program
        results = list(self.results)
        finish: list[tuple[Any, Any]] = []
        with program.lock:
            if program.in_parts(self.values):
                self._in_parts(given, results, finish)
            else:
                pairs = list(self._arguments(given))
                for number, result in enumerate(self.results):
                    if result.__class__ is Made:
                        value = self._room(number, results, finish)
                        if result.node is not None:
                            pairs.append((result.node, value))
                if program.plan is not None:
                    program.run(pairs, self.values)
            for value, own in finish:
                value.copy_(own)
        for number, result in self.views:
            results[number] = result.now(results, given)
        return results[: program.count]

    def _arguments(self, given: Sequence[Any]) -> Iterator[tuple[UOp, Any]]:
        program = self.program
        plain = not program.on_gpu
        for n, node, copied in program.places:
            yield node, given[n] if plain and not copied else program.argument(given[n], copied)

    def _room(self, number: int, results: list[Any], finish: list[tuple[Any, Any]]) -> Any:
        """New memory for a result: what the plan writes; what is put in order afterwards joins `finish`."""
        made, device = self.results[number], self.program.torch_device
        layout = made.layout
        value = torch.empty_strided(layout.sizes, layout.strides, dtype=made.dtype, device=device)
        results[number] = value
        if made.node is None or not made.copied:
            return value
        own = torch.empty(layout.sizes, dtype=made.dtype, device=device)
        finish.append((value, own))
        return own

    def _in_parts(self, given: Sequence[Any], results: list[Any], finish: list[tuple[Any, Any]]) -> None:
        """Memory for results as they are first written; arguments are let go as they are last read."""
        program = self.program
        memory: dict[UOp, Any] = dict(self._arguments(given))
        if program.draws:
            memory[program.cell] = fresh_cell(program.torch_device)
        empty = [n for n, r in enumerate(self.results) if r.__class__ is Made and r.node is None]
        wanted = {r.node: n for n, r in enumerate(self.results) if r.__class__ is Made}
        nodes = {number: node for number, node, _ in program.places}
        for part in program.parts or ():
            for node in part.touched:
                if node in wanted:
                    memory[node] = self._room(wanted.pop(node), results, finish)
                elif node not in memory:
                    memory[node] = torch.empty(node.arg * node.dtype.itemsize, dtype=torch.uint8)
                part.launch.point(node, memory[node].data_ptr())
            program.start(part, self.values)
            for node in part.over:
                del memory[node]
            for number in part.last:
                del memory[nodes[number]]
                if isinstance(given, list):
                    given[number] = None
        for number in empty:
            self._room(number, results, finish)
        program.ran(self.values)
