"""More programs of real models for the table of `test_no_cliffs.py`: what each must have follows from its
lines. A row is (what it makes, products for units, most kernels, tiles without units)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from morok import Tensor
from tests.optimize.plans import empty

Results = Sequence[Tensor]
Made = tuple[Callable[[], Results], int, int, int]


def x(*shape: int, dtype: str = "bfloat16") -> Tensor:
    return empty(*shape, dtype=dtype)


def linear(m: int = 4096, k: int = 1024, n: int = 4096, dtype: str = "bfloat16") -> Tensor:
    return x(m, k, dtype=dtype).linear(x(n, k, dtype=dtype), x(n, dtype=dtype))


def grads(y: Tensor, *targets: Tensor) -> Results:
    return y.gradient(*targets, gradient=empty(*map(int, y.shape), dtype=str(y.dtype)))


def activations() -> dict[str, Made]:
    """After a linear layer: one kernel, on a unit."""
    names = ("relu", "silu", "tanh", "sigmoid", "leaky_relu", "softplus", "hardswish", "elu", "exp", "abs",
             "square", "mish")  # fmt: skip
    return {f"linear, {name}": ((lambda name=name: (getattr(linear(), name)(),)), 1, 1, 0) for name in names}


def epilogues() -> dict[str, Made]:
    return {
        "linear without bias": (lambda: (x(4096, 1024).linear(x(4096, 1024)),), 1, 1, 0),
        "scale per row": (lambda: (linear() * x(4096, 1),), 1, 1, 0),
        "bias per row": (lambda: (linear() + x(4096, 1),), 1, 1, 0),
        "two residuals": (lambda: (linear() + x(4096, 4096) + x(4096, 4096),), 1, 1, 0),
        "clamped": (lambda: (linear().clamp(-1.0, 1.0),), 1, 1, 0),
        "times a gate": (lambda: (linear() * x(4096, 4096).sigmoid(),), 1, 1, 0),
        "halved": (lambda: (linear() * 0.5,), 1, 1, 0),
        "minus its target, squared": (lambda: ((linear() - x(4096, 4096)).square(),), 1, 1, 0),
        "where a mask holds": (
            lambda: (x(4096, 4096, dtype="bool").where(linear(), 0.0),), 1, 1, 0,
        ),
        "float16, gelu": (lambda: (linear(dtype="float16").gelu(),), 1, 1, 0),
        "float16 into float32": (lambda: (linear(dtype="float16").cast("float32"),), 1, 1, 0),
        "scale per row and column": (lambda: (linear() * x(4096, 1) * x(4096),), 1, 1, 0),
        "float32, relu": (lambda: (linear(dtype="float32").relu(),), 0, 2, 1),
        "float32, residual": (lambda: (linear(dtype="float32") + x(4096, 4096, dtype="float32"),), 0, 2, 1),
        "float32, odd sizes": (
            lambda: (x(999, 1003, dtype="float32") @ x(1003, 1001, dtype="float32"),), 0, 1, 1,
        ),
    }  # fmt: skip


def orders() -> dict[str, Made]:
    """However operands lie in memory."""

    def product(left: bool, right: bool, dtype: str) -> Results:
        a, b = x(2048, 2048, dtype=dtype), x(2048, 2048, dtype=dtype)
        return ((a.T if left else a) @ (b.T if right else b),)

    found: dict[str, Made] = {}
    for dtype in ("bfloat16", "float16"):
        for left in (False, True):
            for right in (False, True):
                name = f"{dtype} {'Aᵀ' if left else 'A'} {'Bᵀ' if right else 'B'}"
                found[name] = ((lambda l=left, r=right, d=dtype: product(l, r, d)), 1, 1, 0)
    return found


def sizes() -> dict[str, Made]:
    def square(m: int, k: int, n: int) -> Results:
        return (x(m, k) @ x(k, n),)

    given = (
        (5000, 5000, 5000),
        (64, 4096, 4096),
        (128, 4096, 11008),
        (65536, 64, 64),
        (4096, 64, 4096),
        (256, 8192, 256),
        (3072, 5120, 1536),
        (1000, 1000, 1000),
        (8192, 80, 320),
        (2047, 2049, 2051),
    )
    return {
        f"{m}×{k}×{n}": ((lambda m=m, k=k, n=n: square(m, k, n)), 1, 2, 0) for m, k, n in given
    }  # fmt: skip


def batches() -> dict[str, Made]:
    return {
        "einsum of heads": (
            lambda: (Tensor.einsum("bhid,bhjd->bhij", x(8, 16, 512, 64), x(8, 16, 512, 64)),), 1, 1, 0,
        ),
        "one matrix for all": (lambda: (x(16, 512, 768) @ x(768, 768),), 1, 1, 0),
        "packed projection": (
            lambda: (x(8, 1024, 768).linear(x(2304, 768)).reshape(8, 1024, 3, 12, 64),), 1, 1, 0,
        ),
        "out of heads": (
            lambda: (x(8, 12, 1024, 64).transpose(1, 2).reshape(8, 1024, 768).linear(x(768, 768)),), 1, 2, 0,
        ),
        "pairs of rows": (lambda: (x(512, 27, 64) @ x(512, 27, 64).transpose(1, 2),), 0, 1, 0),
        "outer product": (lambda: (x(4096, 1) @ x(1, 4096),), 0, 1, 0),
        "experts": (lambda: (x(8, 512, 1024) @ x(8, 1024, 4096),), 1, 1, 0),
    }  # fmt: skip


def convolutions() -> dict[str, Made]:
    image = (32, 64, 56, 56)
    return {
        "conv 7×7, stride 2": (
            lambda: (x(32, 16, 112, 112).conv2d(x(64, 16, 7, 7), stride=2, padding=3),), 1, 3, 0,
        ),
        "conv 5×5": (lambda: (x(*image).conv2d(x(64, 64, 5, 5), padding=2),), 1, 3, 0),
        "conv 1×1, stride 2": (lambda: (x(*image).conv2d(x(128, 64, 1, 1), stride=2),), 1, 1, 0),
        "conv, bias, relu": (
            lambda: (x(*image).conv2d(x(64, 64, 3, 3), x(64), padding=1).relu(),), 1, 3, 0,
        ),
        "conv, residual, relu": (
            lambda: ((x(*image).conv2d(x(64, 64, 3, 3), padding=1) + x(*image)).relu(),), 1, 3, 0,
        ),
        "conv, dilated": (
            lambda: (x(*image).conv2d(x(64, 64, 3, 3), padding=2, dilation=2),), 1, 3, 0,
        ),
        "conv, silu": (lambda: (x(*image).conv2d(x(64, 64, 3, 3), padding=1).silu(),), 1, 3, 0),
        "conv of patches": (lambda: (x(64, 3, 224, 224).conv2d(x(384, 3, 16, 16), stride=16),), 1, 1, 0),
        "conv 1×1 of 7×7": (lambda: (x(64, 512, 7, 7).conv2d(x(2048, 512, 1, 1)),), 1, 1, 0),
        "conv 3×3, stride 2, to 7×7": (
            lambda: (x(40, 1024, 14, 14).conv2d(x(1024, 1024, 3, 3), stride=2, padding=1),), 1, 3, 0,
        ),
        "conv 3×3, stride 2, to 7×7, training": (lambda: strided_training(40, 1024, 14, 3), 2, 9, 0),
        "conv 1×1, stride 2, training": (lambda: strided_training(40, 256, 56, 1), 2, 9, 0),
        "conv 1×1, stride 2, to 14×14, training": (lambda: strided_training(32, 512, 28, 1), 2, 9, 0),
        "products that are looked up": (
            lambda: ((x(96, 256, 64) @ x(96, 64, 128)).gather(-1, x(96, 256, 256, dtype="int64")),), 1, 2, 0,
        ),
        "conv along time": (lambda: (x(4, 512, 3000).conv1d(x(512, 512, 3), padding=1),), 1, 3, 0),
        "batch norm of inference": (
            lambda: (
                (x(*image).conv2d(x(64, 64, 3, 3), padding=1) * x(1, 64, 1, 1) + x(1, 64, 1, 1)).relu(),
            ), 1, 3, 0,
        ),
        "float16 conv": (
            lambda: (x(*image, dtype="float16").conv2d(x(64, 64, 3, 3, dtype="float16"), padding=1),),
            1, 3, 0,
        ),
    }  # fmt: skip


def strided_training(images: int, channels: int, size: int, window: int) -> Results:
    a, w = x(images, channels, size, size), x(channels, channels, window, window)
    return grads(a.conv2d(w, stride=2, padding=window // 2), a, w)


def linear_training(act: str = "", dtype: str = "bfloat16") -> Results:
    a, w, b = x(4096, 1024, dtype=dtype), x(1024, 1024, dtype=dtype), x(1024, dtype=dtype)
    y = a.linear(w, b)
    return grads(getattr(y, act)() if act else y, a, w, b)


def gated_training() -> Results:
    a, g, u = x(4096, 1024), x(2048, 1024), x(2048, 1024)
    return grads(a.linear(g).silu() * a.linear(u), a, g, u)


def residual_training() -> Results:
    a, w = x(4096, 1024), x(1024, 1024)
    return grads(a + a.linear(w), a, w)


def training() -> dict[str, Made]:
    """The input's and the weight's gradient are products; a bias takes a sum in two stages."""
    rows: dict[str, Made] = {
        f"linear, {act or 'plain'}, training": ((lambda act=act: linear_training(act)), 2, 6, 0)
        for act in ("", "relu", "tanh", "gelu", "silu", "sigmoid")
    }
    return rows | {
        "float16 linear, training": (lambda: linear_training(dtype="float16"), 2, 4, 0),
        "gated units, training": (gated_training, 4, 9, 0),
        "residual, training": (residual_training, 2, 3, 0),
        "conv 1×1, training": (lambda: conv_training(1), 2, 4, 0),
        "conv 3×3, training": (lambda: conv_training(3), 2, 6, 0),
    }


def conv_training(kernel: int) -> Results:
    a, w = x(32, 64, 56, 56), x(64, 64, kernel, kernel)
    return grads(a.conv2d(w, padding=kernel // 2), a, w)


def attended(width: int = 64, keys: int = 2048, dtype: str = "bfloat16", causal: bool = False) -> Results:
    q, k, v = x(4, 16, 2048, width, dtype=dtype), *(x(4, 16, keys, width, dtype=dtype) for _ in range(2))
    return (q.scaled_dot_product_attention(k, v, is_causal=causal),)


def softcapped() -> Results:
    q, k, v = (x(4, 16, 2048, 64) for _ in range(3))
    s = (q @ k.transpose(2, 3)).cast("float32") * 0.125
    return (((s / 30.0).tanh() * 30.0).softmax(-1).cast("bfloat16") @ v,)


def attention() -> dict[str, Made]:
    return {
        "attention in float16": (lambda: attended(dtype="float16"), 1, 1, 0),
        "attention of 32": (lambda: attended(32), 1, 1, 0),
        "causal attention of 128": (lambda: attended(128, causal=True), 1, 1, 0),
        "attention to 128 keys": (lambda: attended(keys=128), 1, 1, 0),
        "attention, soft cap": (softcapped, 1, 1, 0),
        "attention to 77 keys": (lambda: attended(keys=77), 1, 1, 0),
        "attention of 256": (lambda: attended(256), 1, 1, 0),
        "attention of 80": (lambda: attended(80), 1, 1, 0),
        "causal attention in float16": (lambda: attended(dtype="float16", causal=True), 1, 1, 0),
    }


_FOUND = ("conv 3×3, stride 2, to 7×7", "conv 3×3, stride 2, to 7×7, training", "products that are looked up")
OFTEN = frozenset((*epilogues(), *training(), *_FOUND))  # these are planned whenever tests are run


def programs() -> dict[str, Made]:
    """All of them."""
    families = (activations, epilogues, orders, sizes, batches, convolutions, training, attention)
    return {name: row for family in families for name, row in family().items()}
