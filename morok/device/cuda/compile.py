"""CUDA C → machine code of a GPU, through NVIDIA's run-time compiler. Needs no GPU and no driver."""

from __future__ import annotations

from functools import cache
from typing import Any

from morok.device.cuda.driver import INSTALL
from morok.errors import CompileError, DeviceError

_FIRST_LINES = 6  # of the compiler's complaints


@cache
def _core() -> Any:
    try:
        from cuda import core
    except ImportError:
        raise DeviceError(f"CUDA needs the package cuda-core, which is not installed: {INSTALL}") from None
    if not hasattr(core, "Program"):  # early releases kept everything a room further down
        from cuda.core import experimental as core
    return core


def options() -> dict[str, Any]:
    """What every kernel is compiled with. Nothing that changes a result: no contraction, no fast division."""
    return {
        "std": "c++17",
        "fma": False,
        "ftz": False,
        "prec_div": True,
        "prec_sqrt": True,
    }


def compile_cubin(text: str, arch: str, title: str = "") -> bytes:
    """The machine code of a kernel; a CompileError with the first complaints where the compiler refuses."""
    return _compile(text, arch, title, "cubin")


def compile_ptx(text: str, arch: str, title: str = "") -> str:
    """The assembly of a kernel, with the lines of its text noted in it; for people."""
    return _compile(text, arch, title, "ptx", lineinfo=True).decode()


def _compile(text: str, arch: str, title: str, kind: str, **more: Any) -> bytes:
    core = _core()
    try:
        program = core.Program(text, "c++", core.ProgramOptions(arch=arch, **options(), **more))
        code = program.compile(kind).code
    except Exception as error:  # the type differs from version to version
        if _is_missing(error):
            raise DeviceError(
                f"CUDA needs NVIDIA's compiler NVRTC, which is not installed: {INSTALL}"
            ) from None
        if "NVRTC" not in type(error).__name__ and "NVRTC" not in str(error):
            raise
        if "gpu-architecture" in str(error):
            raise DeviceError(
                f"the installed NVRTC makes no code for {arch}: that GPU is too old for it, or too new"
            ) from None
        raise CompileError(
            f"NVRTC refuses the kernel {title} for {arch}: {_complaints(str(error))}"
        ) from None
    return bytes(code)


def _is_missing(error: Exception) -> bool:
    """Whether the compiler's library was not found, in the words of any version of the loader."""
    found = isinstance(error, (ImportError, OSError)) or "NotFound" in type(error).__name__
    return found or "libnvrtc" in str(error)


def _complaints(log: str) -> str:
    lines = [line.rstrip() for line in log.replace("\0", "").splitlines() if line.strip()]
    first = next((i for i, line in enumerate(lines) if "error" in line.lower() and "(" in line), 0)
    return "\n  ".join(lines[first : first + _FIRST_LINES])
