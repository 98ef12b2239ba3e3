"""The speed of compiled code on an NVIDIA GPU: morok beside torch, torch.compile, JAX and tinygrad, if there.

Inputs are random. Before anything is timed, the output is filled with NaN, computed once more, and compared
with torch's in float64 by ‖out - want‖ / ‖want‖. Times are medians of device events around single calls;
JAX, tinygrad and calls shorter than a launch are timed by the host's clock, from call to completion.
Two ceilings are measured in the same run: a large copy, and the best matrix product of torch in each type.
With --kernels each row also tells what its kernels are like: registers, shared memory, spills, and how long
it took to make them, with nothing in any cache.

    python benchmarks/gpu.py [--only softmax,sum] [--seconds 1.0] [--no-compile] [--kernels] [--json FILE]
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Call = Callable[[], Any]
GB, TF = 1e9, 1e12


@dataclass(frozen=True)
class Work:
    """One row: what is computed, in morok's words and in torch's, and what it costs at least."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    morok: Callable[..., Any]
    torch: Callable[..., Any]  # the first argument is the module
    dtype: str = "float32"
    flops: float = 0.0
    bytes: float = 0.0
    error: float = 1e-5
    aim: float = 0.0  # in GB/s or TFLOP/s, whichever counts
    jax: Callable[..., Any] | None = None  # the first argument is jax.numpy, the second jax
    knobs: dict[str, Any] = field(default_factory=dict)
    fused: Callable[..., Any] | None = None  # torch's own kernel for the whole of it
    scale: float = 1.0
    exact: Callable[..., Any] | None = None  # what is right, in float64, where torch's own does not take it
    asked: dict[str, float] = field(default_factory=dict)  # of the speed of each, at least
    tinygrad: Callable[..., Any] | None = None  # where morok's words are not tinygrad's


def _norm(j: Any, a: Any) -> Any:
    centred = a - a.mean(-1, keepdims=True)
    return centred / j.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)


def _attention(a: Any, b: Any, c: Any) -> Any:
    return ((a @ b.transpose(-2, -1)) * 0.125).softmax(-1) @ c


@functools.cache
def _one(t: Any) -> Any:
    return t.ones((), device="cuda")


def _scaled(t: Any, a: Any, b: Any) -> Any:
    """a · bᵀ of 8-bit floats, added up as fast as the hardware can."""
    one = _one(t)
    return t._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=t.bfloat16, use_fast_accum=True)


