"""What a GPU can do at most: copies and multiply-adds in registers, measured; matrix units by their rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from morok.device.compiled import Compiled
from morok.device.cpu.limits import Limits
from morok.device.cuda.kernel import CudaKernel
from morok.dtype import float32

if TYPE_CHECKING:
    from morok.device.cuda.device import Cuda
    from morok.machine.machine import Machine

NOMINAL = 1.7e9  # clocks per second where nothing can be measured
_LANES = 128  # multiply-adds of a multiprocessor per clock
_COPIED = 1 << 28  # bytes
_STEPS, _BLOCKS, _THREADS = 2048, 8, 256
_PEAK = """\
extern "C" __global__ void peak(float* __restrict__ out) {
  float x = out[0], y = out[1];
  float a = x, b = y, c = x + 1, d = y + 1, e = x + 2, f = y + 2, g = x + 3, h = y + 3;
  for (int i = 0; i < %d; i++) {
    a = __fmaf_rn(a, x, y); b = __fmaf_rn(b, x, y); c = __fmaf_rn(c, x, y); d = __fmaf_rn(d, x, y);
    e = __fmaf_rn(e, x, y); f = __fmaf_rn(f, x, y); g = __fmaf_rn(g, x, y); h = __fmaf_rn(h, x, y);
  }
  out[2 + blockIdx.x * blockDim.x + threadIdx.x] = a + b + c + d + e + f + g + h;
}
"""


def described_limits(machine: Machine, clock: float = NOMINAL) -> Limits:
    """What the machine's file says, at some clock."""
    grid, products = machine.grid, machine.products
    copy = grid.memory * machine.cores * clock if grid is not None else 100e9
    return Limits(
        2.0 * _LANES * machine.cores * clock, copy, machine.cores, (), clock, units(machine, clock), False
    ) if products is not None else Limits(1e11, copy, machine.cores, (), clock, (), False)  # fmt: skip


def units(machine: Machine, clock: float) -> tuple[tuple[str, float], ...]:
    """Operations per second of matrix units, by the type that they multiply."""
    if machine.products is None:
        return ()
    rate = 2.0 * machine.products.unit_rate * machine.cores * clock
    kinds = {unit.inputs.name: unit.inputs.itemsize for unit in machine.matrix_units}
    return tuple(sorted((name, rate / size) for name, size in kinds.items()))


def measure_limits(device: Cuda) -> Limits:
    """Measured on the GPU, the best of some repeats."""
    machine = device.machine
    source, target = device.buffer(_COPIED // 4, float32), device.buffer(_COPIED // 4, float32)
    moved = min(device.measure(lambda: target.copy_from(source)) for _ in range(8))
    blocks = _BLOCKS * machine.cores
    out = device.buffer(2 + blocks * _THREADS, float32)
    code = device.compile_text(_PEAK % _STEPS, "peak")
    kernel = CudaKernel(
        Compiled("peak", code, 1, grid=((blocks,),), block=(_THREADS,)), "peak", device.driver
    )
    best = min(device.measure(lambda: kernel([out], {})) for _ in range(8))
    flops = 16.0 * _STEPS * blocks * _THREADS / best
    clock = flops / (2.0 * _LANES * machine.cores)
    return Limits(flops, 2.0 * _COPIED / moved, machine.cores, (), clock, units(machine, clock))
