"""A stretch of a graph as one plan: compiled for sizes and strides, run on torch's memory.

Inputs are read where torch has them, and results are written into memory that torch has just given out, in
the strides that torch expects: nothing is copied on the way in or out, except inputs with gaps between their
elements. What only shows an input, or another result, is a view in torch's sense too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from math import prod
from threading import RLock
from typing import Any, final

import torch

from morok.device.buffer import Buffer, bind_buffer
from morok.device.registry import get_device
from morok.dtype import uint64
from morok.forks import renewed
from morok.ir.memory import base_of
from morok.ir.node import UOp, make
from morok.ir.ops import Ops
from morok.runtime.launch import PlanLaunch, native_launch
from morok.runtime.plan import ExecutionPlan
from morok.runtime.profile import current
from morok.schedule.schedule import schedule
from morok.tensor.calls.tracing import tracing
from morok.tensor.memory.states import is_memory, view_of
from morok.tensor.random import drawing_from
from morok.tensor.realize import new_buffer
from morok.tensor.tensor import Tensor
from morok.torch.lower import at_line, lower
from morok.torch.types import from_torch, memory_order

_SHOWS = frozenset(
    f"aten.{name}"
    for name in (
        "view.default", "_unsafe_view.default", "reshape.default", "permute.default", "t.default",
        "transpose.int", "unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims",
        "expand.default", "slice.Tensor", "select.int", "alias.default", "detach.default", "diagonal.default",
        "unfold.default", "as_strided.default",
    )
)  # fmt: skip


def shown_by(node: Any) -> Any | None:
    """The node whose memory a view shows; None for what is computed."""
    if node.op != "call_function" or str(node.target) not in _SHOWS:
        return None
    base = node.args[0]
    val, other = node.meta["val"], base.meta["val"]
    same = isinstance(val, torch.Tensor) and val.dtype == other.dtype
    if not same or val.untyped_storage()._cdata != other.untyped_storage()._cdata:
        return None
    return base


@dataclass(frozen=True)
class Layout:
    """Where the elements of a tensor lie."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def order(self) -> tuple[int, ...] | None:
        return memory_order(self.sizes, self.strides)

    @property
    def room(self) -> tuple[int, ...]:
        """The sizes without repetition."""
        return tuple([1 if s > 1 and not t else s for s, t in zip(self.sizes, self.strides, strict=True)])


