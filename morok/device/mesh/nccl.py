"""NCCL between GPUs, one rank each, on the GPU's own stream: nothing waits, and a CUDA graph may hold it.

The library comes with `nvidia-nccl-cu13` (`pip install 'morok[nccl]'`), with torch, or with the system. What
differs from MPI is here: addresses instead of arrays, a stream, and an id that rank 0 gives to the others,
through MPI or, where there is one rank, to itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

import numpy as np

from morok import knobs
from morok.device.buffer import Array, Buffer
from morok.device.mesh.engine import Engine, Groups, Traffic
from morok.device.registry import get_device
from morok.dtype import DType, float32, float64, int32, int64, uint32, uint64
from morok.errors import MeshError
from morok.ir.layout import summed_bytes
from morok.ir.ops import Op, Ops

_ID_BYTES = 128
# ncclDataType_t and ncclRedOp_t, as nccl.h counts them. Narrower types are added up as wider ones
# (`joined_over` in schedule/mesh/convert.py), so these are all that a sum or an extreme may have.
_TYPES: dict[DType, int] = {int32: 2, uint32: 3, int64: 4, uint64: 5, float32: 7, float64: 8}
_BYTE = 1  # ncclUint8: for what is only moved
_OPS: dict[Op, int] = {Ops.ADD: 0, Ops.MUL: 1, Ops.MAX: 2, Ops.MIN: 3}


class _Id(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * _ID_BYTES),)


def library() -> Any:
    """NCCL: of the package, of torch's packages, or of the system."""
    for name in ("nvidia.nccl", "nvidia.cu13", "nvidia"):
        try:
            found = find_spec(name)
        except ModuleNotFoundError:
            continue
        for folder in found.submodule_search_locations or () if found is not None else ():
            for path in sorted(Path(folder).glob("**/libnccl.so.2")):
                return ctypes.CDLL(str(path))
    try:
        return ctypes.CDLL("libnccl.so.2")
    except OSError:
        raise MeshError("several GPUs need NCCL; pip install nvidia-nccl-cu13") from None


