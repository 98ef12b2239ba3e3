"""The rows of `gpu.py`: what is computed, in everybody's words, and what it costs at least."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


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
    return [*_memory_bound(), *_products()]


def _memory_bound() -> list[Work]:
    """What a copy's speed limits."""
    n = 1 << 26
    return [
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


def _products() -> list[Work]:
    """What the rate of multiplications limits."""
    found: list[Work] = []
    bound = {"float16": 2e-3, "bfloat16": 1e-2}
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
