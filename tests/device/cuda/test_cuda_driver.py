"""The layer over NVIDIA's bindings, on bindings that are none: what is missing, what fails, what goes."""

import builtins
import gc
import os
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from morok import knobs
from morok.device.compiled import Compiled
from morok.device.cuda import driver as cuda_driver
from morok.device.cuda.driver import NvidiaDriver, device_count
from morok.device.cuda.kernel import CudaKernel
from morok.device.cuda.memory import CudaAllocator
from morok.errors import DeviceError, MorokError, OutOfMemory

ANSWERS: dict[str, tuple[Any, ...]] = {
    "cuDeviceGetCount": (2,),
    "cuDeviceGetName": (b"Fake GPU\0",),
    "cuDeviceGetAttribute": (9,),
    "cuDeviceTotalMem": (1 << 30,),
    "cuMemGetInfo": (1 << 20, 1 << 30),
    "cuGetErrorString": (b"what it means",),
}


class FakeCu:
    """Every function works and says little; the next calls of some fail with the codes that a test gives."""

    CUDA_VERSION = 13000

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.faults: dict[str, list[int]] = {}
        self.current: Any = None  # the context
        self.contexts: list[tuple[str, Any]] = []  # which was current in which call

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            return mock.MagicMock()  # an enumeration, or a structure

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls[name] += 1
            self.contexts.append((name, self.current))
            codes = self.faults.get(name)
            if codes:
                return codes.pop(0), None
            if name == "cuCtxSetCurrent":
                self.current = arguments[0]
            if name in ("cuDeviceGet", "cuDevicePrimaryCtxRetain"):
                return 0, arguments[0]
            return 0, *ANSWERS.get(name, (self.calls[name],))

        return call


@pytest.fixture
def cu() -> Iterator[FakeCu]:
    found = FakeCu()
    with (
        mock.patch.object(cuda_driver.bindings, "_module", found),
        mock.patch.object(cuda_driver.bindings, "missing", None),
        mock.patch.object(os, "register_at_fork"),
    ):
        yield found
        gc.collect()
    cuda_driver._thread.driver = None


def step_of(driver: NvidiaDriver) -> Any:
    return driver.load(b"", "softmax", 0), (1, 1, 1), (32, 1, 1), 0


def launched(driver: NvidiaDriver) -> Any:
    step = step_of(driver)
    driver.launch(step)
    return step


# --- what is missing


class FakeBindings:
    """The few functions of NVIDIA's bindings that are asked before anything else."""

    CUDA_VERSION = 13000

    def __init__(self, init: int = 0, version: int = 13000) -> None:
        self.init, self.version = init, version

    def cuInit(self, flags: int) -> tuple[int]:
        return (self.init,)

    def cuDriverGetVersion(self) -> tuple[int, int]:
        return 0, self.version

    def cuGetErrorString(self, code: int) -> tuple[int, bytes]:
        return 0, b"what it means"


@pytest.mark.parametrize(
    ("bindings", "sentence"),
    [
        (FakeBindings(init=100), "needs an NVIDIA GPU; the driver is installed, but finds none"),
        (
            FakeBindings(version=12040),
            r"too old: it speaks CUDA 12\.4, and the installed packages need 13\.0",
        ),
        (FakeBindings(init=803, version=12080), "too old"),
        (FakeBindings(init=999), r"does not start: 999 \(what it means\)"),
    ],
)
def test_what_is_missing(bindings: FakeBindings, sentence: str) -> None:
    with pytest.raises(DeviceError, match=sentence):
        cuda_driver.start(bindings)


def test_no_driver() -> None:
    class DynamicLibNotFoundError(RuntimeError):
        pass

    def init(flags: int) -> None:
        raise DynamicLibNotFoundError("could not find it\nand more")

    with pytest.raises(DeviceError, match=r"needs NVIDIA's driver, which is not installed$"):
        cuda_driver.start(SimpleNamespace(cuInit=init))


