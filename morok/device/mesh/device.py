"""A mesh as a device: its memory lies in parts, and a kernel runs for every rank of this process.

The kernel is one: what tells ranks apart are variables, `rank_data` for the axis data, bound here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import final

from morok.caches import Cache
from morok.device.base import Device, Program
from morok.device.buffer import Buffer
from morok.device.error_flags import ErrorFlags
from morok.device.mesh.engine import Engine, Pending
from morok.device.mesh.memory import MeshAllocator, MeshMemory, shards
from morok.device.mesh.world import world
from morok.errors import MeshError
from morok.ir.layout import Mesh, layout_of, mesh_of
from morok.ir.node import UOp
from morok.ir.ops import COLLECTIVES, Ops
from morok.machine.machine import Machine


@final
class MeshProgram:
    """A kernel on all ranks of this process."""

    __slots__ = ("base", "device", "from_disk", "inner")

    is_of_mesh = True

    def __init__(self, device: MeshDevice, inner: Program) -> None:
        self.device = device
        self.base = device.base
        self.inner = inner
        self.from_disk = getattr(inner, "from_disk", False)

    def __call__(self, buffers: Sequence[Buffer], values: Mapping[str, int]) -> None:
        count = len(self.device.ranks)
        parts = [shards(buffer, self.base, count) for buffer in buffers]
        for n, ranks in enumerate(self.device.rank_values):
            self.inner([part[n] for part in parts], {**values, **ranks} if ranks else values)


@final
class Collective:
    """What all ranks do together: buffers[1] to buffers[0]."""

    __slots__ = ("arg", "device", "dtype", "groups", "name", "op")

    from_disk = True  # there is nothing to compile
    is_of_mesh = True

    def __init__(self, device: MeshDevice, ast: UOp, name: str) -> None:
        mesh = device.mesh
        self.device = device
        self.name = name
        self.op, self.arg, self.dtype = ast.op, ast.arg, ast.dtype
        self.groups = mesh.groups(tuple(mesh.axes[r.arg[0]] for r in ast.src[1:]))

    def __call__(self, buffers: Sequence[Buffer], values: Mapping[str, int]) -> None:
        pending = self.start(buffers)
        if pending is not None:
            pending(True)

    def start(self, buffers: Sequence[Buffer]) -> Pending:
        """Begins it; what comes back has to be waited for before the memory is touched."""
        device, engine, groups = self.device, self.device.engine, self.groups
        if not engine.on_stream:
            device.base.synchronize()
        out, given = (shards(buffer, device.base, len(device.ranks)) for buffer in buffers)
        match self.op:
            case Ops.ALLREDUCE:
                return engine.all_reduce(out, given, groups, self.arg)
            case Ops.REDUCE_SCATTER:
                return engine.reduce_scatter(out, given, groups, self.arg)
            case Ops.ALLGATHER:
                return engine.all_gather(out, given, groups)
            case Ops.SEND_RECEIVE:
                return engine.send_receive(out, given, groups, self.arg)
            case Ops.BROADCAST:
                return engine.broadcast(out, given, groups, self.arg)
        return engine.all_to_all(out, given, groups)


@final
class MeshDevice(Device):
    """A mesh, or a layout on it."""

    def __init__(self, name: str) -> None:
        from morok.device.registry import get_device

        self.name = name
        self.mesh: Mesh = mesh_of(name)
        self.layout = layout_of(name)
        self.engine: Engine = world(self.mesh)
        self.ranks = self.engine.ranks
        self.base = get_device(self.mesh.base)
        self.on_host = False
        self.waits = self.base.waits
        self.allocator = MeshAllocator(self.base, self.engine, self.layout)
        self.rank_values = tuple(
            {f"rank_{axis}": at for axis, at in self.mesh.coordinates(rank).items()} for rank in self.ranks
        )

    @property
    def machine(self) -> Machine:
        return self.base.machine

    def compile(self, ast: UOp, name: str) -> Program:
        if ast.op in COLLECTIVES:
            return Collective(self, ast, name)
        return MeshProgram(self, self.base.compile(ast, name))

    def compile_all(self, kernels: Sequence[tuple[UOp, str]]) -> Mapping[UOp, Program]:
        found = self.base.compile_all([(ast, name) for ast, name in kernels if ast.op not in COLLECTIVES])
        return {ast: MeshProgram(self, program) for ast, program in found.items()}

    def prepare(self, program: Program) -> None:
        if isinstance(program, MeshProgram):
            self.base.prepare(program.inner)

    def synchronize(self) -> None:
        self.base.synchronize()

    def measure(self, work: Callable[[], None]) -> float:
        return self.base.measure(work)

    def measure_kernel(self, program: Program | None, work: Callable[[], None]) -> float:
        inner = program.inner if isinstance(program, MeshProgram) else program
        return self.base.measure_kernel(inner, work)

    def error_flags(self, count: int) -> ErrorFlags:
        """Words that all ranks of this process share."""
        flags = self.base.error_flags(count)
        own = flags.buffer
        memory = MeshMemory([own.memory for _ in self.ranks])
        flags.buffer = Buffer(self.name, count, own.dtype, self.allocator, memory=memory)
        return flags

    def check_later(self, flags: ErrorFlags, look: Callable[[], None]) -> None:
        self.base.check_later(flags, look)


_layouts: Cache[str, MeshDevice] = Cache("device.layouts", 4096)


def open_device(name: str) -> Device:
    """The device of a mesh's or a layout's name."""
    found = _layouts.get(name)
    if found is not None:
        return found
    device = _layouts[name] = MeshDevice(name)
    if device.mesh.count != device.engine.count:
        raise MeshError(
            f"a mesh of {device.mesh} has {device.mesh.count} devices, and there are {device.engine.count}"
        )
    return device
