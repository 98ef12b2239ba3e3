"""How the tests of GPUs run kernels: on the emulator, or on the GPU that the DEVICE knob names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from morok.codegen.pipeline import lower
from morok.device.buffer import Buffer
from morok.device.emulator.device import EmulatedKernel, Emulator
from morok.device.interpreter import run_kernel
from morok.device.registry import get_device
from morok.dtype import DType, PtrDType, float32, int32, uint8, void
from morok.errors import DeviceError
from morok.ir.build import define_global, special
from morok.ir.node import UOp, const, make, toposort
from morok.ir.ops import Ops
from morok.machine.files import load
from tests.devices import devices

if TYPE_CHECKING:
    from morok.proof.kernels.safety import Findings

TARGET = load("emulator")
HOST = TARGET
DEVICE = next((d for d in devices("EMULATOR") if d.startswith(("CUDA", "EMULATOR"))), "EMULATOR")
_emulator = Emulator()


def buffer_dtypes(ast: UOp) -> dict[int, DType]:
    found = {}
    for node in toposort(ast):
        if node.op is Ops.DEFINE_GLOBAL:
            assert isinstance(node.dtype, PtrDType)
            found[node.arg] = node.dtype.elem
    return found


def run(ast: UOp, arrays: Sequence[Any], values: Mapping[str, int] | None = None) -> list[Any]:
    """All buffers after a run of a kernel; the arrays are left alone."""
    device = get_device(DEVICE)
    program = device.compile(ast, "test")
    dtypes = buffer_dtypes(ast)
    held = []
    for i, a in enumerate(arrays):
        held.append(device.buffer(a.size, dtypes[i]) if i in dtypes else device.buffer(a.nbytes, uint8))
        held[-1].copy_in(a)
    program(held, values or {})
    device.synchronize()
    return [b.copy_out() for b in held]


def interpret(ast: UOp, arrays: Sequence[Any], values: Mapping[str, int] | None = None) -> list[Any]:
    """The same on the interpreter."""
    copies = [a.copy() for a in arrays]
    run_kernel(ast, copies, values)
    return copies


def check(
    ast: UOp, arrays: Sequence[Any], values: Mapping[str, int] | None = None, reference: UOp | None = None
) -> None:
    """The kernel does what the interpreter says of it, or of `reference`."""
    same(run(ast, arrays, values), interpret(ast if reference is None else reference, arrays, values))


def same(got: Sequence[Any], want: Sequence[Any], tolerance: float = 1e-4) -> None:
    for a, b in zip(got, want, strict=True):
        if a.dtype.kind in "fV":
            wide = a.astype(np.float64), b.astype(np.float64)
            np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(a, b)


def ops_of(ast: UOp) -> list[Any]:
    """The ops of a kernel's list, as a GPU gets it."""
    return [n.op for n in lower(ast, TARGET).src]


# --- lists written by hand, for the emulator alone


def linear(*instructions: UOp) -> UOp:
    """A list out of its last instructions: what they need comes before them."""
    return make(Ops.LINEAR, void, tuple(toposort(*instructions)))


def emulate(
    program: UOp, *arrays: Any, fresh: Sequence[int] = (), values: Mapping[str, int] | None = None
) -> list[Any]:
    """Runs a list on arrays; the buffers numbered in `fresh` have never been written."""
    dtypes = buffer_dtypes(program)
    held: list[Buffer] = []
    for i, a in enumerate(arrays):
        held.append(_emulator.buffer(a.size, dtypes.get(i, float32)))
        if i not in fresh:
            held[-1].copy_in(a)
    EmulatedKernel(program, "test")(held, values or {})
    return [b.copy_out() for b in held]


def lidx(threads: int, number: int = 0) -> UOp:
    return special(f"lidx{number}", const(int32, threads))


def gidx(blocks: int, number: int = 0) -> UOp:
    return special(f"gidx{number}", const(int32, blocks))


def pointer(memory: UOp, where: UOp | int, gate: UOp | None = None, lanes: int = 1) -> UOp:
    dtype = memory.dtype
    assert isinstance(dtype, PtrDType)
    place = where if isinstance(where, UOp) else const(int32, where)
    kind = dtype if lanes == 1 else dtype.elem.vec(lanes).ptr(dtype.size, dtype.space)
    return make(Ops.INDEX, kind, (memory, place) if gate is None else (memory, place, gate))


def load(memory: UOp, where: UOp | int, gate: UOp | None = None, lanes: int = 1) -> UOp:
    address = pointer(memory, where, gate, lanes)
    assert isinstance(address.dtype, PtrDType)
    dtype = address.dtype.elem
    return make(Ops.LOAD, dtype, (address,) if gate is None else (address, const(dtype, 0)))


def store(memory: UOp, where: UOp | int, value: UOp, gate: UOp | None = None) -> UOp:
    return make(Ops.STORE, void, (pointer(memory, where, gate, value.dtype.lanes), value))


def buffer(size: int, number: int = 0, dtype: DType = float32) -> UOp:
    return define_global(dtype, size, number)


def cubin(text: str, arch: str = "sm_90a") -> bytes:
    """CUDA C as machine code; the test is skipped, with the reason, where NVRTC is not installed."""
    from morok.device.cuda.compile import compile_cubin

    try:
        return compile_cubin(text, arch, "test")
    except DeviceError as missing:
        pytest.skip(str(missing))


def examine(linear: UOp, kernel: UOp) -> Findings:
    """What has to be shown about a list of instructions; the test is skipped where there is no solver."""
    pytest.importorskip("z3", reason="proofs need Z3, which is the package z3-solver")
    from morok.proof.kernels import safety

    return safety.examine(linear, kernel)
