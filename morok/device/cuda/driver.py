"""One NVIDIA GPU through its driver: a context, a stream, memory, modules, launches, graphs.

A thin layer over NVIDIA's own bindings. Every call is checked; a fault is one sentence. Everything happens on
one stream per device, so work that is started later sees what was started earlier, and nothing else has to be
ordered by hand. After a fault inside a kernel the driver refuses all further work of the process on that
device: the layer then says so once and for all, and forgets the memory instead of freeing it.

The bindings are loaded when the first device is asked for. Only the compiler needs more than the bindings, so
a process that finds its kernels on disk is spared the rest.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

import numpy as np

from morok import knobs
from morok.caches import Cache
from morok.device.buffer import Array
from morok.device.cuda.interface import Driver, Facts, Function, Holder, Launch
from morok.device.cuda.tensor_maps import encode
from morok.errors import DeviceError, OutOfMemory
from morok.ir.warp_roles import Box

# Faults after which the driver refuses everything else on that device.
_FATAL = frozenset((214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721))
_OUT_OF_MEMORY = 2
_NO_DEVICE = 100
MOST_TENSOR_MAPS = 4096  # that are remembered
OLDEST = (8, 0)  # compute capability: maxima that keep NaN, copies into shared memory, matrix units
WAIT_THEMSELVES = (9, 0)  # kernels that are on a multiprocessor before it is their turn
INSTALL = "pip install 'morok[cuda]'"


# --- finding out what there is


@final
class _Bindings:
    """NVIDIA's bindings, loaded once; or the sentence that says what is missing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._module: Any = None
        self.missing: str | None = None
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        """A driver that was awake does not work in a child; one that slept can still be woken there."""
        self._lock = threading.Lock()
        if self._module is not None:
            self.missing = "CUDA cannot be used in a forked process; start it with spawn instead"

    def get(self) -> Any:
        with self._lock:
            if self._module is None and self.missing is None:
                try:
                    self._module = self._load()
                except DeviceError as error:
                    self.missing = error.message
        if self.missing is not None:
            raise DeviceError(self.missing)
        return self._module

    @staticmethod
    def _load() -> Any:
        try:
            from cuda.bindings import driver
        except ImportError:
            raise DeviceError(
                f"CUDA needs NVIDIA's Python packages, which are not installed: {INSTALL}"
            ) from None
        own = knobs.show_own_gpu() if "torch" not in sys.modules else None  # which has counted them already
        try:
            start(driver)
        except DeviceError as error:
            of_ranks = (
                "" if own is None else f"; every rank of a host needs a GPU of its own, here number {own}"
            )
            raise DeviceError(f"{error.message}{of_ranks}") from None
        return driver


def start(driver: Any) -> None:
    """Wakes the driver up; raises what is missing in one sentence."""
    try:
        (code,) = driver.cuInit(0)
    except Exception as error:  # the loader's exceptions differ from version to version
        detail = "" if "NotFound" in type(error).__name__ else f" ({_line(error)})"
        raise DeviceError(f"CUDA needs NVIDIA's driver, which is not installed{detail}") from None
    if int(code) == _NO_DEVICE:
        raise DeviceError("CUDA needs an NVIDIA GPU; the driver is installed, but finds none")
    wanted = int(driver.CUDA_VERSION) // 1000
    status, version = driver.cuDriverGetVersion()
    if int(status) == 0 and version // 1000 < wanted:
        raise DeviceError(
            f"the NVIDIA driver is too old: it speaks CUDA {version // 1000}.{version % 1000 // 10}, "
            f"and the installed packages need {wanted}.0 or newer"
        )
    if int(code):
        raise DeviceError(f"the NVIDIA driver does not start: {_meaning(driver, code)}")


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _meaning(driver: Any, code: Any) -> str:
    status, text = driver.cuGetErrorString(code)
    name = getattr(code, "name", str(code)).removeprefix("CUDA_ERROR_").lower().replace("_", " ")
    return f"{name} ({text.decode()})" if int(status) == 0 and text else name


bindings = _Bindings()


def device_count() -> int:
    """How many GPUs there are; raises a sentence where CUDA cannot be used at all."""
    driver = bindings.get()
    status, count = driver.cuDeviceGetCount()
    if int(status):
        raise DeviceError(f"the NVIDIA driver does not say which GPUs there are: {_meaning(driver, status)}")
    return int(count)


# --- one GPU

_thread = threading.local()  # whose context is current in a thread