def works() -> list[Work]:
    """The table."""
    found: list[Work] = []
    n = 1 << 26
    bound = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-5}
    found += [
        Work("gelu(x*y+z) 64M", ((n,),) * 3, lambda a, b, c: (a * b + c).gelu(approximate="tanh"),
             lambda t, a, b, c: t.nn.functional.gelu(a * b + c, approximate="tanh"), bytes=16.0 * n, aim=2700,
             jax=lambda j, x, a, b, c: x.nn.gelu(a * b + c),
             tinygrad=lambda a, b, c: (a * b + c).gelu()),
        Work("sum 64M", ((n,),), lambda a: a.sum(), lambda t, a: a.sum(), bytes=4.0 * n, aim=2700,
             error=1e-4, jax=lambda j, x, a: a.sum()),
        Work("sum over axis 0, 8192²", ((8192, 8192),), lambda a: a.sum(0), lambda t, a: a.sum(0),
             bytes=4.0 * n, aim=2700, jax=lambda j, x, a: a.sum(0)),
        Work("sum over axis 1, 8192²", ((8192, 8192),), lambda a: a.sum(1), lambda t, a: a.sum(1),
             bytes=4.0 * n, aim=2700, jax=lambda j, x, a: a.sum(1)),
        Work("softmax 8192²", ((8192, 8192),), lambda a: a.softmax(-1), lambda t, a: t.softmax(a, -1),
             bytes=8.0 * n, aim=2700, jax=lambda j, x, a: x.nn.softmax(a, axis=-1)),
        Work("layer norm 8192²", ((8192, 8192),), lambda a: a.layer_norm(-1),
             lambda t, a: t.nn.functional.layer_norm(a, a.shape[-1:]), bytes=8.0 * n, aim=2700,
             jax=lambda j, x, a: _norm(j, a), tinygrad=lambda a: a.layernorm(axis=-1)),
        Work("softmax f16 65536×1000", ((65536, 1000),), lambda a: a.softmax(-1),
             lambda t, a: t.softmax(a, -1), dtype="float16", bytes=4.0 * 65536 * 1000, error=2e-3),
        Work("softmax 512×131072", ((512, 131072),), lambda a: a.softmax(-1), lambda t, a: t.softmax(a, -1),
             bytes=8.0 * n),
        Work("transpose 8192²", ((8192, 8192),), lambda a: a.transpose(0, 1).contiguous(),
             lambda t, a: a.t().contiguous(), bytes=8.0 * n, jax=lambda j, x, a: j.transpose(a) + 0),
        Work("softmax 8192×50257", ((8192, 50257),), lambda a: a.softmax(-1), lambda t, a: t.softmax(a, -1),
             bytes=8.0 * 8192 * 50257),
        Work("rms norm bf16 65536×1024", ((65536, 1024), (1024,)),
             lambda a, w: a * (a * a).mean(-1, keepdim=True).rsqrt() * w,
             lambda t, a, w: a * (a * a).mean(-1, keepdim=True).rsqrt() * w, dtype="bfloat16",
             bytes=4.0 * n, error=2e-2),
        Work("sum of rows of 32, 2M×32", ((n // 32, 32),), lambda a: a.sum(1), lambda t, a: a.sum(1),
             bytes=4.0 * n),
        Work("sum of rows of 16, 4M×16", ((n // 16, 16),), lambda a: a.sum(1), lambda t, a: a.sum(1),
             bytes=4.0 * n),
        Work("batch mean 256×64×56²", ((256, 64, 56, 56),), lambda a: a.mean((0, 2, 3)),
             lambda t, a: a.mean((0, 2, 3)), bytes=4.0 * 256 * 64 * 3136),
        Work("scale and shift 256×64×56²", ((256, 64, 56, 56), (64, 1, 1), (64, 1, 1)),
             lambda a, b, c: (a * b + c).relu(), lambda t, a, b, c: t.relu(a * b + c),
             bytes=8.0 * 256 * 64 * 3136),
        Work("x+y of 12345679", ((12345679,),) * 2, lambda a, b: a + b, lambda t, a, b: a + b,
             bytes=12.0 * 12345679),
    ]  # fmt: skip
    for dtype in ("float16", "bfloat16"):
        found += [
            Work(f"matmul {dtype} {m}", ((m, m), (m, m)), lambda a, b: a @ b, lambda t, a, b: a @ b, dtype,
                 2.0 * m**3, error=bound[dtype], aim=300, jax=lambda j, x, a, b: a @ b,
                 asked={"torch": 0.9})
            for m in (4096, 8192)
        ]  # fmt: skip
    found += [
        Work("matmul float32 4096", ((4096, 4096),) * 2, lambda a, b: a @ b, lambda t, a, b: a @ b,
             flops=2.0 * 4096**3, aim=30),
        Work("matmul tf32 8192", ((8192, 8192),) * 2, lambda a, b: a @ b, lambda t, a, b: a @ b,
             flops=2.0 * 8192**3, error=2e-3, knobs={"TF32": True}, asked={"torch": 0.8}),
        Work("matmul fp8 e4m3 8192, b along the steps", ((8192, 8192),) * 2,
             lambda a, b: (a.cast("float32") @ b.cast("float32").transpose(0, 1)).cast("bfloat16"), _scaled,
             "float8_e4m3", 2.0 * 8192**3, error=5e-3, aim=900, knobs={"FAST_FP8": True},
             exact=lambda t, a, b: a @ b.t()),
        Work("linear+bias+gelu f16 8192×4096→16384", ((8192, 4096), (4096, 16384), (16384,)),
             lambda a, b, c: (a @ b + c).gelu(approximate="tanh"),
             lambda t, a, b, c: t.nn.functional.gelu(a @ b + c, approximate="tanh"), "float16",
             2.0 * 8192 * 4096 * 16384, error=3e-3, scale=0.1, asked={"torch": 1.05, "torch.compile": 1.0},
             tinygrad=lambda a, b, c: (a @ b + c).gelu()),
        Work("layer f16 8192×4096→16384, gelu with erf", ((8192, 4096), (16384, 4096), (16384,)),
             lambda a, b, c: (a @ b.transpose(0, 1) + c).gelu(),
             lambda t, a, b, c: t.nn.functional.gelu(t.nn.functional.linear(a, b, c)), "float16",
             2.0 * 8192 * 4096 * 16384, error=3e-3, scale=0.1, asked={"torch": 1.05, "torch.compile": 1.0}),
        Work("matmul f16 batched 64×1024³", ((64, 1024, 1024),) * 2, lambda a, b: a @ b,
             lambda t, a, b: a @ b, "float16", 2.0 * 64 * 1024**3, error=2e-3, asked={"torch": 0.75}),
        Work("matmul f16 4096×4096×4000", ((4096, 4000), (4000, 4096)), lambda a, b: a @ b,
             lambda t, a, b: a @ b, "float16", 2.0 * 4096 * 4096 * 4000, error=2e-3, asked={"torch": 0.75}),
        Work("matmul f16 8191×1000×777", ((8191, 777), (777, 1000)), lambda a, b: a @ b,
             lambda t, a, b: a @ b, "float16", 2.0 * 8191 * 1000 * 777, error=2e-3, asked={"torch": 0.75}),
        Work("matmul f16 16×8192×8192", ((16, 8192), (8192, 8192)), lambda a, b: a @ b, lambda t, a, b: a @ b,
             "float16", 2.0 * 16 * 8192 * 8192, 2.0 * (8192 * 8192 + 32 * 8192), error=2e-3,
             asked={"torch": 0.75}),
        Work("conv 3×3 f32 32×128×56²", ((32, 128, 56, 56), (128, 128, 3, 3)),
             lambda a, b: a.conv2d(b, padding=1), lambda t, a, b: t.nn.functional.conv2d(a, b, padding=1),
             flops=2.0 * 32 * 128 * 128 * 9 * 56 * 56, aim=15, error=1e-4),
        Work("attention f16 4×16×2048×64", ((4, 16, 2048, 64),) * 3, _attention,
             lambda t, a, b, c: _attention(a, b, c), "float16", 4.0 * 64 * 2048 * 2048 * 64, error=3e-3,
             aim=80,
             fused=lambda t, a, b, c: t.nn.functional.scaled_dot_product_attention(a, b, c)),
        Work("attention bf16 4×16×2048×128", ((4, 16, 2048, 128),) * 3,
             lambda a, b, c: a.scaled_dot_product_attention(b, c),
             lambda t, a, b, c: ((a @ b.transpose(-2, -1)) * 128**-0.5).softmax(-1) @ c, "bfloat16",
             4.0 * 64 * 2048 * 2048 * 128, error=1e-2,
             fused=lambda t, a, b, c: t.nn.functional.scaled_dot_product_attention(a, b, c)),
    ]  # fmt: skip
    return found


# --- who takes part


_TORCH_TYPES = {"float8_e4m3": "float8_e4m3fn"}  # where torch has another name


def peers(work: Work, compiled: bool) -> tuple[dict[str, Call], list[Any], Any]:
    """A function for each library that is there, morok first; morok's inputs; what is right."""
    import torch

    import morok
    from morok import knobs

    generator = torch.Generator(device="cuda").manual_seed(7)
    dtype = getattr(torch, _TORCH_TYPES.get(work.dtype, work.dtype))
    inputs = [
        (torch.randn(s, device="cuda", generator=generator) * work.scale).to(dtype) for s in work.shapes
    ]
    tensors = []
    for x in inputs:
        host = x.float().cpu().numpy()
        tensors.append(morok.Tensor(host, device="cuda").cast(work.dtype).realize())
        del host
    function = morok.jit(work.morok)

    def mine() -> Any:
        with knobs.override(**work.knobs):
            return function(*tensors)

    torch.backends.cuda.matmul.allow_tf32 = bool(work.knobs.get("TF32"))
    torch.backends.cudnn.allow_tf32 = bool(work.knobs.get("TF32"))
    found: dict[str, Call] = {"morok": mine, "torch": lambda: work.torch(torch, *inputs)}
    if compiled:
        torch._dynamo.reset()
        quick = torch.compile(lambda *xs: work.torch(torch, *xs), dynamic=False)
        found["torch.compile"] = lambda: quick(*inputs)
    if work.fused is not None:
        found["torch fused"] = lambda: work.fused(torch, *inputs)  # type: ignore[misc]
    if work.jax is not None and importlib.util.find_spec("jax"):
        try:
            found["jax"] = _jax(work, inputs)
        except Exception as error:
            print(f"{work.name}: jax - ({reason(error)})")
    if importlib.util.find_spec("tinygrad"):
        found["tinygrad"] = tinygrad_call(work, inputs)
    return found, tensors, _reference(work, inputs)


def _jax(work: Work, inputs: list[Any]) -> Call:
    import jax
    import jax.numpy as jnp

    assert work.jax is not None
    arrays = [jax.dlpack.from_dlpack(x.contiguous()) for x in inputs]
    function = jax.jit(lambda *xs: work.jax(jnp, jax, *xs))  # type: ignore[misc]
    return lambda: function(*arrays)


def tinygrad_call(work: Work, inputs: list[Any]) -> Call:
    """The row in tinygrad, replayed; it is compiled, and may fail, at the first call."""
    os.environ.setdefault("DEV", "CUDA")
    arrays: list[Any] = []
    found: list[Call] = []

    def call() -> Any:
        from tinygrad import Tensor, TinyJit, dtypes

        if not found:
            dtype = getattr(dtypes, {"float8_e4m3": "fp8e4m3"}.get(work.dtype, work.dtype))
            arrays.extend(Tensor(x.float().cpu().numpy()).cast(dtype).realize() for x in inputs)
            words = work.tinygrad or work.morok
            found.append(TinyJit(lambda *xs: words(*xs).realize()))
        return found[0](*arrays)

    return call


def tinygrad_waits() -> None:
    """Until everything that was asked of tinygrad is done."""
    from tinygrad import Device

    Device[Device.DEFAULT].synchronize()


def _reference(work: Work, inputs: list[Any]) -> Any:
    """The same in float64."""
    import torch

    return (work.exact or work.torch)(torch, *(x.double() for x in inputs))


def norm_error(got: Any, want: Any) -> float:
    """‖got - want‖ / ‖want‖, in float64."""
    import torch

    if not isinstance(got, torch.Tensor):
        got = torch.from_numpy(np.array(got.cast("float32").numpy())).cuda()
    difference = (got.double() - want.double()).norm() / want.double().norm().clamp_min(1e-300)
    return float(difference)


def memory_of(result: Any) -> Any:
    """The buffer that holds a result."""
    from morok.ir.memory import base_of
    from morok.runtime.plan import buffer_for

    return buffer_for(base_of(result.uop))


def poison(result: Any) -> int:
    """NaN, or another odd pattern, in every byte of a result's memory; and where that is."""
    buffer = memory_of(result)
    buffer.copy_in(np.full(buffer.nbytes, 0xFF, np.uint8))
    return int(buffer.memory) + int(buffer.offset)


# --- measuring


class Clock:
    """Medians of device events on the stream of whoever is measured."""

    def __init__(self, seconds: float) -> None:
        from morok.device.registry import get_device

        self.seconds = seconds
        self.device: Any = get_device("CUDA")

    def morok(self, call: Call) -> float:
        return self._median(lambda: self.device.measure(call))

    def torch(self, call: Call) -> float:
        import torch

        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

        def once() -> float:
            first.record()
            call()
            last.record()
            last.synchronize()
            return float(first.elapsed_time(last)) * 1e-3

        return self._median(once)

    def host(self, call: Call, finish: Call) -> float:
        """From call to completion, by the host's clock."""

        def once() -> float:
            started = time.perf_counter()
            call()
            finish()
            return time.perf_counter() - started

        return self._median(once, 2000)

    def _median(self, once: Callable[[], float], most: int = 200) -> float:
        for _ in range(3):
            once()
        times: list[float] = []
        end = time.perf_counter() + self.seconds
        while len(times) < most and (len(times) < 5 or time.perf_counter() < end):
            times.append(once())
        return sorted(times)[len(times) // 2]


def ceilings(clock: Clock) -> dict[str, float]:
    """Bytes per second of a copy, and operations per second of torch's best product, as measured now."""
    import torch

    a = torch.randn(1 << 28, device="cuda")
    b = torch.empty_like(a)
    found = {"copy": 2.0 * a.numel() * 4 / clock.torch(lambda: b.copy_(a))}
    for dtype, n in (("float16", 8192), ("bfloat16", 8192), ("float32", 4096)):
        torch.backends.cuda.matmul.allow_tf32 = False
        x = torch.randn(n, n, device="cuda").to(getattr(torch, dtype))
        y = torch.randn(n, n, device="cuda").to(getattr(torch, dtype))
        found[dtype] = 2.0 * n**3 / clock.torch(lambda x=x, y=y: x @ y)
    return found


def kernel_facts(work: Work, tensors: list[Any], device: Any) -> list[dict[str, Any]]:
    """The kernels of a row, made anew: seconds for lowering and for NVRTC; registers, memory, spills."""
    from cuda.bindings import driver as cu

    from morok import knobs
    from morok.device.cuda.compile import compile_cubin
    from morok.device.cuda.device import program_of

    names = cu.CUfunction_attribute
    asked = {
        "registers": names.CU_FUNC_ATTRIBUTE_NUM_REGS,
        "spilled bytes": names.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
        "static shared bytes": names.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
    }
    found = []
    with knobs.override(**work.knobs):
        for kernel in work.morok(*tensors).plan().kernels:
            started = time.perf_counter()
            program = program_of(kernel.ast, device.machine, kernel.name)
            lowered = time.perf_counter()
            code = compile_cubin(program.text, device.driver.facts.arch, kernel.name)
            compiled = time.perf_counter()
            function = device.driver.load(code, program.name, program.shared)
            row: dict[str, Any] = {"name": kernel.name, "threads": math.prod(program.block)}
            row |= {name: int(cu.cuFuncGetAttribute(key, function.handle)[1]) for name, key in asked.items()}
            row["shared bytes"] = program.shared + row.pop("static shared bytes")
            row |= {"lowering s": lowered - started, "nvrtc s": compiled - lowered}
            row["cold s"] = compiled - started
            found.append(row)
    return found


def measure(
    work: Work, clock: Clock, compiled: bool, limits: dict[str, float], kernels: bool = False
) -> dict[str, Any]:
    """One row: times, rate, error, ratios."""
    import torch

    functions, tensors, want = peers(work, compiled)
    row: dict[str, Any] = {"work": work.name}
    if kernels:
        row["kernels"] = kernel_facts(work, tensors, clock.device)
    started = time.perf_counter()
    functions["morok"]()
    clock.device.synchronize()
    row["first call s"] = time.perf_counter() - started
    result = functions["morok"]()
    where = poison(result)
    del result  # the next call gets the same memory
    result = functions["morok"]()
    buffer = memory_of(result)
    row["poisoned"] = int(buffer.memory) + int(buffer.offset) == where
    row["error"] = norm_error(result, want)
    row["right"] = bool(row["error"] <= work.error) and row["poisoned"]
    del result, want
    times = {}
    for name, call in functions.items():
        try:
            if name == "morok":
                times[name] = clock.morok(call)
            elif name == "jax":
                times[name] = clock.host(lambda call=call: call().block_until_ready(), lambda: None)
            elif name == "tinygrad":
                times[name] = clock.host(call, tinygrad_waits)
            else:
                times[name] = clock.torch(call)
        except Exception as error:  # not every library has every type
            if name in ("morok", "torch"):
                raise
            row[f"{name} failed"] = f"{type(error).__name__}: {error}"[:300]
    row["times"] = times
    amount, unit = (work.flops, TF) if work.flops else (work.bytes, GB)
    limit = limits.get(work.dtype, 0.0) if work.flops else limits["copy"]
    row["unit"] = "TF" if work.flops else "GB/s"
    row["rates"] = {name: amount / t / unit for name, t in times.items()}
    row["of limit"] = amount / times["morok"] / limit if limit else 0.0
    others = {k: t for k, t in times.items() if k not in ("morok", "torch fused")}
    row["ratio"] = min(others.values()) / times["morok"]
    row["aim"] = work.aim
    row["asked"] = {
        name: (least, times[name] / times["morok"]) for name, least in work.asked.items() if name in times
    }
    torch.cuda.empty_cache()
    return row


def tiny(clock: Clock) -> dict[str, Any]:
    """A replayed plan of one tiny kernel, and of ten in a row, from call to completion."""
    import torch

    import morok

    row: dict[str, Any] = {"work": "tiny"}
    x = morok.Tensor(np.ones(16, np.float32), device="cuda").realize()
    y = morok.Tensor(np.ones(16, np.float32), device="cuda").realize()
    one = morok.jit(lambda a, b: a + b)

    def many(a: Any, b: Any) -> Any:
        for _ in range(10):
            a = (a + b).contiguous()
        return a

    ten = morok.jit(many)
    for name, f in (("one", one), ("ten", ten)):
        for _ in range(3):
            f(x, y)
        row[f"morok {name} µs"] = clock.host(lambda f=f: f(x, y), clock.device.synchronize) * 1e6
    p, q = torch.ones(16, device="cuda"), torch.ones(16, device="cuda")
    row["torch one µs"] = clock.host(lambda: p + q, torch.cuda.synchronize) * 1e6
    return row


_START = """
import time
started = time.perf_counter()
from morok import Tensor
x = Tensor([[1.0, 2.0], [3.0, 4.0]], device="cuda")
value = (x @ x).softmax(-1).sum().item()
print(time.perf_counter() - started, value)
"""


def first_result() -> dict[str, Any]:
    """Seconds from import to first value in new processes, with an empty cache and with a full one."""
    row: dict[str, Any] = {"work": "first result of a process"}
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "MOROK_CACHE_DIR": cache}
        for name in ("cold s", "warm s", "warm again s"):
            done = subprocess.run(
                [sys.executable, "-c", _START], env=environment, capture_output=True, text=True, check=False
            )
            row[name] = float(done.stdout.split()[0]) if done.returncode == 0 else done.stderr[-300:]
    return row


def show(row: dict[str, Any]) -> str:
    rates = "  ".join(f"{name} {rate:7.1f}" for name, rate in row["rates"].items())
    mark = "ok " if row["right"] else "BAD"
    aim = (
        f" aim {row['aim']:.0f}{'' if row['rates']['morok'] >= row['aim'] else ' MISSED'}"
        if row["aim"]
        else ""
    )
    asked = "".join(
        f"  {ratio:.2f} of {name}, asked {least}{'' if ratio >= least else ' MISSED'}"
        for name, (least, ratio) in row["asked"].items()
    )
    line = (
        f"{mark} {row['work']:<38} {row['unit']:<4} {rates}  ratio {row['ratio']:.2f}"
        f"  {row['of limit']:.0%} of limit  err {row['error']:.0e}  first {row['first call s']:.1f}s"
        f"{aim}{asked}"
    )
    kernels = row.get("kernels", ())
    for k in kernels:
        line += (
            f"\n      kernel {k['name']}, one of {len(kernels)}: {k['threads']} threads, {k['registers']}"
            f" registers, {k['shared bytes']} B shared, {k['spilled bytes']} B spilled; lowering"
            f" {k['lowering s']:.2f} s, NVRTC {k['nvrtc s']:.2f} s, cold {k['cold s']:.2f} s"
        )
    return line


def _check() -> None:
    """What is missing is one sentence."""
    from morok.device.registry import get_device
    from morok.errors import MorokError

    try:
        get_device("CUDA")
    except MorokError as error:
        raise SystemExit(f"the GPU benchmark has nothing to measure: {error}") from None
    if not importlib.util.find_spec("torch"):
        raise SystemExit("the GPU benchmark needs torch to compare with")
    import torch

    if not torch.cuda.is_available():
        raise SystemExit(
            "the GPU benchmark needs a torch for CUDA; this one has none, or does not find the GPU"
        )


def reason(error: Exception) -> str:
    """What went wrong with a peer, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:100]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rows whose names contain one of these words")
    parser.add_argument("--seconds", type=float, default=0.3, help="time per library and row")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--kernels", action="store_true", help="what each row's kernels are like")
    parser.add_argument("--json", default="", help="where to write all figures")
    args = parser.parse_args()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    _check()
    wanted = [w for w in args.only.split(",") if w]
    clock = Clock(args.seconds)
    limits = ceilings(clock)
    shown = ", ".join(f"{k} {v / (GB if k == 'copy' else TF):.0f}" for k, v in limits.items())
    print(f"ceilings (GB/s and TFLOP/s): {shown}", flush=True)
    found: list[dict[str, Any]] = [{"work": "ceilings", **limits}]
    for extra in (lambda: tiny(clock), first_result):
        name = "tiny" if extra is not first_result else "first"
        if not wanted or any(w in name for w in wanted):
            row = extra()
            found.append(row)
            print(
                "    " + "  ".join(f"{k} {v:.2f}" if isinstance(v, float) else f"{v}" for k, v in row.items())
            )
    for work in works():
        if wanted and not any(w in work.name for w in wanted):
            continue
        try:
            row = measure(work, clock, not args.no_compile, limits, args.kernels)
            print(show(row), flush=True)
        except Exception as error:  # one row that fails must not hide the others
            row = {"work": work.name, "failed": f"{type(error).__name__}: {error}"[:300]}
            print(f"BAD {work.name:<38} {row['failed']}", flush=True)
        found.append(row)
        if args.json:
            with open(args.json, "w", encoding="utf-8") as file:
                json.dump(found, file, indent=1)
    rated = [r for r in found if "ratio" in r]
    if rated:
        mean = math.exp(sum(math.log(r["ratio"]) for r in rated) / len(rated))
        print(f"geometric mean of the ratios to the best peer: {mean:.2f} over {len(rated)} rows")


if __name__ == "__main__":
    main()