@final
class NcclEngine(Engine):
    """Ranks that are processes with a GPU each."""

    name = "nccl"
    on_stream = True

    def __init__(self, rank: int | None = None, count: int | None = None, device: str | None = None) -> None:
        launched = knobs.launched() or (0, 1, 0)
        self.count = launched[1] if count is None else count
        self.ranks = (launched[0] if rank is None else rank,)
        self._nccl = library()
        self._device: Any = get_device("CUDA" if device is None else device)
        self._mpi: Any = None
        if self.count > 1:
            from morok.device.mesh.mpi import MpiEngine

            self._mpi = MpiEngine()
        self._comms: dict[tuple[int, ...], ctypes.c_void_p] = {}
        self.traffic = Traffic()

    def begin(self, what: str) -> None:
        if self._mpi is not None:
            self._mpi.begin(what)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._nccl, name)(*arguments)
        if code:
            self._nccl.ncclGetErrorString.restype = ctypes.c_char_p
            raise MeshError(f"NCCL refused {name}: {self._nccl.ncclGetErrorString(code).decode()}")

    def _comm(self, groups: Groups) -> tuple[ctypes.c_void_p, tuple[int, ...]]:
        own = next(ranks for ranks in groups if self.ranks[0] in ranks)
        found = self._comms.get(own)
        if found is None:
            self._device.driver.enter()
            made = _Id()
            if self.ranks[0] == own[0]:
                self._call("ncclGetUniqueId", ctypes.byref(made))
            if self._mpi is not None:
                made = _Id.from_buffer_copy(self._mpi.share(bytes(made), own))
            found = self._comms[own] = ctypes.c_void_p()
            number = own.index(self.ranks[0])
            self._call("ncclCommInitRank", ctypes.byref(found), len(own), made, number)
        return found, own

    @property
    def stream(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._device.driver.stream)

    # --- collectives: nothing to wait for, the stream has an order

    def all_reduce(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups, op: Op) -> None:
        comm, own = self._comm(groups)
        elements, kind = ctypes.c_size_t(given[0].size), _TYPES[given[0].dtype]
        to, source = _address(out[0]), _address(given[0])
        sent = summed_bytes(given[0].size, given[0].dtype.itemsize, len(own))
        self.traffic.count("all_reduce", given[0].nbytes, sent)
        self._call("ncclAllReduce", source, to, elements, kind, _OPS[op], comm, self.stream)

    def reduce_scatter(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups, op: Op) -> None:
        comm, _ = self._comm(groups)
        elements, kind = ctypes.c_size_t(out[0].size), _TYPES[given[0].dtype]
        to, source = _address(out[0]), _address(given[0])
        self.traffic.count("reduce_scatter", given[0].nbytes, given[0].nbytes - out[0].nbytes)
        self._call("ncclReduceScatter", source, to, elements, kind, _OPS[op], comm, self.stream)

    def all_gather(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups) -> None:
        comm, _ = self._comm(groups)
        to, source, size = _address(out[0]), _address(given[0]), ctypes.c_size_t(given[0].nbytes)
        self.traffic.count("all_gather", given[0].nbytes, out[0].nbytes - given[0].nbytes)
        self._call("ncclAllGather", source, to, size, _BYTE, comm, self.stream)

    def all_to_all(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups) -> None:
        comm, own = self._comm(groups)
        row = given[0].nbytes // len(own)
        to, source = _address(out[0]).value or 0, _address(given[0]).value or 0
        self.traffic.count("all_to_all", given[0].nbytes, given[0].nbytes - row)
        messages = [(number, source + number * row, to + number * row) for number in range(len(own))]
        self._messages(comm, row, messages, messages)

    def send_receive(
        self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups, places: int
    ) -> None:
        comm, own = self._comm(groups)
        at, size = own.index(self.ranks[0]), given[0].nbytes
        to, source = _address(out[0]).value or 0, _address(given[0]).value or 0
        behind, before = at + places, at - places
        sends = [(behind, source, to)] if 0 <= behind < len(own) else []
        receives = [(before, source, to)] if 0 <= before < len(own) else []
        if not receives:
            self._device.driver.zero(to, size)
        self.traffic.count("send_receive", size, size if sends and behind != at else 0)
        if sends or receives:
            self._messages(comm, size, sends, receives)

    def _messages(
        self,
        comm: ctypes.c_void_p,
        size: int,
        sends: Sequence[tuple[int, int, int]],
        receives: Sequence[tuple[int, int, int]],
    ) -> None:
        """Messages of so many bytes as one step: (other rank, where from, where to)."""
        count = ctypes.c_size_t(size)
        self._call("ncclGroupStart")
        for number, source, _ in sends:
            self._call("ncclSend", ctypes.c_void_p(source), count, _BYTE, number, comm, self.stream)
        for number, _, to in receives:
            self._call("ncclRecv", ctypes.c_void_p(to), count, _BYTE, number, comm, self.stream)
        self._call("ncclGroupEnd")

    def broadcast(self, out: Sequence[Buffer], given: Sequence[Buffer], groups: Groups, root: int) -> None:
        comm, own = self._comm(groups)
        to, source, size = _address(out[0]), _address(given[0]), ctypes.c_size_t(given[0].nbytes)
        self.traffic.count("broadcast", given[0].nbytes, given[0].nbytes if len(own) > 1 else 0)
        self._call("ncclBroadcast", source, to, size, _BYTE, root, comm, self.stream)

    def gather_arrays(self, own: Sequence[Array]) -> list[Array]:
        return [np.asarray(own[0])] if self._mpi is None else self._mpi.gather_arrays(own)

    def barrier(self) -> None:
        self._device.synchronize()
        if self._mpi is not None:
            self._mpi.barrier()


def _address(buffer: Buffer) -> ctypes.c_void_p:
    return ctypes.c_void_p(int(buffer.memory) + buffer.offset)
