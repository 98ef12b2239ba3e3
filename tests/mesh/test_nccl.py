"""The engine for GPUs, on a GPU and an NCCL that are none: what is called, with what, and in which order.

The library's functions are written down as nccl.h has them. This process is rank 0 of two; the other one, a
twin, always has the same values.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import morok
from morok import P, Tensor, jit
from morok.device.mesh import device as mesh_device
from morok.device.mesh import nccl, world
from morok.device.mesh.nccl import NcclEngine
from morok.dtype import float32
from morok.ir.ops import Ops
from tests.device.cuda.fake_gpu import FakeDriver, fake_gpus

TYPES = {1: np.uint8, 2: np.int32, 3: np.uint32, 4: np.int64, 5: np.uint64, 7: np.float32, 8: np.float64}
JOINS = (np.add, np.multiply, np.maximum, np.minimum)  # ncclSum, ncclProd, ncclMax, ncclMin


class FakeNccl:
    """NCCL's calls go on the fake stream; rank 1 is rank 0's twin."""

    def __init__(self, driver: Any, ranks: int) -> None:
        self.driver, self.ranks = driver, ranks
        self.calls: list[str] = []
        self.group: list[Any] = []

    def _array(self, pointer: Any, count: Any, kind: int) -> Any:
        dtype = np.dtype(TYPES[kind])
        return self.driver._view(pointer.value, count.value * dtype.itemsize).view(dtype)

    def _later(self, name: str, work: Any) -> int:
        self.calls.append(name)
        self.driver.later(work)
        return 0

    def ncclGetUniqueId(self, made: Any) -> int:
        self.calls.append("ncclGetUniqueId")
        return 0

    def ncclCommInitRank(self, comm: Any, count: int, made: Any, rank: int) -> int:
        assert (count, rank) == (self.ranks, 0)
        self.calls.append("ncclCommInitRank")
        return 0

    def ncclAllReduce(
        self, send: Any, receive: Any, count: Any, kind: int, op: int, comm: Any, stream: Any
    ) -> int:
        def work() -> None:
            own = self._array(send, count, kind)
            self._array(receive, count, kind)[:] = JOINS[op](own, own) if self.ranks == 2 else own

        return self._later("ncclAllReduce", work)

    def ncclReduceScatter(
        self, send: Any, receive: Any, count: Any, kind: int, op: int, comm: Any, stream: Any
    ) -> int:
        def work() -> None:
            own = self._array(send, count, kind)  # the first row is ours
            self._array(receive, count, kind)[:] = JOINS[op](own, own) if self.ranks == 2 else own

        return self._later("ncclReduceScatter", work)

    def ncclAllGather(self, send: Any, receive: Any, count: Any, kind: int, comm: Any, stream: Any) -> int:
        def work() -> None:
            own = self._array(send, count, kind)
            whole = self.driver._view(receive.value, count.value * self.ranks)
            whole[:] = np.concatenate([own] * self.ranks)

        return self._later("ncclAllGather", work)

    def ncclBroadcast(
        self, send: Any, receive: Any, count: Any, kind: int, root: int, comm: Any, stream: Any
    ) -> int:
        def work() -> None:
            self._array(receive, count, kind)[:] = self._array(send, count, kind)

        return self._later("ncclBroadcast", work)

    def ncclGroupStart(self) -> int:
        self.group = []
        return 0

    def ncclSend(self, send: Any, count: Any, kind: int, peer: int, comm: Any, stream: Any) -> int:
        self.group.append(("send", peer, send, count, kind))
        return 0

    def ncclRecv(self, receive: Any, count: Any, kind: int, peer: int, comm: Any, stream: Any) -> int:
        self.group.append(("receive", peer, receive, count, kind))
        return 0

    def ncclGroupEnd(self) -> int:
        sends = {peer: (where, count, kind) for how, peer, where, count, kind in self.group if how == "send"}
        receives = [entry for entry in self.group if entry[0] == "receive"]

        def work() -> None:
            rows = {peer: self._array(*entry).copy() for peer, entry in sends.items()}
            for _, peer, where, count, kind in receives:  # the twin sends us what we keep for ourselves
                self._array(where, count, kind)[:] = rows.get(0, rows.get(peer))

        return self._later("ncclSend+ncclRecv", work)


class Alone:
    """What MPI does for NCCL, with a twin that always agrees."""

    def begin(self, what: str) -> None:
        self.what = what

    def share(self, data: bytes, ranks: tuple[int, ...]) -> bytes:
        return data

    def gather_arrays(self, own: Any) -> list[Any]:
        return [own[0], own[0]]

    def barrier(self) -> None:
        return


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with fake_gpus(FakeDriver()) as (device,):
        device.driver.stream = 0
        device.driver.enter = lambda: None
        yield device


def engine_of(gpu: Any, ranks: int, monkeypatch: pytest.MonkeyPatch) -> tuple[NcclEngine, FakeNccl]:
    library = FakeNccl(gpu.driver, ranks)
    monkeypatch.setattr(nccl, "library", lambda: library)
    engine = NcclEngine(0, 1)
    engine.count = ranks
    engine._mpi = Alone() if ranks > 1 else None
    return engine, library


def test_every_collective_of_one_rank(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, library = engine_of(gpu, 1, monkeypatch)
    values = np.arange(12, dtype=np.float32)
    given, out = gpu.buffer(12, float32), gpu.buffer(12, float32)
    given.copy_in(values)
    groups = ((0,),)
    calls = {
        "ncclAllReduce": lambda: engine.all_reduce([out], [given], groups, Ops.ADD),
        "ncclReduceScatter": lambda: engine.reduce_scatter([out], [given], groups, Ops.MAX),
        "ncclAllGather": lambda: engine.all_gather([out], [given], groups),
        "ncclSend+ncclRecv": lambda: engine.all_to_all([out], [given], groups),
        "ncclBroadcast": lambda: engine.broadcast([out], [given], groups, 0),
    }
    for name, call in calls.items():
        out.copy_in(np.zeros(12, np.float32))
        call()
        assert library.calls[-1] == name
        np.testing.assert_array_equal(out.copy_out(), values)
    engine.send_receive([out], [given], groups, 1)  # nobody before it: zeros, and nothing is sent
    np.testing.assert_array_equal(out.copy_out(), np.zeros(12, np.float32))
    assert engine.traffic.total == 0
    assert engine.traffic.given["all_reduce"] == values.nbytes


def test_rank_0_of_two(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole plan: kernels and collectives in order on the stream, then as one graph."""
    engine, library = engine_of(gpu, 2, monkeypatch)
    monkeypatch.setitem(world._engines, ("virtual", 2), engine)
    mesh_device._layouts.clear()
    try:
        mesh = morok.mesh(2, "twins", device="CUDA")
        half = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
        x = Tensor(np.concatenate([half, half]), device="CUDA").shard(mesh, P("twins")).realize()
        f = jit(lambda x: ((x * 2).sum(0), (x + 1).max(0), x.shard(mesh) * 3))
        for _ in range(4):
            total, most, whole = f(x)
            np.testing.assert_allclose(total.numpy(), 4 * half.sum(0), rtol=1e-6)
            np.testing.assert_allclose(most.numpy(), (half + 1).max(0), rtol=1e-6)
            np.testing.assert_allclose(whole.numpy(), 3 * np.concatenate([half, half]), rtol=1e-6)
        assert {"ncclAllReduce", "ncclAllGather"} <= set(library.calls)
        assert engine.traffic.sent["all_reduce"] == engine.traffic.given["all_reduce"]  # 2(n-1)/n, n = 2
        assert "capture" in gpu.driver.log
    finally:
        mesh_device._layouts.clear()