def test_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [m for m in sys.modules if m == "cuda" or m.startswith("cuda.")]:
        monkeypatch.delitem(sys.modules, name)
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("cuda"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        DeviceError, match=r"Python packages, which are not installed: pip install 'morok\[cuda\]'"
    ):
        cuda_driver._Bindings().get()


# --- faults


@pytest.mark.parametrize("code", [700, 716, 719, 226, 220, 721])
def test_a_fault_of_a_kernel_ends_the_device(cu: FakeCu, code: int) -> None:
    driver = NvidiaDriver(0, "CUDA")
    address = driver.allocate(512)
    assert address is not None
    launched(driver)
    cu.faults["cuStreamSynchronize"] = [code]
    with pytest.raises(DeviceError) as caught:
        driver.synchronize()
    text = str(caught.value)
    assert re.fullmatch(
        rf"CUDA is gone for this process: {code} \(what it means\) in one of softmax; what was in its memory "
        "is lost, a new process can use it again, and other devices go on",
        text,
    )
    before = cu.calls.copy()
    later: list[Callable[[], object]] = [
        driver.synchronize,
        driver.event,
        lambda: driver.allocate(512),
        lambda: driver.load(b"", "other", 0),
    ]
    for work in later:
        with pytest.raises(DeviceError, match=re.escape(text)):
            work()
    driver.release(address)
    assert cu.calls == before  # nobody asks the driver again
    assert NvidiaDriver(1, "CUDA:1").allocate(512) is not None


def test_a_fault_names_kernels_as_plans_do(cu: FakeCu) -> None:
    driver = NvidiaDriver(0, "CUDA")
    kernel = CudaKernel(Compiled("k0123456789abcdef", b"", block=(32,)), "r_64_256", driver)
    kernel([], {})
    cu.faults["cuStreamSynchronize"] = [700]
    with pytest.raises(DeviceError, match=r"in one of r_64_256; what was"):
        driver.synchronize()


def test_other_faults_do_not(cu: FakeCu) -> None:
    driver = NvidiaDriver(0, "CUDA")
    cu.faults["cuLaunchKernel"] = [701]
    sentence = r"^CUDA failed to start softmax with \(1, 1, 1\) blocks of \(32, 1, 1\) threads: 701 \("
    with pytest.raises(DeviceError, match=sentence):
        launched(driver)
    launched(driver)
    driver.synchronize()


@pytest.mark.parametrize(
    ("function", "failures", "work"),
    [
        ("cuModuleLoadData", 1, lambda d: d.load(b"", "softmax", 0)),
        ("cuLaunchKernel", 1, lambda d: d.launch(step_of(d))),
        ("cuLaunchKernel", 2, lambda d: d.prepared(step_of(d))()),  # that tries once more before anything
        ("cuGraphInstantiate", 1, lambda d: d.graph([step_of(d)])),
        ("cuGraphLaunch", 1, lambda d: d.replay(d.graph([step_of(d)]))),
    ],
    ids=["load", "launch", "prepared", "graph", "replay"],
)
def test_code_and_graphs_find_room_too(
    cu: FakeCu, function: str, failures: int, work: Callable[[Any], object]
) -> None:
    """What the driver itself needs comes out of the blocks that are kept."""
    driver = NvidiaDriver(0, "CUDA")
    allocator = CudaAllocator("CUDA", driver)
    allocator.free(allocator.allocate(1000), 1000)
    cu.faults[function] = [2] * failures
    work(driver)
    assert allocator.kept == 0 and cu.calls["cuMemFree"] == 1
    cu.faults[function] = [2] * (failures + 1)
    with pytest.raises(OutOfMemory, match=r"^CUDA has no room to (load|start|make) .*: tensors hold 0 B of "):
        work(driver)
    work(driver)
    assert driver.lost is None


