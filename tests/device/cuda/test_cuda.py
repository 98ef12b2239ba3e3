"""The GPU's runtime on a GPU that is none: order, copies, memory, replays, faults."""

import gc
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from morok import Tensor, Variable, jit, knobs
from morok.cli import devices as devices_command
from morok.device import registry
from morok.device.cuda import device as cuda
from morok.device.cuda import driver as cuda_driver
from morok.device.cuda.device import Cuda
from morok.device.store import DiskStore
from morok.dtype import float32, int32, uint8
from morok.errors import CompileError, DeviceError, OutOfMemory
from morok.ir.memory import base_of
from morok.runtime import plan
from morok.runtime.plan import buffer_for
from morok.runtime.profile import profile
from tests.device.cuda.fake_gpu import FakeDriver, fake_gpus


def log(device: Cuda) -> list[str]:
    driver: Any = device.driver
    found: list[str] = driver.log
    return found


def result(tensor: Tensor) -> Any:
    return buffer_for(base_of(tensor.uop)).copy_out()


# --- tensors on the device


def test_there_and_back(gpu: Cuda) -> None:
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    x = Tensor(data).to("cuda")
    assert x.device == "CUDA"
    y = (x * 2.0 + 1.0).sum(1)
    assert y.device == "CUDA"
    np.testing.assert_array_equal(y.numpy(), (data * 2 + 1).sum(1))
    back = y.to("CPU")
    assert back.device == "CPU"
    np.testing.assert_array_equal((back + 1.0).numpy(), (data * 2 + 1).sum(1) + 1)


def test_device_everywhere(gpu: Cuda) -> None:
    made = {
        "tensor": Tensor([1.0, 2.0], device="cuda"),
        "zeros": Tensor.zeros(2, 3, device="cuda"),
        "arange": Tensor.arange(5, device="cuda"),
        "eye": Tensor.eye(3, device="cuda"),
        "rand": Tensor.rand(4, device="cuda"),
        "randn": Tensor.randn(4, device="cuda:0"),
        "empty": Tensor.empty(2, device="cuda"),
    }
    assert {name: t.device for name, t in made.items()} == dict.fromkeys(made, "CUDA")
    np.testing.assert_array_equal(made["arange"].numpy(), np.arange(5))
    np.testing.assert_array_equal(made["eye"].numpy(), np.eye(3, dtype=np.float32))
    assert 0 <= made["rand"].numpy().min() <= made["rand"].numpy().max() < 1


def test_default_device(gpu: Cuda) -> None:
    with knobs.override(DEVICE="cuda"):
        x = Tensor([[1.0, 2.0], [3.0, 4.0]])
        assert x.device == "CUDA"
        np.testing.assert_array_equal((x @ x).numpy(), np.array([[7, 10], [15, 22]], np.float32))


def test_same_random_numbers_as_on_the_cpu(gpu: Cuda) -> None:
    Tensor.manual_seed(3)
    a = Tensor.rand(7).numpy()
    Tensor.manual_seed(3)
    np.testing.assert_array_equal(Tensor.rand(7, device="cuda").numpy(), a)


def test_assignment(gpu: Cuda) -> None:
    w = Tensor([1.0, 2.0], device="cuda").realize()
    w.assign(w * 3.0).realize()
    np.testing.assert_array_equal(w.numpy(), [3.0, 6.0])
    kept = w.numpy()
    w.assign(w + 1.0).realize()
    np.testing.assert_array_equal(kept, [3.0, 6.0])
    np.testing.assert_array_equal(w.numpy(), [4.0, 7.0])


def test_two_devices_in_one_plan() -> None:
    with fake_gpus(FakeDriver(), FakeDriver()) as (first, second):
        x = Tensor(np.arange(6, dtype=np.float32), device="cuda")
        y = ((x + 1.0).to("cuda:1") * 2.0).to("cpu") + 1.0
        np.testing.assert_array_equal(y.numpy(), (np.arange(6) + 1.0) * 2.0 + 1.0)
        assert "move from another" in log(second)
        assert log(first).count("launch") == 1
        gc.collect()


def test_two_kinds_of_device_meet_on_the_host(gpu: Cuda) -> None:
    x = Tensor(np.arange(6, dtype=np.float32), device="cuda")
    y = ((x + 1.0).to("emulator") * 2.0).to("cuda") + x
    np.testing.assert_array_equal(y.numpy(), (np.arange(6) + 1.0) * 2.0 + np.arange(6))