def row_major(sizes: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def input_tensor(node: UOp, layout: Layout) -> Tensor:
    """A tensor of morok's on memory in a layout that has no gaps."""
    order, room = layout.order, layout.room
    assert order is not None
    tensor = Tensor._new(view_of(node, tuple([room[axis] for axis in order])))
    if order != tuple(range(len(order))):
        tensor = tensor.permute(*sorted(range(len(order)), key=order.__getitem__))
    return tensor.expand(*layout.sizes) if room != layout.sizes else tensor


def in_layout(tensor: Tensor, layout: Layout) -> Tensor:
    """What is written to memory for a result in a layout without gaps."""
    order, room = layout.order, layout.room
    assert order is not None
    if room != layout.sizes:
        tensor = tensor.shrink(tuple([(0, n) for n in room]))
    return tensor.permute(*order) if order != tuple(range(len(order))) else tensor


@dataclass(frozen=True)
class Shown:
    """A result that shows an input (or a result, by number)."""

    of_input: bool
    number: int
    layout: Layout
    offset: int


@dataclass(frozen=True)
class Made:
    """A result with memory of its own."""

    layout: Layout
    dtype: Any
    node: UOp | None  # the memory that the plan writes; None: there is nothing in it
    copied: bool  # in row-major order, and copied from there into the layout


@dataclass(frozen=True)
class Twin:
    """A result with the elements of another one: torch has them apart, and so do we."""

    first: int
    made: Made


@final
class Program:
    """One plan. `nodes` are computed from `inputs`, and `outputs` are given back."""

    def __init__(
        self,
        nodes: Sequence[Any],
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        given: Sequence[Any],
        known: Callable[[Any], Any],
        device: str,
        config: Any = None,
    ) -> None:
        self.device = device
        self.on_gpu = device.startswith("CUDA")
        self.known = known
        self.places: list[tuple[int, UOp, bool]] = []  # number of the argument, memory, whether it is copied
        self.lock = renewed(self, "lock", RLock)
        env: dict[Any, Any] = {}
        layouts: dict[Any, Layout] = {}
        for number, (node, value) in enumerate(zip(inputs, given, strict=True)):
            if not isinstance(value, torch.Tensor):
                env[node] = value
                continue
            env[node], layouts[node] = self._input(number, value)
        self.cell = new_buffer(uint64, 2, device)
        bind_buffer(self.cell, get_device(device).buffer(2, uint64))
        with tracing(), drawing_from(self.cell) as draws:
            lower(nodes, env, known)
            self.results = self._results(inputs, outputs, env, layouts)
        self.draws = bool(draws.count)
        self.plan = self._planned(config)
        self.launch: PlanLaunch | None = None
        self.layouts = [layouts.get(node) for node in inputs]

    # --- making the plan

    def _input(self, number: int, value: Any) -> tuple[Tensor, Layout]:
        seen = Layout(tuple(value.shape), tuple(value.stride()))
        copied = seen.order is None or value.is_neg() or value.is_conj()
        layout = Layout(seen.sizes, row_major(seen.sizes)) if copied else seen
        kind = from_torch(value.dtype)
        if not value.numel():
            return Tensor.zeros(*seen.sizes, dtype=kind), seen
        node = new_buffer(kind, prod(layout.room), self.device)
        self.places.append((number, node, copied))
        return input_tensor(node, layout), seen

    def _results(
        self, inputs: Sequence[Any], outputs: Sequence[Any], env: dict[Any, Any], layouts: dict[Any, Layout]
    ) -> list[Any]:
        numbers = {node: n for n, node in enumerate(inputs)}
        made: dict[Any, int] = {}
        self.targets: list[UOp] = []
        results: list[Any] = []
        wanted = set(outputs)
        for node in outputs:
            if not isinstance(node, torch.fx.Node) or not isinstance(env[node], Tensor):
                results.append(env[node] if isinstance(node, torch.fx.Node) else node)
                continue
            layout = self._layout(node.meta["val"])
            base = node
            while base not in numbers and base not in made:
                below = shown_by(base)
                if below is None or (base is not node and base in wanted):
                    break
                base = below
            shown = self._shown(node, base, layout, numbers, made, layouts)
            if shown is None:
                made[node] = len(results)
                results.append(at_line(node, self._made, (env[node], layout, node.meta["val"].dtype)))
            else:
                results.append(shown)
        return results

    def _layout(self, val: Any) -> Layout:
        known = self.known
        return Layout(tuple([known(n) for n in val.shape]), tuple([known(n) for n in val.stride()]))

    def _shown(
        self, node: Any, base: Any, layout: Layout, numbers: Any, made: Any, layouts: dict[Any, Layout]
    ) -> Shown | None:
        if base in made and base is node:
            return Shown(False, made[base], layout, 0)
        if base in numbers:
            if base is not node and layouts[base] != self._layout(base.meta["val"]):
                return None  # other strides than torch has thought of
            layout = layouts[base] if base is node else layout
        elif base not in made:
            return None
        offset = self.known(node.meta["val"].storage_offset()) - self.known(base.meta["val"].storage_offset())
        return Shown(base in numbers, numbers[base] if base in numbers else made[base], layout, offset)

    def _made(self, tensor: Tensor, layout: Layout, dtype: Any) -> Made:
        if not prod(layout.sizes):
            return Made(layout, dtype, None, False)
        copied = layout.order is None
        own = tensor if copied else in_layout(tensor, layout)
        flat = own.reshape(-1)._uop
        # in row-major order and in the layout are two results, also where the elements are the same
        self.targets.append(make(Ops.CONTIGUOUS, flat.dtype, (flat,), "row-major" if copied else None))
        return Made(layout, dtype, self.targets[-1], copied)

    def _planned(self, config: Any) -> ExecutionPlan | None:
        if not self.targets:
            return None
        unique = list(dict.fromkeys(self.targets))
        forced = {t: make(Ops.CONTIGUOUS, t.dtype, t.src, t.arg or "torch's memory") for t in unique}
        chosen = {t: forced[t] if is_memory(t.src[0]) else t for t in unique}
        plan = self._scheduled(chosen)
        if plan is None:  # a result that shows another one, or an input: a copy of its own
            plan = self._scheduled(forced)
            chosen = forced
        assert plan is not None, "a result that no kernel writes"
        if config is not None:
            plan.config = config
        found = plan.schedule.results
        memory = {target: base_of(found[made]) for target, made in chosen.items()}
        seen: set[UOp] = set()
        results: list[Any] = []
        for result in self.results:
            if isinstance(result, Made) and result.node is not None:
                node = memory[result.node]
                if node in seen:
                    first = next(n for n, r in enumerate(results) if isinstance(r, Made) and r.node is node)
                    results.append(Twin(first, result))
                    continue
                seen.add(node)
                result = Made(result.layout, result.dtype, node, result.copied)
            results.append(result)
        self.results = results
        self.targets = []
        return plan

    def _scheduled(self, targets: dict[UOp, UOp]) -> ExecutionPlan | None:
        """A plan that writes every target, whole and in order; None if one is only shown."""
        found = schedule(list(dict.fromkeys(targets.values())))
        plan = ExecutionPlan(found)
        written = set(plan._written)
        for target in targets.values():
            view = found.results[target]
            while view.op is Ops.RESHAPE:
                view = view.src[0]
            if view.op is not Ops.BUFFER or view not in written:
                return None
        return plan

    # --- running

    def __call__(self, given: Sequence[Any]) -> list[Any]:
        """The results for arguments of the sizes and strides that it was made for."""
        with self.lock:
            pairs: list[tuple[UOp, Any]] = []
            for number, node, copied in self.places:
                pairs.append((node, self._argument(given[number], copied)))
            results: list[Any] = []
            finish: list[tuple[Any, Any]] = []
            like = torch.device(self._torch_device)
            for result in self.results:
                if not isinstance(result, Made):
                    results.append(result)
                    continue
                layout = result.layout
                value = torch.empty_strided(layout.sizes, layout.strides, dtype=result.dtype, device=like)
                results.append(value)
                if result.node is None:
                    continue
                if result.copied:
                    own = torch.empty(layout.sizes, dtype=result.dtype, device=like)
                    finish.append((value, own))
                    value = own
                pairs.append((result.node, value))
            if self.plan is not None:
                self._run(pairs)
            for value, own in finish:
                value.copy_(own)
        for number, result in enumerate(results):  # what is shown stands before whoever shows it
            if isinstance(result, Shown | Twin):
                results[number] = self._shown_now(result, results, given)
        return results

    def _argument(self, value: Any, copied: bool) -> Any:
        """An argument where and as the plan reads it."""
        if copied:
            value = value.resolve_neg().resolve_conj().contiguous()
        if self.on_gpu:
            if value.device.type == "cpu":  # a number, which torch takes from the host
                value = value.to(self._torch_device)
            if value.data_ptr() % 16:  # vectors are read as such
                value = value.clone(memory_format=torch.preserve_format)
        return value

    @property
    def _torch_device(self) -> str:
        return "cuda:" + (self.device.partition(":")[2] or "0") if self.on_gpu else "cpu"

    def _shown_now(self, result: Any, results: list[Any], given: Sequence[Any]) -> Any:
        if isinstance(result, Shown):
            base = given[result.number] if result.of_input else results[result.number]
            same = result.layout.sizes == tuple(base.shape) and result.layout.strides == tuple(base.stride())
            if same and not result.offset:
                return base
            return base.as_strided(
                result.layout.sizes, result.layout.strides, base.storage_offset() + result.offset
            )
        assert isinstance(result, Twin)
        layout, first = result.made.layout, results[result.first]
        copy = torch.empty_strided(layout.sizes, layout.strides, dtype=result.made.dtype, device=first.device)
        # both have the same elements in the order of memory
        flat = first.reshape(layout.sizes) if result.made.copied else first.as_strided(*astuple(layout))
        return copy.copy_(flat)

    def _run(self, pairs: list[tuple[UOp, Any]]) -> None:
        plan = self.plan
        assert plan is not None
        if self.draws:
            pairs.append((self.cell, fresh_cell(self._torch_device)))
        if self.launch is not None and current() is None:
            for node, value in pairs:
                self.launch.point(node, value.data_ptr())
            with in_stream(self._torch_device):
                self.launch()
            plan.hear()
            return
        with in_stream(self._torch_device):
            plan.run({node: self._buffer(node, value) for node, value in pairs})
        if plan._programs is not None:
            items = list(zip(plan._programs, (i.buffers for i in plan.schedule.items), strict=True))
            self.launch = native_launch(items, plan.values)
            if self.launch is not None:
                own = {node for node, _ in pairs}
                for node in self.launch.nodes:
                    if node not in own:
                        self.launch.bind(node, plan._memory(node))

    def _buffer(self, node: UOp, value: Any) -> Buffer:
        target = get_device(self.device)
        if not target.on_host:
            return Buffer(
                self.device, node.arg, node.dtype, target.allocator, memory=value.data_ptr(), shared=True
            )
        flat = torch.as_strided(value.detach(), (node.arg,), (1,)).view(torch.uint8).numpy()
        return Buffer(self.device, node.arg, node.dtype, target.allocator, memory=flat, shared=True)


@contextmanager
def in_stream(device: str) -> Iterator[None]:
    """What torch has started on a GPU is done before, and what is started here is done afterwards."""
    if device == "cpu":
        yield
        return
    torch.cuda.current_stream(device).synchronize()
    yield
    get_device(device.replace("cuda", "CUDA")).synchronize()


def fresh_cell(device: str) -> Any:
    """Key and counter of random numbers: drawn from torch's generator, so that its seed decides."""
    key = torch.randint(-(1 << 63), (1 << 63) - 1, (1,))
    return torch.cat((key, torch.zeros(1, dtype=torch.int64))).to(device)
