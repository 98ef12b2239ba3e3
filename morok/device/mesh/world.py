"""Which ranks there are, and the engine between them: found once, when the first mesh is made.

Under `mpiexec`, `srun`, `torchrun` or `morok run` a process is one rank, and the engine is MPI, or NCCL where
the mesh is of GPUs. Otherwise all ranks are virtual devices of this process, as many as
MOROK_VIRTUAL_DEVICES says or as the mesh has.
"""

from __future__ import annotations

import math

from morok import knobs
from morok.device.mesh.engine import Engine, VirtualEngine
from morok.errors import MeshError
from morok.ir.layout import Mesh

_engines: dict[tuple[str, int], Engine] = {}


def rank() -> int:
    """The number of this process among those that were started together; 0 if it is alone."""
    found = knobs.launched()
    return 0 if found is None else found[0]


def processes() -> int:
    """How many processes were started together, or are planned for."""
    planned = knobs.planned_mesh()
    if planned:
        return math.prod(planned)
    found = knobs.launched()
    return 1 if found is None else found[1]


def world(mesh: Mesh) -> Engine:
    """The engine between the devices of a mesh."""
    if mesh.base == "PLAN":
        return _engine("planned", mesh.count)
    count = processes()
    if count == 1 and knobs.VIRTUAL_DEVICES.value:
        count = knobs.VIRTUAL_DEVICES.value
        if mesh.count != count:
            raise MeshError(
                f"a mesh of {mesh} has {mesh.count} devices, and MOROK_VIRTUAL_DEVICES says {count}"
            )
    if processes() > 1 and mesh.count != count:
        raise MeshError(f"a mesh of {mesh} has {mesh.count} devices, but {count} processes were started")
    kind = "virtual" if processes() == 1 else "nccl" if mesh.base == "CUDA" else "mpi"
    return _engine(kind, mesh.count)


def _engine(kind: str, count: int) -> Engine:
    found = _engines.get((kind, count))
    if found is None:
        found = _engines[kind, count] = _open(kind, count)
    return found


def _open(kind: str, count: int) -> Engine:
    if kind == "virtual":
        return VirtualEngine(count)
    if kind == "planned":
        from morok.device.mesh.planned import PlannedEngine

        return PlannedEngine(count)
    if kind == "nccl":
        from morok.device.mesh.nccl import NcclEngine

        return NcclEngine()
    from morok.device.mesh.mpi import MpiEngine

    return MpiEngine()