# --- order


def test_the_host_array_may_change_after_a_copy(gpu: Cuda) -> None:
    data = np.arange(4, dtype=np.float32)
    x = Tensor(data, device="cuda")
    data[:] = -1
    np.testing.assert_array_equal(x.numpy(), [0, 1, 2, 3])


@pytest.mark.parametrize("size", [1, 1000, (4 << 20) // 4, (4 << 20) // 4 * 5 + 3])
def test_long_copies_through_staging(size: int) -> None:
    with fake_gpus(FakeDriver(128 << 20)) as (device,):
        data = np.random.default_rng(1).integers(0, 255, size, dtype=np.int32)
        buffers = [device.adopt(data + i, int32) for i in range(2)]
        for i, buffer in enumerate(buffers):
            np.testing.assert_array_equal(buffer.copy_out(), data + i)


def test_memory_that_is_used_again_comes_later(gpu: Cuda) -> None:
    """A buffer that dies while a kernel still reads it is not overwritten before that."""
    x = Tensor(np.full(1000, 3.0, np.float32), device="cuda")
    y = (x + 1.0).realize()
    del x
    gc.collect()
    z = Tensor(np.full(1000, 9.0, np.float32), device="cuda")  # takes the block of x
    assert "allocate" not in log(gpu)[-1]
    np.testing.assert_array_equal(y.numpy(), np.full(1000, 4.0))
    np.testing.assert_array_equal(z.numpy(), np.full(1000, 9.0))


def test_clones_stay_on_the_device(gpu: Cuda) -> None:
    buffer = gpu.adopt(np.arange(8, dtype=np.float32), float32)
    part = buffer.view(4, float32, 8)
    other = part.clone()
    assert log(gpu)[-1] == "move"
    buffer.copy_in(np.zeros(8, np.float32))
    np.testing.assert_array_equal(other.copy_out(), [2, 3, 4, 5])


# --- replays


def test_a_replayed_plan_is_one_graph(gpu: Cuda) -> None:
    data = np.arange(6, dtype=np.float32)
    x = Tensor(data, device="cuda").realize()
    s = ((x + 1.0).sum() * x).contiguous()
    y = s.softmax(-1)
    plan = y.prepare()
    assert len(plan) > 1
    plan.run()
    plan.run()
    assert log(gpu)[-2:] == [f"graph {len(plan)}", "replay"]
    plan.run()
    assert log(gpu)[-1] == "replay" and not any(line.startswith("patch") for line in log(gpu))
    want = np.exp((data + 1).sum() * data - ((data + 1).sum() * data).max())
    np.testing.assert_allclose(result(y), want / want.sum(), rtol=1e-5)


def test_a_graph_gets_other_inputs_and_values(gpu: Cuda) -> None:
    n = Variable("n", 1, 8)
    x = Tensor(np.arange(8, dtype=np.float32), device="cuda").realize()
    y = x[: n.bind(3)].sum().contiguous() * x
    plan = y.prepare()
    other = Tensor(np.arange(8, dtype=np.float32) * 10, device="cuda").realize()
    node, given = base_of(x.uop), buffer_for(base_of(other.uop))
    for k in (3, 1, 8, 5):
        plan.run(n=k)
        np.testing.assert_array_equal(result(y), np.arange(k).sum() * np.arange(8.0))
        plan.run({node: given}, n=k)
        np.testing.assert_array_equal(result(y), 100 * np.arange(k).sum() * np.arange(8.0))
    assert any(line.startswith("patch") for line in log(gpu))
    assert sum(line.startswith("graph") for line in log(gpu)) == 1


@pytest.mark.parametrize("kernels", [1, 2])
def test_a_replay_that_found_no_room_can_be_tried_again(kernels: int) -> None:
    with fake_gpus(FakeDriver(1 << 20)) as (device,):
        data = np.arange(25_000, dtype=np.float32)
        x = Tensor(data, device="cuda").realize()
        y = (x.sum().contiguous() if kernels == 2 else 2.0) * x
        plan = y.prepare()
        assert len(plan) == kernels
        for _ in range(3):
            plan.run()
        want = result(y)
        fresh = device.buffer(data.size, float32)  # takes its memory when the kernel is started
        held = device.buffer(800_000, uint8)
        assert held.memory
        node = base_of(y.uop)
        with pytest.raises(OutOfMemory):
            plan.run({node: fresh})
        del held
        plan.run({node: fresh})
        np.testing.assert_array_equal(fresh.copy_out(), want)
        gc.collect()


def test_a_compiled_function(gpu: Cuda) -> None:
    @jit
    def f(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum(1).contiguous() + a[:, 0]

    rng = np.random.default_rng(0)
    held = []
    for _ in range(5):
        a, b = rng.random((3, 4), np.float32), rng.random((3, 4), np.float32)
        out = f(Tensor(a, device="cuda").realize(), Tensor(b, device="cuda").realize())
        held.append((out, (a * b).sum(1) + a[:, 0]))
    for out, want in held:
        np.testing.assert_allclose(out.numpy(), want, rtol=1e-6)
    assert f.traces == 1
    assert "replay" in log(gpu)


def test_a_function_without_kernels(gpu: Cuda) -> None:
    @jit
    def f(a: Tensor) -> tuple[Tensor, Tensor]:
        return a, a.reshape(2, 1)

    x = Tensor([1.0, 2.0], device="cuda").realize()
    for _ in range(3):
        same, turned = f(x)
        assert same.tolist() == [1.0, 2.0] and turned.tolist() == [[1.0], [2.0]]


def test_one_kernel_is_launched_plainly(gpu: Cuda) -> None:
    @jit
    def f(a: Tensor) -> Tensor:
        return a + 1.0

    x = Tensor([1.0, 2.0], device="cuda").realize()
    for _ in range(4):
        assert f(x).tolist() == [2.0, 3.0]
    assert "replay" not in log(gpu)


def test_random_numbers_under_jit_differ(gpu: Cuda) -> None:
    @jit
    def f(a: Tensor) -> Tensor:
        return a + Tensor.rand(3, device="cuda")

    x = Tensor([0.0, 0.0, 0.0], device="cuda").realize()
    assert len({tuple(f(x).tolist()) for _ in range(4)}) == 4


def test_profiles_time_on_the_device(gpu: Cuda) -> None:
    x = Tensor(np.ones(8, np.float32), device="cuda").realize()
    with profile() as found:
        (x + 1.0).realize()
    assert [e.device for e in found.events] == ["CUDA"]
    assert found.events[0].seconds == pytest.approx(1e-6)  # the fake's clock, and not the host's


# --- faults


def test_an_illegal_access_ends_the_device_and_not_the_process(gpu: Cuda) -> None:
    driver: Any = gpu.driver
    x = Tensor([1.0], device="cuda").realize()
    driver.fault = "CUDA is gone"
    y = (x + 1.0).realize()  # asynchronous: nobody knows yet
    with pytest.raises(DeviceError, match="CUDA is gone"):
        y.numpy()
    with pytest.raises(DeviceError, match="CUDA is gone"):
        (x * 2.0).numpy()
    assert (Tensor([1.0]) + 1.0).item() == 2.0


def test_a_buffer_that_dies_tells_nobody_of_the_fault(gpu: Cuda) -> None:
    """Giving memory back may be what finds out that a kernel has failed."""
    driver: Any = gpu.driver
    gpu.allocator._keep = 0
    x = Tensor([1.0], device="cuda").realize()
    driver.fault = "CUDA is gone"
    y = (x + 1.0).realize()
    del x
    gc.collect()  # pytest makes an error of an exception that nobody can catch
    assert driver.lost == "CUDA is gone" and gpu.allocator.kept == 0
    with pytest.raises(DeviceError, match="CUDA is gone"):
        y.numpy()


def test_a_kernel_that_is_refused_has_overwritten_nothing(gpu: Cuda) -> None:
    def refuse(text: str, arch: str, title: str) -> bytes:
        raise CompileError(f"NVRTC refuses the kernel {title}")

    w = Tensor([1.0, 2.0], device="cuda").realize()
    memory = base_of(w.uop)
    with mock.patch.object(gpu, "_compiler", refuse):
        w.assign(w * 7.0)
        for _ in range(2):  # the second time it is not the value that is missing
            with pytest.raises(CompileError, match="NVRTC refuses the kernel"):
                w.realize()
    np.testing.assert_array_equal(buffer_for(memory).copy_out(), [1.0, 2.0])


def test_a_function_without_room_names_the_call() -> None:
    with fake_gpus(FakeDriver(1 << 20)):
        f = jit(lambda a: a * 2.0 + 1.0)
        x = Tensor(np.ones(100_000, np.float32), device="cuda").realize()
        held = [f(x)]
        with pytest.raises(OutOfMemory, match=r"no room for 400\.0 KB: .* \(at test_cuda\.py:\d+\)$"):
            held.append(f(x))
        assert held[0].numpy().sum() == 300_000
        gc.collect()


def test_a_step_without_room_has_overwritten_nothing() -> None:
    with fake_gpus(FakeDriver(1 << 20)) as (device,):
        w = Tensor(np.ones(1000, np.float32), device="cuda").realize()
        held = device.buffer(900_000, uint8)
        assert held.memory
        big = Tensor.arange(40_000, device="cuda").reshape(40, 1000).cast(float32).contiguous()
        w.assign(w + big.sum(0) * 0.0 + big[3])
        with pytest.raises(OutOfMemory, match="no room"):
            w.realize()
        del held
        np.testing.assert_array_equal(w.numpy(), np.arange(3000, 4000) + 1.0)
        gc.collect()


def test_asking_for_cuda_without_a_gpu() -> None:
    """Whatever is missing on this machine, it is one sentence, twice the same, and the CPU goes on."""
    registry._devices.pop("CUDA", None)
    missing = cuda_driver._Bindings()
    missing.missing = "CUDA needs something"
    with mock.patch.object(cuda_driver, "bindings", missing):
        for _ in range(2):
            with pytest.raises(DeviceError, match=r"^CUDA needs something \(at test_cuda\.py:\d+\)$"):
                Tensor([1.0]).to("cuda")
        assert dict(devices_command.rows())["CUDA"] == "not here: CUDA needs something"
    assert (Tensor([1.0]) + 1.0).item() == 2.0


def test_devices_are_listed(gpu: Cuda, capsys: pytest.CaptureFixture[str]) -> None:
    with mock.patch.object(cuda_driver, "device_count", lambda: 1):
        assert devices_command.run(SimpleNamespace()) == 0  # type: ignore[arg-type]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("CPU *")
    (found,) = [line for line in lines if line.startswith("CUDA")]
    assert "  Fake GPU, sm_90a, 4 multiprocessors, " in found
    assert "free, driver for CUDA 13.0; machine sm_90a, " in found


def test_one_gpu_that_cannot_be_used_hides_no_other(gpu: Cuda) -> None:
    def opened(name: str) -> Cuda:
        if name == "CUDA":
            return gpu
        raise DeviceError(f"{name} failed to make a context: device unavailable")

    with (
        mock.patch.object(cuda_driver, "device_count", lambda: 3),
        mock.patch.object(registry, "get_device", opened),
    ):
        found = dict(devices_command.rows())
    assert "Fake GPU" in found["CUDA"]
    assert found["CUDA:1"] == "cannot be used: CUDA:1 failed to make a context: device unavailable"
    assert "CUDA:2" in found


def test_a_name_in_other_words_is_the_same_gpu(gpu: Cuda) -> None:
    x = Tensor([1.0], device="cuda")
    assert Tensor([1.0]).to(" Cuda:00").device == x.device == "CUDA"
    assert registry.canonical("cuda:01") == "CUDA:1"


def test_kernels_that_come_from_disk_are_counted(gpu: Cuda, tmp_path: Path) -> None:
    store = DiskStore(str(tmp_path))
    x = Tensor([1.0, 2.0], device="cuda").realize()
    before = (plan.requests.compiled, plan.requests.from_disk)
    with mock.patch.object(cuda, "kernel_store", lambda: store):
        for _ in range(2):
            assert (x * 3.0).tolist() == [3.0, 6.0]
            plan._programs.clear()  # as in another process
    assert (plan.requests.compiled, plan.requests.from_disk) == (before[0] + 1, before[1] + 1)


def test_the_compiler_believes_what_a_gpu_says_of_itself() -> None:
    """Else what the optimiser may share is refused on GPUs that nobody has heard of yet."""
    driver = FakeDriver()
    driver.facts = replace(driver.facts, capability=(10, 3), shared_bytes=200 << 10)
    device = Cuda("CUDA", driver)
    assert device.machine.local_bytes == 200 << 10


def test_there_is_no_such_number() -> None:
    with pytest.raises(DeviceError, match="no device 'CUDA:X'"):
        registry.get_device("CUDA:X")
