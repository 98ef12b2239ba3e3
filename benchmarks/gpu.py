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
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from gpu_works import Work, works  # type: ignore[import-not-found]

Call = Callable[[], Any]
GB, TF = 1e9, 1e12


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