@pytest.mark.parametrize("early", [False, True])
def test_kernels_of_a_graph_follow_one_another(cu: FakeCu, early: bool) -> None:
    """And are there before it is their turn, where that was asked for."""
    added: list[tuple[Any, ...]] = []

    def add(*arguments: Any) -> tuple[int]:
        added.append(arguments)
        return (0,)

    driver = NvidiaDriver(0, "CUDA")
    step = step_of(driver)
    with mock.patch.object(cu, "cuGraphAddDependencies", add, create=True), knobs.override(EARLY_START=early):
        graph = driver.graph([step, step, step])
    ((_, before, after, edges, count),) = added
    assert (before, after, count) == (graph.nodes[:2], graph.nodes[1:], 2)
    assert (edges is None) is not early and (not early or len(edges) == 2)


def test_a_driver_that_counts_nothing(cu: FakeCu) -> None:
    cu.faults["cuDeviceGetCount"] = [3]
    with pytest.raises(DeviceError, match=r"^the NVIDIA driver does not say which GPUs there are: 3 \("):
        device_count()
    with pytest.raises(DeviceError, match=r"^there is no CUDA:2; the machine has 2 GPUs$"):
        NvidiaDriver(2, "CUDA:2")


def test_a_gpu_that_is_too_old(cu: FakeCu) -> None:
    with (
        mock.patch.dict(ANSWERS, {"cuDeviceGetAttribute": (7,)}),
        pytest.raises(
            DeviceError, match=r"^CUDA is a Fake GPU of compute capability 7\.7, .* 8\.0 or newer$"
        ),
    ):
        NvidiaDriver(0, "CUDA")


# --- what is given back


def test_events_go_when_nobody_holds_them(cu: FakeCu) -> None:
    driver, other = NvidiaDriver(0, "CUDA"), NvidiaDriver(1, "CUDA:1")
    for _ in range(5):
        first, last = driver.event(timing=True), driver.event(timing=True)
        driver.record(first)
        driver.record(last)
        driver.seconds(first, last)
        other.move_from(1, driver, 2, 16)
    del first, last
    assert cu.calls["cuEventCreate"] == cu.calls["cuEventDestroy"] == 20


def test_what_dies_leaves_the_context_alone(cu: FakeCu) -> None:
    """A buffer, an event, code or a graph of another GPU may go between entering a context and using it."""
    first, second = NvidiaDriver(0, "CUDA"), NvidiaDriver(1, "CUDA:1")
    step = launched(second)
    held: list[Any] = [second.event(), second.graph([step]), step]
    del step
    first.synchronize()
    assert cu.current == 0
    held.clear()
    second.release(99)
    assert cu.current == 0 and cuda_driver._thread.driver is first
    done = dict(cu.contexts)
    for name in ("cuEventDestroy", "cuGraphExecDestroy", "cuModuleUnload", "cuMemFree"):
        assert done[name] == 1, name


# --- forks


def in_a_child(work: Callable[[], object]) -> str:
    """What a forked process says to something."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other threads of the tests do not matter here
        child = os.fork()
    if not child:
        text = "nothing"
        try:
            work()
        except MorokError as error:
            text = str(error)
        finally:
            os.write(writer, text.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        found = file.read()
    os.waitpid(child, 0)
    return found


def test_a_forked_process_says_what_to_do() -> None:
    sentence = "cannot be used in a forked process; start it with spawn instead"
    awake, asleep = cuda_driver._Bindings(), cuda_driver._Bindings()
    awake._module = FakeCu()
    asleep.missing = "CUDA needs something"
    with mock.patch.object(cuda_driver, "bindings", awake):
        driver = NvidiaDriver(0, "CUDA")
        assert in_a_child(driver.synchronize) == f"CUDA {sentence}"
        assert in_a_child(lambda: NvidiaDriver(1, "CUDA:1")) == f"CUDA {sentence}"
    assert in_a_child(asleep.get) == "CUDA needs something"
    driver.synchronize()
    cuda_driver._thread.driver = None
