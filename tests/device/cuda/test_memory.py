"""Memory of a GPU: what is kept, what happens when there is none left. On the fake driver."""

import gc
from typing import Any

import numpy as np
import pytest

from morok import Tensor, jit, knobs
from morok.device.cuda import memory as cuda_memory
from morok.device.cuda.device import Cuda
from morok.device.cuda.memory import CudaAllocator, rounded
from morok.dtype import float32, uint8
from morok.errors import DeviceError, OutOfMemory
from morok.rewrite.gc_pause import gc_paused
from tests.device.cuda.fake_gpu import FakeDriver, fake_gpus

# --- memory


def test_blocks_are_kept_and_the_oldest_go_first() -> None:
    driver = FakeDriver()
    allocator = CudaAllocator("CUDA", driver, keep=5000)
    first, second = allocator.allocate(2000), allocator.allocate(3000)
    allocator.free(first, 2000)
    allocator.free(second, 3000)
    assert allocator.kept == rounded(3000) and list(driver.taken) == [second]
    assert allocator.allocate(2900) == second  # of the same rounded size
    assert allocator.used == rounded(2900) and allocator.peak == rounded(2000) + rounded(3000)
    assert allocator.kept == 0


def test_out_of_memory_says_what_is_held() -> None:
    driver = FakeDriver(1 << 20)
    allocator = CudaAllocator("CUDA", driver)
    held = allocator.allocate(600_000)
    kept = allocator.allocate(200_000)
    allocator.free(kept, 200_000)
    assert allocator.allocate(400_000)  # there is room once the kept block has gone
    with pytest.raises(OutOfMemory, match=r"no room for 300\.0 KB: tensors hold 1\.0 MB of 1\.0 MB"):
        allocator.allocate(300_000)
    allocator.free(held, 600_000)
    assert allocator.allocate(300_000)


def test_out_of_memory_leaves_the_device_usable() -> None:
    with fake_gpus(FakeDriver(1 << 20)):
        with pytest.raises(OutOfMemory, match="CUDA has no room"):
            (Tensor.zeros(1 << 20, device="cuda") + 1.0).realize()
        assert (Tensor([1.0], device="cuda") + 1.0).item() == 2.0
        gc.collect()


def test_memory_of_others_is_named() -> None:
    driver = FakeDriver(1 << 20)
    driver.taken[1 << 40] = 900_000
    with pytest.raises(OutOfMemory, match=r"other programs or libraries hold 900\.0 KB"):
        CudaAllocator("CUDA", driver).allocate(300_000)


def test_managed_memory_is_asked_for_and_limited() -> None:
    driver = FakeDriver(1 << 20)
    allocator = CudaAllocator("CUDA", driver)
    with knobs.override(CUDA_MANAGED=True):
        allocator.allocate(1000)
        assert driver.log == ["managed 1024"]
        with pytest.raises(OutOfMemory):
            allocator.allocate(2 << 20)
        assert driver.log == ["managed 1024"]  # the driver is not even asked
    allocator.allocate(5000)
    assert driver.log[-1] == "allocate 5120"


class Lazy(FakeDriver):
    """Managed memory is there when it is touched, and nobody touches it: asking for it takes no room."""

    def allocate(self, nbytes: int, managed: bool = False) -> int | None:
        return 1 << 50 if managed else super().allocate(nbytes)


def test_managed_memory_that_nobody_has_touched_is_not_free() -> None:
    driver = Lazy(1 << 20)
    driver.taken[1 << 40] = 100 << 10  # by another program
    allocator = CudaAllocator("CUDA", driver)
    with knobs.override(CUDA_MANAGED=True):
        allocator.allocate(600 << 10)
        assert driver.room()[0] == 924 << 10
        with pytest.raises(OutOfMemory):
            allocator.allocate(400 << 10)
        assert allocator.allocate(300 << 10)


def test_managed_and_plain_blocks_are_kept_apart() -> None:
    allocator = CudaAllocator("CUDA", FakeDriver(1 << 20))
    plain = allocator.allocate(1000)
    allocator.free(plain, 1000)
    with knobs.override(CUDA_MANAGED=True):
        managed = allocator.allocate(1000)
        assert managed != plain
    allocator.free(managed, 1000)
    assert allocator.allocate(1000) == plain
    with knobs.override(CUDA_MANAGED=True):
        assert allocator.allocate(1000) == managed


def test_out_of_memory_takes_back_what_a_jit_keeps() -> None:
    with fake_gpus(FakeDriver(1 << 20)) as (device,):

        @jit
        def f(a: Tensor) -> Tensor:
            return a.sum().contiguous() * a

        x = Tensor(np.ones(25_000, np.float32), device="cuda").realize()
        held = [f(x) for _ in range(5)]
        kept = held[0]
        del held
        assert device.allocator.used > 500_000
        y = Tensor(np.ones(150_000, np.float32), device="cuda").realize()
        assert y.numpy().sum() == 150_000
        np.testing.assert_array_equal(kept.numpy(), np.full(25_000, 25_000, np.float32))
        del y
        np.testing.assert_array_equal(f(x).numpy(), np.full(25_000, 25_000, np.float32))
        gc.collect()


def test_out_of_memory_looks_for_cycles() -> None:
    with fake_gpus(FakeDriver(1 << 20)):
        cycle: list[Any] = [Tensor(np.ones(150_000, np.float32), device="cuda").realize()]
        cycle.append(cycle)
        del cycle
        with gc_paused:
            assert Tensor(np.ones(150_000, np.float32), device="cuda").numpy().sum() == 150_000


def test_buffers_may_outlive_the_process() -> None:
    """What dies after the interpreter has begun to take itself apart is not freed."""
    driver = FakeDriver()
    allocator = CudaAllocator("CUDA", driver, keep=0)
    first, second = allocator.allocate(1000), allocator.allocate(1000)
    allocator.free(first, 1000)
    assert list(driver.taken) == [second]
    cuda_memory._close()  # as at exit
    allocator.free(second, 1000)
    assert list(driver.taken) == [second]


def test_views_and_empty_buffers(gpu: Cuda) -> None:
    buffer = gpu.buffer(16, uint8)
    buffer.copy_in(np.arange(16, dtype=np.uint8))
    np.testing.assert_array_equal(buffer.view(2, float32, 8).copy_out().view(np.uint8), np.arange(8, 16))
    assert gpu.buffer(0, float32).copy_out().size == 0
    with pytest.raises(DeviceError, match="not reachable from the host"):
        buffer.array()
