"""More programs that `hunt.py` draws: windows, products, points, images, losses and small layers."""

from __future__ import annotations

from typing import Any

from hunt_programs import Draw, Program, Words, smooth  # type: ignore[import-not-found]


@smooth
def pool(d: Draw) -> Program:
    rank = d.pick(1, 2)
    kernel, stride = d.pick(2, 3, 5), d.pick(1, 2, 3)
    side = d.size(9, 60) if rank == 2 else d.size(50, 2000)
    channels = max(1, d.size(10_000, 150_000) // side**rank)
    d.tensor(
        (1, channels, *([side] * rank)), "float32"
    )  # equal ones share a gradient here, and the first has it there
    kind = d.pick("max", "avg")
    return lambda w, x: w.f(f"{kind}_pool{rank}d", x, kernel, stride)


@smooth
def conv(d: Draw) -> Program:
    rank = d.pick(1, 2, 2, 3)
    kernel = d.pick(1, 2, 3, 5, 7) if rank < 3 else d.pick(1, 2, 3)
    groups, inner, outer = d.pick(
        (1, 3, 5), (1, 1, 8), (1, 16, 16), (1, 7, 33), (4, 2, 3), (13, 1, 1), (1, 32, 3)
    )
    dilation, stride = d.pick(1, 1, 2), d.pick(1, 1, 2)
    batch = d.pick(1, 3)
    work = d.size(500_000, 8_000_000)
    side = max(kernel * 2 + 2, int((work / (kernel**rank * inner * outer * groups * batch)) ** (1 / rank)))
    side = min(side, {1: 5000, 2: 120, 3: 40}[rank])
    d.tensor((batch, groups * inner, *([side] * rank)), "float32")
    transposed = d.pick(False, False, True)
    if transposed:
        d.tensor((groups * inner, outer, *([kernel] * rank)), "float32")
        return lambda w, x, k: w.f(f"conv_transpose{rank}d", x, k, stride=stride, groups=groups)
    d.tensor((groups * outer, inner, *([kernel] * rank)), "float32")
    return lambda w, x, k: w.f(
        f"conv{rank}d", x, k, stride=stride, padding=kernel // 2, dilation=dilation, groups=groups
    )


@smooth
def product(d: Draw) -> Program:
    n, k, m = d.pick(
        (3, 3, 3), (4, 4, 4), (6, 7, 5), (2, 2, 2), (3, 3, 1), (1, 17, 9), (16, 16, 16), (33, 7, 33)
    )
    dtype = d.dtype("float32", "float32", "float64", "float16", "bfloat16")
    batch = max(1, d.size(50_000, 2_000_000) // (n * k * m + n * k))
    d.tensor((batch, n, k), dtype)
    kind = d.pick("both", "one", "transposed")
    d.tensor((k, m) if kind == "one" else (batch, m, k) if kind == "transposed" else (batch, k, m), dtype)
    return lambda w, x, y: x @ (y.transpose(1, 2) if kind == "transposed" else y)


@smooth
def matrix(d: Draw) -> Program:
    n, k, m = (int(d.rng.choice((1, 2, 3, 5, 17, 33, 100, 257, 1000))) for _ in range(3))
    scale = max(1, int(1_000_000 / (n * k * m)))
    n *= scale
    dtype = d.dtype("float32", "float32", "float64", "float16", "int32", "int64")
    d.tensor((n, k), dtype, 9)
    d.tensor((k, m), dtype, 9)
    return lambda w, x, y: x @ y


EINSUMS: dict[str, tuple[tuple[int, ...], ...]] = {
    "i,j->ij": ((300,), (700,)),
    "bi,bj->bij": ((500, 7), (500, 9)),
    "bij,bjk->bik": ((50, 17, 33), (50, 33, 5)),
    "bij,bij->b": ((100, 17, 33), (100, 17, 33)),
    "bhqd,bhkd->bhqk": ((2, 3, 33, 16), (2, 3, 50, 16)),
    "bi,ijk->bjk": ((100, 7), (7, 33, 5)),
    "ijk,k->ij": ((100, 33, 17), (17,)),
    "ijk,j->ik": ((100, 33, 17), (33,)),
    "ijk,i->jk": ((100, 33, 17), (100,)),
    "bci,bcj->cij": ((30, 5, 33), (30, 5, 17)),
    "nd,md,d->nm": ((100, 7), (90, 7), (7,)),
    "abc,cd,be->ade": ((33, 7, 17), (17, 5), (7, 9)),
}


@smooth
def einsum(d: Draw) -> Program:
    words = d.pick(*EINSUMS)
    dtype = d.dtype("float32", "float32", "float64")
    for shape in EINSUMS[words]:
        d.tensor(shape, dtype)
    return lambda w, *xs: w.lib.einsum(words, *xs)


@smooth
def pairs(d: Draw) -> Program:
    n, m, k = d.size(20, 300), d.size(20, 300), d.pick(2, 3, 7, 33)
    d.tensor((n, k), "float32")
    d.tensor((m, k), "float32")
    kinds: dict[str, Program] = {
        "l2": lambda w, x, y: ((x[:, None] - y[None]) ** 2).sum(-1),
        "l1": lambda w, x, y: (x[:, None] - y[None]).abs().sum(-1),
        "min": lambda w, x, y: ((x[:, None] - y[None]) ** 2).sum(-1).amin(1),
        "kernel": lambda w, x, y: (-((x[:, None] - y[None]) ** 2).sum(-1)).exp(),
    }
    return kinds[d.pick(*kinds)]


@smooth
def points(d: Draw) -> Program:
    n = d.size(5_000, 60_000)
    dtype = d.dtype()
    d.tensor((n, 3), dtype)
    d.tensor((n, 3), dtype)

    def cross(w: Words, x: Any, y: Any) -> Any:
        a, b, c = (x[:, i] for i in range(3))
        p, q, r = (y[:, i] for i in range(3))
        return w.stack([b * r - c * q, c * p - a * r, a * q - b * p], 1)

    kinds: dict[str, Program] = {
        "cross": cross,
        "dot": lambda w, x, y: (x * y).sum(1),
        "lengths": lambda w, x, y: (x - y).square().sum(1).sqrt(),
        "unit": lambda w, x, y: x / ((x * x).sum(1, keepdim=True) + 1e-3).sqrt() * y,
        "centre": lambda w, x, y: x - x.mean(0) + y,
        "box": lambda w, x, y: w.cat([w.lib.minimum(x, y).amin(0), w.lib.maximum(x, y).amax(0)], 0),
        "split": lambda w, x, y: x[:, 0] * y[:, 1] + x[:, 2],
    }
    return kinds[d.pick(*kinds)]


@smooth
def image(d: Draw) -> Program:
    h, width = d.size(40, 250), d.size(40, 250)
    dtype = d.dtype("uint8", "float32", "float16")
    d.tensor((h, width, 3), dtype)

    def grey(w: Words, x: Any) -> Any:
        x = w.cast(x, "float32")
        return x[..., 0] * 0.3 + x[..., 1] * 0.6 + x[..., 2] * 0.1

    kinds: dict[str, Program] = {
        "grey": grey,
        "planes": lambda w, x: w.cast(x, "float32").permute(2, 0, 1).contiguous() / 255,
        "mean": lambda w, x: w.cast(x, "float32").mean((0, 1)),
        "half": lambda w, x: (
            w.cast(x[: h // 2 * 2, : width // 2 * 2], "float32")
            .reshape(h // 2, 2, width // 2, 2, 3)
            .mean((1, 3))
        ),
        "mirror": lambda w, x: x.flip(1),
        "swap": lambda w, x: x.flip(2),
        "crop": lambda w, x: w.cast(x[5 : h - 5, 3 : width - 4], "float32") - 0.5,
        "gradient": lambda w, x: (w.cast(x[1:], "float32") - w.cast(x[:-1], "float32")).abs(),
    }
    return kinds[d.pick(*kinds)]


@smooth
def loss(d: Draw) -> Program:
    n, classes = d.pick((5000, 2), (3000, 10), (500, 100), (64, 1000), (20, 5001))
    dtype = d.dtype("float32", "float32", "bfloat16", "float64")
    d.tensor((n, classes), dtype)
    kind = d.pick("mse", "l1", "smooth_l1", "cross_entropy", "bce", "kl")
    if kind == "cross_entropy":
        d.tensor((n,), "int64", classes)
        return lambda w, x, t: w.f("cross_entropy", x, t)
    d.tensor((n, classes), dtype)
    kinds: dict[str, Program] = {
        "mse": lambda w, x, y: ((x - y) ** 2).mean(),
        "l1": lambda w, x, y: (x - y).abs().mean(),
        "smooth_l1": lambda w, x, y: w.f("smooth_l1_loss", x, y),
        "bce": lambda w, x, y: w.f("binary_cross_entropy_with_logits", x, y),
        "kl": lambda w, x, y: (x.softmax(-1) * (x.log_softmax(-1) - y.log_softmax(-1))).sum(-1).mean(),
    }
    return kinds[kind]


@smooth
def layer(d: Draw) -> Program:
    rows, width = d.size(50, 2000), d.pick(7, 33, 100, 256)
    dtype = d.dtype("float32", "float32", "bfloat16", "float16")
    kind = d.pick("layer_norm", "batch", "group", "linear", "glu", "rms")
    d.tensor((rows, width), dtype)
    if kind == "linear":
        out = d.pick(1, 5, 33, 128)
        d.tensor((out, width), dtype)
        d.tensor((out,), dtype)
        return lambda w, x, k, b: w.f("linear", x, k, b)
    d.tensor((width,), dtype)
    if kind == "layer_norm":
        return lambda w, x, g: (
            w.torch.nn.functional.layer_norm(x, (width,), g) if w.torch else x.layer_norm(-1, g)
        )
    if kind == "rms":
        return lambda w, x, g: (
            w.torch.nn.functional.rms_norm(x, (width,), g, 1e-6) if w.torch else x.rms_norm(-1, g)
        )
    if kind == "batch":
        return lambda w, x, g: (x - x.mean(0)) / (x.var(0) + 1e-5).sqrt() * g
    if kind == "group":
        side = width // 3 * 3
        return lambda w, x, g: x[:, :side].reshape(rows, 3, -1).softmax(1)
    half = width // 2
    return lambda w, x, g: x[:, :half] * x[:, half : 2 * half].sigmoid()
