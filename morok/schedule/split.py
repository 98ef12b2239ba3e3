"""Kernel split: a tensor graph with marked boundaries becomes writes of kernels.

Boundaries are CONTIGUOUS (a buffer that is kept), ASSIGN (a write into memory that exists), SCATTER (rows put
into a copy), WRITTEN (a kernel by hand), COPY (to another device) and the collectives of a mesh. Each becomes
a write, SCATTER two: a target and a value. To its readers it is then `AFTER(target, KERNEL(ASSIGN(target,
value)))`: memory, once the kernel has run, so the graph itself says who waits for whom. Memory of the writes
is numbered on from the inputs'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from morok import knobs
from morok.dtype import void
from morok.errors import IRError
from morok.ir.bounds import vmax
from morok.ir.infer import keep_shape, numel
from morok.ir.memory import MEMORY, base_of, device_of, is_alone
from morok.ir.movement import reshape, shrink
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import COLLECTIVES, Op, Ops
from morok.ir.provenance import Origin, place
from morok.rewrite.observer import By
from morok.schedule.indexing import known_shape

CUT = By("stage", "cut into kernels", "1.8")  # each kernel by itself


@final
@dataclass(eq=False)
class KernelWrite:
    """One write: `value` into `target`, a view of memory. A kernel is one write, or several together.

    With `places` the value's rows go to these rows of the target, one after the other; `joined` is the op
    that joins each with what lies there, None if it takes its place, ALONE if nothing else goes there.
    """

    number: int
    target: UOp
    value: UOp
    device: str
    origin: Origin | None
    kind: str = "kernel"  # or "written" by hand; or "copy", "collective": moved between devices, not computed
    places: UOp | None = None
    joined: Op | tuple[str, ...] | None = None
    collective: UOp | None = None  # what devices of a mesh do together
    done: UOp = field(init=False)  # the KERNEL node that readers wait for

    def __post_init__(self) -> None:
        write = make(Ops.ASSIGN, self.value.dtype, (self.target, self.value), None, self.origin)
        self.done = make(Ops.KERNEL, void, (write,), (self.kind, self.number), self.origin)

    @property
    def result_view(self) -> UOp:
        """What readers see."""
        return make(Ops.AFTER, self.target.dtype, (self.target, self.done), None, self.origin)


@final
@dataclass
class Split:
    """The writes in an order in which they could run, views that hold the outputs, and all memory."""

    writes: list[KernelWrite]
    results: tuple[UOp, ...]
    params: list[UOp]
    inputs: int  # the first so many params are the caller's
    graph: UOp  # that was cut

    def new_param(self, like: UOp, size: int, device: str) -> UOp:
        param = make(Ops.PARAM, like.dtype, (), (len(self.params), size, device), like.origin)
        self.params.append(param)
        return param


def plain(view: UOp) -> UOp:
    """A view without the kernels that it waits for."""
    chain = []
    while view.src and view.op is not Ops.PARAM:
        chain.append(view)
        view = view.src[0]
    for node in reversed(chain):
        if node.op is not Ops.AFTER:
            view = node.replace((view, *node.src[1:]))
    return view


def is_view(node: UOp) -> bool:
    """Whether a node only shows memory that exists, without computing."""
    while node.op.is_movement and node.op is not Ops.PAD:
        node = node.src[0]
    if node.op is Ops.COPY:
        return reads_memory(node)
    return node.op in _SHOWN or node.op in COLLECTIVES


_SHOWN = frozenset((Ops.PARAM, Ops.AFTER, Ops.ASSIGN, Ops.CONTIGUOUS, Ops.SCATTER, Ops.WRITTEN))


def reads_memory(node: UOp) -> bool:
    """Whether a value is made of memory, and not of constants alone."""
    return any(n.op in (Ops.PARAM, Ops.BUFFER) for n in toposort(node))


def memory_view(param: UOp, node: UOp) -> UOp:
    """Memory in the shape of a node; sizes that are not known yet take the front of it."""
    sizes = known_shape(node)
    count = numel(sizes)
    flat = param if count == param.arg[1] else shrink(param, ((0, count),))
    return reshape(flat, sizes)


def capacity(node: UOp) -> int:
    """How many elements a node may have at most."""
    count = numel(known_shape(node))
    return count if isinstance(count, int) else int(vmax(count))


def params_of(sink: UOp) -> list[UOp]:
    """The caller's memory, by number."""
    return sorted((n for n in toposort(sink) if n.op is Ops.PARAM), key=lambda n: int(n.arg[0]))


