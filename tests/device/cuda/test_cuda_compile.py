"""CUDA C to machine code: NVIDIA's compiler where it is installed, and what is said where it is not."""

import threading
import time
from types import SimpleNamespace

import pytest

from morok.device.cuda import compile
from morok.device.cuda.compile import compile_cubin
from morok.errors import CompileError, DeviceError


def test_nvrtc_compiles_without_a_gpu() -> None:
    pytest.importorskip("cuda.core")
    code = compile_cubin('extern "C" __global__ void k(float* a) { a[threadIdx.x] = 1.0f; }', "sm_90a")
    assert code[:4] == b"\x7fELF"


def test_nvrtc_refuses() -> None:
    pytest.importorskip("cuda.core")
    with pytest.raises(CompileError) as caught:
        compile_cubin('extern "C" __global__ void k(float* a) { a[0] = wrong; }', "sm_90a", "softmax")
    text = str(caught.value)
    assert text.startswith("NVRTC refuses the kernel softmax for sm_90a: ")
    assert 'identifier "wrong" is undefined' in text
    assert text.count("\n") < 8
    assert text.replace("\n", "").isprintable()


def test_an_architecture_that_nvrtc_does_not_know() -> None:
    """Not the kernel's fault, and it does not look like it."""
    pytest.importorskip("cuda.core")
    with pytest.raises(DeviceError, match=r"^the installed NVRTC makes no code for sm_20: "):
        compile_cubin('extern "C" __global__ void k(float* a) { a[0] = 1.0f; }', "sm_20", "softmax")


class DynamicLibNotFoundError(RuntimeError):
    """As NVIDIA's loader has it."""


@pytest.mark.parametrize(
    "error",
    [
        DynamicLibNotFoundError('Failure finding "libnvrtc.so.13": No such file: libnvrtc.so.13\n'),
        RuntimeError("Failed to dlopen libnvrtc.so.13"),
        ImportError("libnvrtc.so.13: cannot open shared object file"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_no_nvrtc(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def program(*rest: object) -> None:
        raise error

    core = SimpleNamespace(Program=program, ProgramOptions=lambda **rest: None)
    monkeypatch.setattr(compile, "_core", lambda: core)
    with pytest.raises(DeviceError, match=r"^CUDA needs NVIDIA's compiler NVRTC, which is not installed: "):
        compile_cubin("", "sm_90a")


def test_one_thread_at_a_time_imports_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that began at once found half of it: a few of 20,000 random programs on a GPU failed by that."""
    busy: list[int] = []
    seen: list[int] = []

    def load() -> object:
        busy.append(1)
        seen.append(len(busy))
        time.sleep(0.02)
        busy.pop()
        return object()

    monkeypatch.setattr(compile._Package, "load", staticmethod(load))
    package = compile._Package()
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(package())) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert seen == [1] and len(set(map(id, found))) == 1 and len(found) == 4