@final
class NvidiaDriver:
    """The GPU of a number, in the context that the driver shares with other libraries of the process."""

    def __init__(self, number: int, label: str) -> None:
        self.label = label
        self.lost: str | None = None  # why nothing works any more
        self.holder: Holder | None = None
        self._cu = bindings.get()
        count = device_count()
        if number >= count:
            gpus = f"{count} GPU{'s' if count != 1 else ''}"
            raise DeviceError(f"there is no {label}; the machine has {gpus}")
        os.register_at_fork(after_in_child=self._forked)
        self._recent: deque[str] = deque(maxlen=4)  # what has been started; one of them is to blame
        self._tensor_maps: Cache[tuple[int, str, Box], bytes] = Cache(
            f"device.tensor_maps.{label}", MOST_TENSOR_MAPS
        )
        self._device = self._ask(self._cu.cuDeviceGet(number), "to open the device")
        self._context = self._ask(self._cu.cuDevicePrimaryCtxRetain(self._device), "to make a context")
        self._enter()
        flag = self._cu.CUstream_flags.CU_STREAM_NON_BLOCKING
        self._stream = self._ask(self._cu.cuStreamCreate(flag), "to make a stream")
        self.stream = int(self._stream)
        self.facts = self._facts()
        if self.facts.capability < OLDEST:
            has, needs = (".".join(map(str, numbers)) for numbers in (self.facts.capability, OLDEST))
            raise DeviceError(
                f"{label} is a {self.facts.name} of compute capability {has}, and the generated code needs "
                f"{needs} or newer"
            )

    def _facts(self) -> Facts:
        cu = self._cu

        def attribute(name: str) -> int:
            key = getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
            return int(self._ask(cu.cuDeviceGetAttribute(key, self._device), "to read an attribute"))

        raw = self._ask(cu.cuDeviceGetName(128, self._device), "to read the name")
        return Facts(
            name=bytes(raw).split(b"\0")[0].decode(),
            capability=(attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")),
            memory=int(self._ask(cu.cuDeviceTotalMem(self._device), "to read the size of the memory")),
            multiprocessors=attribute("MULTIPROCESSOR_COUNT"),
            block_threads=attribute("MAX_THREADS_PER_BLOCK"),
            shared_bytes=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            l2_bytes=attribute("L2_CACHE_SIZE"),
            driver=int(self._ask(cu.cuDriverGetVersion(), "to read the driver's version")),
        )

    # --- faults

    def _ask(self, answer: tuple[Any, ...], what: str) -> Any:
        """The value of a call; an error in one sentence where it failed."""
        if int(answer[0]):
            self._fail(answer[0], what)
        return answer[1] if len(answer) > 1 else None

    def _ask_for(self, call: Callable[[], tuple[Any, ...]], what: str) -> Any:
        """As `_ask`, for what takes memory of the GPU: where there is none, once more when there may be."""
        answer = call()
        if int(answer[0]) == _OUT_OF_MEMORY and self.holder is not None:
            self.holder.make_room()
            answer = call()
        return self._ask(answer, what)

    def _fail(self, code: Any, what: str) -> None:
        why = _meaning(self._cu, code)
        if int(code) == _OUT_OF_MEMORY:
            held = f": {self.holder.told()}" if self.holder is not None else ""
            raise OutOfMemory(f"{self.label} has no room {what}{held}")
        if int(code) not in _FATAL:
            raise DeviceError(f"{self.label} failed {what}: {why}")
        names = ", ".join(dict.fromkeys(self._recent)) or "a kernel"
        self.lost = (
            f"{self.label} is gone for this process: {why} in one of {names}; what was in its memory is "
            "lost, a new process can use it again, and other devices go on"
        )
        raise DeviceError(self.lost)

    def _forked(self) -> None:
        self.lost = f"{self.label} cannot be used in a forked process; start it with spawn instead"

    def _enter(self) -> None:
        """Makes the context current in this thread, unless it is."""
        if self.lost is not None:
            raise DeviceError(self.lost)
        if getattr(_thread, "driver", None) is self:
            return
        self._ask(self._cu.cuCtxSetCurrent(self._context), "to enter its context")
        _thread.driver = self

    def enter(self) -> None:
        """For callers who go back and forth between GPUs or libraries."""
        _thread.driver = None
        self._enter()

    def aside(self, work: Callable[[], object]) -> None:
        """Gives something back. Python finds what nobody holds in the middle of anything, also of work on
        another GPU, so the context that was current is current again afterwards."""
        if self.lost is not None:
            return
        before = getattr(_thread, "driver", None)
        self._enter()
        try:
            work()
        finally:
            if before is not None and before is not self and before.lost is None:
                before._enter()

    # --- memory

    def allocate(self, nbytes: int, managed: bool = False) -> int | None:
        self._enter()
        if managed:
            shared = self._cu.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL.value
            answer = self._cu.cuMemAllocManaged(nbytes, shared)
        else:
            answer = self._cu.cuMemAlloc(nbytes)
        if int(answer[0]) == _OUT_OF_MEMORY:
            return None
        return int(self._ask(answer, "to take memory"))

    def release(self, address: int) -> None:
        self.aside(lambda: self._ask(self._cu.cuMemFree(address), "to give memory back"))

    def room(self) -> tuple[int, int]:
        self._enter()
        answer = self._cu.cuMemGetInfo()
        self._ask(answer, "to ask for free memory")
        return int(answer[1]), int(answer[2])

    def pinned(self, nbytes: int) -> Array:
        self._enter()
        address = int(self._ask(self._cu.cuMemHostAlloc(nbytes, 0), "to take pinned host memory"))
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))

    def put(self, address: int, source: int, nbytes: int) -> None:
        self._enter()
        self._ask(self._cu.cuMemcpyHtoDAsync(address, source, nbytes, self._stream), "to copy from the host")

    def fetch(self, target: int, address: int, nbytes: int) -> None:
        self._enter()
        self._ask(self._cu.cuMemcpyDtoHAsync(target, address, nbytes, self._stream), "to copy to the host")

    def move(self, target: int, source: int, nbytes: int) -> None:
        self._enter()
        self._ask(self._cu.cuMemcpyDtoDAsync(target, source, nbytes, self._stream), "to copy")

    def move_from(self, target: int, other: NvidiaDriver, source: int, nbytes: int) -> None:
        """Waits for the other GPU's work so far; the other's later work waits for the copy."""
        other.enter()
        before = other.event()
        other.record(before)
        self.enter()
        cu = self._cu
        self._ask(cu.cuStreamWaitEvent(self._stream, before.handle, 0), "to wait for another GPU")
        peer = cu.cuMemcpyPeerAsync(target, self._context, source, other._context, nbytes, self._stream)
        self._ask(peer, "to copy from another GPU")
        after = self.event()
        self.record(after)
        other.enter()
        other._ask(cu.cuStreamWaitEvent(other._stream, after.handle, 0), "to wait for another GPU")
        self.enter()

    def zero(self, address: int, nbytes: int) -> None:
        self._enter()
        self._ask(self._cu.cuMemsetD8Async(address, 0, nbytes, self._stream), "to clear memory")

    # --- waiting

    def event(self, timing: bool = False) -> Any:
        self._enter()
        flags = self._cu.CUevent_flags
        flag = flags.CU_EVENT_DEFAULT if timing else flags.CU_EVENT_DISABLE_TIMING
        handle = self._ask(self._cu.cuEventCreate(flag.value), "to make an event")
        # the driver keeps what is still needed of one that goes
        return _Owned(self, handle, self._cu.cuEventDestroy)

    def record(self, event: Any) -> None:
        self._enter()
        self._ask(self._cu.cuEventRecord(event.handle, self._stream), "to record an event")

    def wait(self, event: Any) -> None:
        self._enter()
        self._ask(self._cu.cuEventSynchronize(event.handle), "while it ran")

    def seconds(self, first: Any, last: Any) -> float:
        self.wait(last)
        elapsed = self._ask(self._cu.cuEventElapsedTime(first.handle, last.handle), "to read a time")
        return float(elapsed) * 1e-3

    def synchronize(self) -> None:
        self._enter()
        answer = self._cu.cuStreamSynchronize(self._stream)
        if int(answer[0]):
            self._fail(answer[0], "while it ran")
        self._recent.clear()

    # --- kernels

    def load(self, code: bytes, name: str, shared: int, title: str = "") -> Function:
        self._enter()
        cu, shown = self._cu, title or name
        module = self._ask_for(lambda: cu.cuModuleLoadData(code), f"to load the kernel {shown}")
        handle = self._ask(cu.cuModuleGetFunction(module, name.encode()), f"to find the kernel {shown}")
        if shared > 48 << 10:
            key = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._ask(cu.cuFuncSetAttribute(handle, key, shared), f"to give {shown} {shared} bytes to share")
        return Function(shown, _Owned(self, module, self.unload), handle, shared)

    def unload(self, module: Any) -> None:
        """Code that nobody holds any more. Work that uses it may be under way, so that ends first."""
        self._cu.cuStreamSynchronize(self._stream)
        self._cu.cuModuleUnload(module)

    def tensor_map(self, address: int, dtype: str, box: Box) -> bytes:
        key = (address, dtype, box)
        found = self._tensor_maps.get(key)
        if found is None:
            found = self._tensor_maps[key] = self._tensor_map(address, dtype, box)
        return found

    def _tensor_map(self, address: int, dtype: str, box: Box) -> bytes:
        self._enter()
        answer = encode(self._cu, address, dtype, box)
        made = self._ask(answer, f"to describe a buffer of {dtype} with {box.sizes} elements")
        return ctypes.string_at(made.getPtr(), 128)

    def launch(self, step: Launch) -> None:
        self._enter()
        function, grid, block, arguments = step
        self._recent.append(function.name)
        size, stream = function.shared, self._stream
        start = partial(self._cu.cuLaunchKernel, function.handle, *grid, *block, size, stream, arguments, 0)
        self._ask_for(start, _starting(step))

    def prepared(self, step: Launch) -> Callable[[], None]:
        """`launch` of one step, with all that can be done before done before."""
        function, grid, block, arguments = step
        size, stream = function.shared, self._stream
        start = partial(self._cu.cuLaunchKernel, function.handle, *grid, *block, size, stream, arguments, 0)
        recent = self._recent.append

        def launch() -> None:
            if self.lost is not None or getattr(_thread, "driver", None) is not self:
                self._enter()
            recent(function.name)
            answer = start()
            if answer[0]:
                self._ask_for(start, _starting(step))

        return launch

    def graph(self, steps: Sequence[Launch]) -> Any:
        self._enter()
        cu = self._cu
        graph = self._ask(cu.cuGraphCreate(0), "to make a graph")
        nodes: list[Any] = []
        for step in steps:
            added = cu.cuGraphAddKernelNode(graph, None, 0, self._node(step))
            nodes.append(self._ask(added, f"to add {step[0].name} to a graph"))
        if len(nodes) > 1:
            edges = self._edges(len(nodes) - 1)
            added = cu.cuGraphAddDependencies(graph, nodes[:-1], nodes[1:], edges, len(nodes) - 1)
            self._ask(added, "to put kernels of a graph in order")
        instance = self._ask_for(lambda: cu.cuGraphInstantiate(graph, 0), "to make a graph ready")
        return _Graph(self, graph, instance, nodes, [step[0] for step in steps])

    def _edges(self, count: int) -> list[Any] | None:
        """How kernels of a graph follow one another: None is one when the other has ended. Blocks of kernels
        that wait by themselves (`render/cuda/kernel.py`) are brought to the multiprocessors before that."""
        cu = self._cu
        if not knobs.EARLY_START.value or self.facts.capability < WAIT_THEMSELVES:
            return None
        edge = cu.CUgraphEdgeData()
        edge.from_port = cu.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC
        edge.type = cu.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC
        return [edge] * count

    def _node(self, step: Launch) -> Any:
        function, grid, block, arguments = step
        node = self._cu.CUDA_KERNEL_NODE_PARAMS()
        node.func = function.handle
        node.gridDimX, node.gridDimY, node.gridDimZ = grid
        node.blockDimX, node.blockDimY, node.blockDimZ = block
        node.sharedMemBytes = function.shared
        node.kernelParams = arguments
        return node

    def patch(self, graph: Any, number: int, step: Launch) -> None:
        self._enter()
        answer = self._cu.cuGraphExecKernelNodeSetParams(
            graph.instance, graph.nodes[number], self._node(step)
        )
        self._ask(answer, f"to give {step[0].name} other arguments")

    def capture(self, work: Callable[[], None]) -> Any:
        self._enter()
        cu = self._cu
        mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._ask(cu.cuStreamBeginCapture(self._stream, mode), "to record a graph")
        try:
            work()
        finally:
            answer = cu.cuStreamEndCapture(self._stream)
        graph = self._ask(answer, "to end the record of a graph")
        instance = self._ask_for(lambda: cu.cuGraphInstantiate(graph, 0), "to make a graph ready")
        return _Graph(self, graph, instance, [], [])

    def replay(self, graph: Any) -> None:
        self._enter()
        self._recent.append(graph.label)
        self._ask_for(partial(self._cu.cuGraphLaunch, graph.instance, self._stream), "to start a graph")