def split_kernels(sink: UOp, params: Sequence[UOp]) -> Split:
    """Cuts the graph at its boundaries. `params` is the caller's memory, of which some may no longer be read:
    numbers go on from there."""
    order = toposort(sink)
    result = Split([], (), list(params), len(params), sink)
    devices: dict[UOp, str] = {}
    done: dict[UOp, UOp] = {}
    in_place = _in_place(order)
    anywhere: set[UOp] = set()  # what has no device of its own, and was stored on the default one
    for node in order:
        device = devices[node] = _device(node, devices)
        src = tuple([done[s] for s in node.src])
        op = node.op
        if not device:
            if op in (Ops.CONTIGUOUS, Ops.SCATTER) or not anywhere.isdisjoint(node.src):
                anywhere.add(node)
        elif anywhere and device != knobs.default_device():
            src = tuple([_there(result, s, device) if s in anywhere else done[s] for s in node.src])
        if op is Ops.CONTIGUOUS:
            done[node] = _keep(result, node, src[0], device)
        elif op is Ops.ASSIGN:
            done[node] = _assign(result, node, src, device)
        elif op is Ops.SCATTER and node not in in_place:
            done[node] = _scatter(result, node, src, device)
        elif op is Ops.WRITTEN:
            done[node] = _written(result, node, src, device)
        elif op is Ops.COPY:
            done[node] = _copy(result, node, src[0], devices[node.src[0]], device)
        elif op in COLLECTIVES:
            done[node] = _collective(result, node, src[0], device)
        elif op is Ops.PLACE:
            done[node] = src[0]  # from here on writes tell what is written from what is read
        elif op is Ops.AFTER:
            done[node] = make(Ops.AFTER, node.dtype, (src[0], *_kernels_behind(src[1:])), None, node.origin)
        else:
            done[node] = keep_shape(node.replace(src), node)
    result.results = done[sink].src
    return result


def _there(result: Split, root: UOp, device: str) -> UOp:
    """A value of constants once more, on the device that needs it: it cannot read the default one's."""
    done: dict[UOp, UOp] = {}
    for node in toposort(root):
        src = tuple([done[s] for s in node.src])
        if node.op is Ops.CONTIGUOUS:
            done[node] = src[0]
        elif node.op is Ops.SCATTER:
            done[node] = _scatter(result, node, src, device)
        else:
            done[node] = node.replace(src)
    return done[root]


def _device(node: UOp, devices: dict[UOp, str]) -> str:
    """Where a node is computed; its operands agree on that."""
    if node.op is Ops.SINK:
        return ""
    if node.op in MEMORY or node.op is Ops.COPY:
        return device_of(node, devices)
    first = ""
    for s in node.src:
        second = devices[s]
        if second and second != first:
            if first:
                raise IRError(
                    f"{node.op.name} has operands on {first} and on {second}; copy one of them first",
                    place=place(node),
                )
            first = second
    return first


def _write(result: Split, target: UOp, value: UOp, device: str, origin: Origin | None, kind: str) -> UOp:
    write = KernelWrite(len(result.writes), target, value, device, origin, kind)
    result.writes.append(write)
    return write.result_view


