"""Memory: taken late, shared by views, lent, borrowed, given back and used again."""

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from morok import knobs
from morok.device import buffer as module
from morok.device.base import as_host
from morok.device.buffer import ALIGNMENT, Buffer, HostAllocator, bind_buffer, find_buffer, show_bytes
from morok.device.disk import map_file
from morok.device.interpreter import Interpreter
from morok.device.registry import canonical, default_device, get_device
from morok.dtype import bfloat16, float32, int8, int32, uint8
from morok.errors import DeviceError, OutOfMemory
from morok.ir.build import buffer


def new(size: int = 8, allocator: HostAllocator | None = None) -> Buffer:
    return Buffer("PYTHON", size, float32, allocator or HostAllocator("PYTHON"))


def test_memory_is_taken_when_it_is_needed() -> None:
    allocator = HostAllocator("PYTHON")
    buf = new(100, allocator)
    assert not buf.is_allocated
    assert allocator.used == 0
    buf.array()[:] = 1
    assert buf.is_allocated
    assert (allocator.used, allocator.peak) == (400, 400)
    assert "taken" in repr(buf)
    del buf
    assert (allocator.used, allocator.peak, allocator.kept) == (0, 400, 400)


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="asks Linux what the process has")
def test_zeros_take_the_pages_that_are_touched() -> None:
    """And no megabytes around them: a cache is written in many places, a little in each."""

    def resident() -> int:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident()
    memory = HostAllocator("PYTHON").zeros(64 << 20)
    assert memory.ctypes.data % ALIGNMENT == 0 and memory.size == 64 << 20
    memory[:: 1 << 20] = 1
    assert resident() - before < 4 << 20
    assert memory.sum(dtype=np.int64) == 64


def test_memory_is_aligned() -> None:
    for size in (1, 3, 1000):
        assert new(size).array().ctypes.data % ALIGNMENT == 0


def test_freed_blocks_are_used_again() -> None:
    allocator = HostAllocator("PYTHON")
    first = new(64, allocator)
    place = first.array().ctypes.data
    del first
    assert new(64, allocator).array().ctypes.data == place
    other = new(65, allocator)
    assert other.array().ctypes.data != place


def test_the_oldest_kept_blocks_go_first() -> None:
    allocator = HostAllocator("PYTHON", keep=1000)
    for size in (100, 50, 120):
        new(size, allocator).array()
    assert allocator.kept == 200 + 480
    new(300, allocator).array()  # larger than all that may be kept
    assert allocator.kept == 680
    allocator.forget()
    assert allocator.kept == 0


def test_blocks_of_sizes_that_do_not_come_again_go() -> None:
    allocator = HostAllocator("PYTHON")
    for size in range(1, 1001):
        new(size, allocator).array()
    assert allocator.kept == sum(4 * size for size in range(1001 - 256, 1001))


def test_views_share_memory() -> None:
    buf = new(8)
    view = buf.view(4, float32, 8)
    buf.array()[:] = np.arange(8)
    assert view.array().tolist() == [2, 3, 4, 5]
    inner = view.view(2, int32, 4)
    assert inner.base is buf
    assert inner.array().view(np.float32).tolist() == [3, 4]
    view.array()[0] = 9
    assert buf.array()[2] == 9
    with pytest.raises(DeviceError, match="do not fit"):
        buf.view(8, float32, 4)
    del buf, inner
    assert view.array().tolist() == [9, 3, 4, 5]


def test_lending() -> None:
    buf = new(4)
    buf.array()[:] = 1
    assert buf.is_private
    array = buf.lend()
    part = array[1:].reshape(3, 1)
    del array
    assert not buf.is_private
    del part
    assert buf.is_private
    view = buf.view(2, float32, 0).lend()
    assert not buf.is_private
    del buf
    gc.collect()
    assert view.tolist() == [1, 1]  # the array keeps the memory


def test_borrowing() -> None:
    device = Interpreter()
    data = np.arange(4, dtype=np.float32)
    buf = device.adopt(data, float32)
    assert buf.borrowed
    assert not buf.is_private
    assert np.shares_memory(buf.array(), data)
    own = buf.clone()
    assert own.is_private
    own.array()[0] = 7
    assert data[0] == 0
    assert not device.adopt(data[::2], float32).borrowed
    assert not device.adopt(np.empty(0, np.float32), float32).borrowed


def test_copies() -> None:
    buf = new(3)
    buf.copy_in(np.array([1, 2, 3], np.float32))
    out = buf.copy_out()
    out[0] = 9
    assert buf.array().tolist() == [1, 2, 3]
    assert as_host(buf).tolist() == [1, 2, 3]
    narrow = Buffer("PYTHON", 2, bfloat16, HostAllocator("PYTHON"))
    narrow.copy_in(np.array([1, 2], bfloat16.numpy))
    assert narrow.lend().astype(np.float32).tolist() == [1, 2]
    assert Buffer("PYTHON", 0, int8, HostAllocator("PYTHON")).copy_out().size == 0


def test_no_room() -> None:
    with pytest.raises(OutOfMemory, match="PYTHON has no room for"):
        new(1 << 60).array()


def test_a_node_takes_its_memory_with_it() -> None:
    allocator = HostAllocator("PYTHON")
    node = buffer(float32, 4, "PYTHON", 10**9)
    bind_buffer(node, new(4, allocator))
    found = find_buffer(node)
    assert found is not None
    found.array()
    del found
    assert allocator.used == 16
    del node
    gc.collect()
    assert allocator.used == 0


def test_names() -> None:
    assert canonical("cpu:0") == "CPU"
    assert canonical("python:2") == "PYTHON:2"
    assert get_device("PYTHON") is get_device("PYTHON")
    assert get_device("PYTHON:3").name == "PYTHON:3"
    with pytest.raises(DeviceError, match="there is no device 'NOWHERE'; there are PYTHON, CPU"):
        get_device("NOWHERE")
    with knobs.override(DEVICE="python"):
        assert default_device() == "PYTHON"


def test_sizes_for_people() -> None:
    assert [show_bytes(n) for n in (0, 999, 1500, 2_000_000, 3e9, 4e12, 5e15)] == [
        "0 B", "999 B", "1.5 KB", "2.0 MB", "3.0 GB", "4.0 TB", "5000.0 TB",
    ]  # fmt: skip


def test_mapped_files(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(range(10)))
    assert map_file(path, uint8).tolist() == list(range(10))
    assert map_file(path, uint8, 3, 2).tolist() == [2, 3, 4]
    assert map_file(path, uint8, 0, 10).size == 0
    odd = map_file(path, int32, 2, 1)
    assert odd.ctypes.data % 4 == 0
    for count, offset in ((11, 0), (-1, 0), (1, 10)):
        with pytest.raises(DeviceError, match="elements"):
            map_file(path, uint8, count, offset)
    with pytest.raises(DeviceError, match="nothing at byte -1"):
        map_file(path, uint8, None, -1)


def test_memory_is_freed_when_the_names_of_its_module_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python takes modules apart before their last objects."""
    allocator = HostAllocator("CPU")
    block = allocator.allocate(64)
    monkeypatch.setattr(module, "_SIZES", None)
    allocator.free(block, 64)
    assert (allocator.used, allocator.kept) == (0, 64)
