"""MPI between processes, one rank each: what CPUs and hosts have. `pip install 'morok[mpi]'` brings mpi4py
and MPICH; on a cluster use mpi4py with the system's MPI.

Collectives are started and then asked for, so that a rank that waits can say for whom (`watch.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from morok import knobs
from morok.device.buffer import Array, Buffer
from morok.device.mesh.engine import Engine, Groups, Pending, Traffic
from morok.device.mesh.watch import own_watch
from morok.errors import MeshError
from morok.ir.layout import summed_bytes
from morok.ir.ops import Op, Ops

_TAG = 24  # of messages between two ranks, which come in the order in which they were sent


@final
class MpiEngine(Engine):
    """Ranks that are processes."""

    name = "mpi"

    def __init__(self) -> None:
        try:
            from mpi4py import MPI
        except ImportError:
            raise MeshError("ranks in several processes need MPI; pip install 'morok[mpi]'") from None
        self._mpi: Any = MPI
        self._world: Any = MPI.COMM_WORLD
        self.count = self._world.Get_size()
        self.ranks = (self._world.Get_rank(),)
        self._comms: dict[tuple[int, ...], Any] = {tuple(range(self.count)): self._world}
        self._ops = {Ops.ADD: MPI.SUM, Ops.MUL: MPI.PROD, Ops.MAX: MPI.MAX, Ops.MIN: MPI.MIN}
        self._watch = own_watch(self.ranks[0], self.count)
        self.traffic = Traffic()
        launched = knobs.launched()
        if launched is not None and launched[1] != self.count:
            raise MeshError(
                f"{launched[1]} processes were started, but MPI sees {self.count}: what has started them is "
                "none of MPI's launchers; use `morok run`, mpiexec, or srun --mpi=pmi2"
            )

    # --- who takes part

    def _comm(self, groups: Groups) -> tuple[Any, int]:
        """The communicator of this rank's group. All ranks make it together, the first time."""
        own = next(ranks for ranks in groups if self.ranks[0] in ranks)
        found = self._comms.get(own)
        if found is None:
            found = self._comms[own] = self._world.Create_group(self._world.group.Incl(list(own)))
        return found, len(own)

    def begin(self, what: str) -> None:
        """Ranks that are about to run different plans find out before one waits for the other."""
        mine = self._watch.enter(what)
        both = np.array([mine, -mine], np.int64)
        found = np.empty_like(both)
        self._wait(self._world.Iallreduce(both, found, self._mpi.MAX))
        if found[0] != mine or found[1] != -mine:
            raise MeshError(self._watch.differences())

    def _wait(self, request: Any) -> None:
        self._watch.until(request.Test)

    # --- collectives

    def _started(self, request: Any) -> Pending:
        """What is under way: a rank that waits for it can say for whom."""

        def ask(wait: bool) -> bool:
            if wait:
                self._wait(request)
                return True
            return bool(request.Test())

        return ask

    def all_reduce(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups, op: Op) -> Pending:
        comm, count = self._comm(groups)
        send, receive = given[0].array(), out[0].array()
        self.traffic.count("all_reduce", send.nbytes, summed_bytes(send.size, send.itemsize, count))
        return self._started(comm.Iallreduce(send, receive, self._ops[op]))

    def reduce_scatter(
        self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups, op: Op
    ) -> Pending:
        comm, _ = self._comm(groups)
        send, receive = given[0].array(), out[0].array()
        self.traffic.count("reduce_scatter", send.nbytes, send.nbytes - receive.nbytes)
        return self._started(comm.Ireduce_scatter_block(send, receive, self._ops[op]))

    def all_gather(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups) -> Pending:
        comm, _ = self._comm(groups)
        send, receive = _bytes(given[0]), _bytes(out[0])
        self.traffic.count("all_gather", send.nbytes, receive.nbytes - send.nbytes)
        return self._started(comm.Iallgather(send, receive))

    def all_to_all(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups) -> Pending:
        comm, count = self._comm(groups)
        send, receive = _bytes(given[0]), _bytes(out[0])
        self.traffic.count("all_to_all", send.nbytes, send.nbytes - send.nbytes // count)
        return self._started(comm.Ialltoall(send, receive))

    def send_receive(
        self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups, places: int
    ) -> Pending:
        comm, count = self._comm(groups)
        send, receive = _bytes(given[0]), _bytes(out[0])
        at = comm.Get_rank()
        requests = []
        if 0 <= at - places < count:
            requests.append(comm.Irecv(receive, at - places, _TAG))
        else:
            receive[...] = 0
        sent = 0 <= at + places < count
        if sent:
            requests.append(comm.Isend(send, at + places, _TAG))
        self.traffic.count("send_receive", send.nbytes, send.nbytes if sent else 0)
        return self._started(_All(self._mpi, requests))

    def broadcast(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups, root: int) -> Pending:
        comm, count = self._comm(groups)
        room = _bytes(out[0])
        if comm.Get_rank() == root:
            room[...] = _bytes(given[0])
        self.traffic.count("broadcast", room.nbytes, room.nbytes if count > 1 else 0)
        return self._started(comm.Ibcast(room, root))

    def gather_arrays(self, own: Sequence[Array]) -> list[Array]:
        mine = np.ascontiguousarray(own[0])
        flat = mine.reshape(-1).view(np.uint8)
        rows = np.empty((self.count, flat.size), np.uint8)
        self.begin("read values")
        self._wait(self._world.Iallgather(flat, rows))
        return [row.view(mine.dtype).reshape(mine.shape) for row in rows]

    def share(self, data: bytes, ranks: tuple[int, ...]) -> bytes:
        """What the first of some ranks has, for all of them."""
        comm, _ = self._comm((ranks,))
        room = np.frombuffer(data, np.uint8).copy()
        self._wait(comm.Ibcast(room, 0))
        return room.tobytes()

    def barrier(self) -> None:
        self.begin("barrier")
        self._wait(self._world.Ibarrier())


@final
class _All:
    """Several messages as one."""

    def __init__(self, mpi: Any, requests: list[Any]) -> None:
        self._mpi, self._requests = mpi, requests

    def Test(self) -> bool:
        return bool(self._mpi.Request.Testall(self._requests)) if self._requests else True


def _bytes(buffer: Buffer) -> Array:
    return buffer.array().view(np.uint8)
