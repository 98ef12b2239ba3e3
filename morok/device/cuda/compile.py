"""CUDA C → machine code of a GPU, through NVIDIA's run-time compiler. Needs no GPU and no driver."""

from __future__ import annotations

from threading import Lock
from typing import Any, final

from morok.device.cuda.driver import INSTALL
from morok.errors import CompileError, DeviceError
from morok.forks import renewed

_FIRST_LINES = 6  # of the compiler's complaints


@final
class _Package:
    """cuda-core, imported by one thread at a time: while it is loading, another one finds half of it."""

    def __init__(self) -> None:
        self.lock = renewed(self, "lock", Lock)
        self.found: list[Any] = []

    def __call__(self) -> Any:
        if not self.found:
            with self.lock:
                self.found = self.found or [self.load()]
        return self.found[0]

    @staticmethod
    def load() -> Any:
        try:
            from cuda import core
        except ImportError:
            raise DeviceError(
                f"CUDA needs the package cuda-core, which is not installed: {INSTALL}"
            ) from None
        if not hasattr(core, "Program"):  # early releases kept everything a room further down
            from cuda.core import experimental as core
        return core


_core = _Package()


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


_PTX_OPTIONS = ("-std=c++17", "-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true", "-lineinfo")


def compile_ptx(text: str, arch: str, title: str = "") -> str:
    """The assembly of a kernel, with the lines of its text noted in it; for people.

    The compiler is called by itself: the package around it asks the driver before it makes assembly.
    """
    try:
        from cuda.bindings import nvrtc

        _, program = nvrtc.nvrtcCreateProgram(text.encode(), b"kernel.cu", 0, [], [])
    except Exception as error:
        if isinstance(error, ImportError) or _is_missing(error):
            missing = "CUDA needs NVIDIA's compiler NVRTC, which is not installed"
            raise DeviceError(f"{missing}: {INSTALL}") from None
        raise
    asked = [f"-arch={arch.replace('sm_', 'compute_')}", *_PTX_OPTIONS]
    try:
        (done,) = nvrtc.nvrtcCompileProgram(program, len(asked), [option.encode() for option in asked])
        if int(done):
            _, size = nvrtc.nvrtcGetProgramLogSize(program)
            log = b" " * size
            nvrtc.nvrtcGetProgramLog(program, log)
            raise CompileError(f"NVRTC refuses the kernel {title} for {arch}: {_complaints(log.decode())}")
        _, size = nvrtc.nvrtcGetPTXSize(program)
        made = b" " * size
        nvrtc.nvrtcGetPTX(program, made)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return bytes(made).rstrip(b"\0").decode()


def _compile(text: str, arch: str, title: str, kind: str) -> bytes:
    core = _core()
    try:
        program = core.Program(text, "c++", core.ProgramOptions(arch=arch, **options()))
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