def _keep(result: Split, node: UOp, value: UOp, device: str) -> UOp:
    where = device or knobs.default_device()
    param = result.new_param(node, capacity(node), where)
    origin = node.src[0].origin or node.origin
    return _write(result, memory_view(param, node), value, where, origin, "kernel")


def _scatter(result: Split, node: UOp, src: tuple[UOp, ...], device: str) -> UOp:
    """A copy of x, and then the rows; these alone, where they leave no place as it was."""
    where = device or knobs.default_device()
    param = result.new_param(node, capacity(node), where)
    copied = memory_view(param, node)
    if not is_alone(node):
        copied = _write(result, copied, src[0], where, node.origin, "kernel")
    write = KernelWrite(
        len(result.writes), copied, src[2], where, node.origin, places=src[1], joined=node.arg
    )
    result.writes.append(write)
    return write.result_view


def _written(result: Split, node: UOp, src: tuple[UOp, ...], device: str) -> UOp:
    """A kernel that somebody has written: it reads memory as it lies."""
    where = device or knobs.default_device()
    param = result.new_param(node, capacity(node), where)
    return _write(result, memory_view(param, node), node.replace(src), where, node.origin, "written")


def _in_place(order: list[UOp]) -> set[UOp]:
    """Rows that are put into the very memory which the result is assigned to: nothing has to be copied."""
    assigned = [n for n in order if n.op is Ops.ASSIGN and n.src[1].op is Ops.SCATTER]
    if not assigned:
        return set()
    users: dict[UOp, int] = {}
    for node in order:
        for s in dict.fromkeys(node.src):
            users[s] = users.get(s, 0) + 1
    return {n.src[1] for n in assigned if _reads_target(n) and users[n.src[1]] == 1}


def _reads_target(assign: UOp) -> bool:
    """Whether rows are put into exactly what the result is assigned to."""
    target, rows = assign.src[0], assign.src[1].src[0]
    if _reshaped(target) is _reshaped(rows):  # the whole of it, in its order
        return True
    while target.op is not Ops.PLACE:
        if target is rows:
            return True
        if (target.op, target.arg, target.src[1:]) != (rows.op, rows.arg, rows.src[1:]) or not target.src:
            return False
        target, rows = target.src[0], rows.src[0]
    return target.src[0] is rows


def _reshaped(node: UOp) -> UOp:
    """What nothing but shapes differs from."""
    while node.op in (Ops.RESHAPE, Ops.PLACE):
        node = node.src[0]
    return node


def _assign(result: Split, node: UOp, src: tuple[UOp, ...], device: str) -> UOp:
    target = src[0]
    for extra in _kernels_behind(src[2:]):
        target = make(Ops.AFTER, target.dtype, (target, extra), None, node.origin)
    base_of(target)
    where, value = device or knobs.default_device(), src[1]
    if value.op is not Ops.SCATTER:
        return _write(result, target, value, where, node.origin, "kernel")
    write = KernelWrite(
        len(result.writes), target, value.src[2], where, node.origin, places=value.src[1], joined=value.arg
    )
    result.writes.append(write)
    return write.result_view


def _copy(result: Split, node: UOp, value: UOp, source: str, device: str) -> UOp:
    if source in ("", device):  # what has no memory is computed there
        return value
    param = result.new_param(node, capacity(node), device)
    return _write(result, memory_view(param, node), value, device, node.origin, "copy")


def _collective(result: Split, node: UOp, value: UOp, device: str) -> UOp:
    """Between the devices of a mesh: what each has goes as it lies in memory."""
    param = result.new_param(node, capacity(node), device)
    write = KernelWrite(
        len(result.writes), memory_view(param, node), value, device, node.origin, "collective"
    )
    write.collective = node
    result.writes.append(write)
    return write.result_view


def _kernels_behind(nodes: tuple[UOp, ...]) -> list[UOp]:
    """The kernels behind nodes that have to have happened."""
    return [t for n in nodes for t in (n.src[1:] if n.op is Ops.AFTER else (n,))]