@final
class _Owned:
    """Something of the driver's that is given back when nobody holds it any more."""

    __slots__ = ("_driver", "_give_back", "handle")

    def __init__(self, driver: NvidiaDriver, handle: Any, give_back: Callable[[Any], object]) -> None:
        self._driver = driver
        self._give_back = give_back
        self.handle = handle

    def __del__(self) -> None:
        try:
            self._driver.aside(partial(self._give_back, self.handle))
        except Exception:  # the process is ending, or the device is gone
            return


@final
class _Graph:
    """A graph that is ready to be launched."""

    __slots__ = ("_held", "functions", "instance", "label", "nodes")

    def __init__(self, driver: NvidiaDriver, graph: Any, instance: Any, nodes: Any, functions: Any) -> None:
        cu = driver._cu
        self._held = _Owned(driver, instance, cu.cuGraphExecDestroy), _Owned(driver, graph, cu.cuGraphDestroy)
        self.instance = instance
        self.nodes = nodes
        self.functions = functions  # kept alive
        self.label = ", ".join(dict.fromkeys(f.name for f in functions))


def _starting(step: Launch) -> str:
    function, grid, block, _ = step
    return f"to start {function.name} with {grid} blocks of {block} threads"


def open_driver(number: int, label: str) -> Driver:
    """The GPU of a number."""
    return NvidiaDriver(number, label)
