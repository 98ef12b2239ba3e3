"""The programs of `corpus.py`: models as users write them, once for both libraries.

A model is a function of `f` (torch's or morok's `nn.functional`), its weights by name, and its data. Shapes
are given by sizes that a seed has drawn, so nothing here is of one size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Shapes = dict[str, tuple[int, ...]]
Sizes = dict[str, int]


@dataclass(frozen=True)
class Model:
    """A program: sizes on a GPU and on a processor with the steps they are drawn in (0: fixed), its weights,
    its data ("int:n": whole numbers below n), what is computed. Training has labels as its last data."""

    name: str
    sizes: dict[str, tuple[int, int, int]]
    weights: Callable[[Sizes], Shapes]
    data: Callable[[Sizes], list[tuple[tuple[int, ...], str]]]
    run: Callable[..., Any]
    trains: bool = False
    dtype: str = "bfloat16"


# --- transformers


def _block_shapes(layers: int, d: int, up: int = 4) -> Shapes:
    found: Shapes = {}
    for i in range(layers):
        found |= {
            f"{i}.n1": (d,), f"{i}.c1": (d,), f"{i}.qkv": (3 * d, d), f"{i}.bq": (3 * d,), f"{i}.o": (d, d),
            f"{i}.n2": (d,), f"{i}.c2": (d,), f"{i}.up": (up * d, d), f"{i}.bu": (up * d,),
            f"{i}.down": (d, up * d),
        }  # fmt: skip
    return found


def _blocks(f: Any, p: dict[str, Any], x: Any, layers: int, heads: int, causal: bool, after: bool) -> Any:
    """Layers of GPT-2 (norm before) or of BERT (norm after)."""
    batch, length, d = x.shape
    for i in range(layers):
        y = x if after else f.layer_norm(x, (d,), p[f"{i}.n1"], p[f"{i}.c1"])
        qkv = f.linear(y, p[f"{i}.qkv"], p[f"{i}.bq"]).reshape(batch, length, 3, heads, d // heads)
        q, k, v = (qkv[:, :, j].transpose(1, 2) for j in range(3))
        mixed = f.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)
        x = x + f.linear(mixed.reshape(batch, length, d), p[f"{i}.o"])
        x = f.layer_norm(x, (d,), p[f"{i}.n1"], p[f"{i}.c1"]) if after else x
        y = x if after else f.layer_norm(x, (d,), p[f"{i}.n2"], p[f"{i}.c2"])
        x = x + f.linear(f.gelu(f.linear(y, p[f"{i}.up"], p[f"{i}.bu"])), p[f"{i}.down"])
        x = f.layer_norm(x, (d,), p[f"{i}.n2"], p[f"{i}.c2"]) if after else x
    return x


def gpt(trains: bool, dtype: str = "bfloat16") -> Model:
    def weights(s: Sizes) -> Shapes:
        d = 64 * s["heads"]
        return {"tok": (s["vocab"], d), "pos": (s["n"], d)} | _block_shapes(s["layers"], d)

    def run(f: Any, s: Sizes, p: dict[str, Any], tokens: Any, labels: Any = None) -> Any:
        x = f.embedding(tokens, p["tok"]) + p["pos"]
        y = f.linear(_blocks(f, p, x, s["layers"], s["heads"], True, False), p["tok"])
        return y if labels is None else f.cross_entropy(y.reshape(-1, s["vocab"]), labels.reshape(-1))

    sizes = {"b": (8, 1, 1), "n": (1024, 64, 64), "heads": (12, 2, 0), "layers": (12, 2, 0),
             "vocab": (50257, 1000, 0)}  # fmt: skip

    def data(s: Sizes) -> list[tuple[tuple[int, ...], str]]:
        return [((s["b"], s["n"]), f"int:{s['vocab']}")] * (2 if trains else 1)

    return Model(
        f"GPT-2 {'training' if trains else 'inference'}, {dtype}", sizes, weights, data, run, trains, dtype
    )


def bert() -> Model:
    def run(f: Any, s: Sizes, p: dict[str, Any], tokens: Any) -> Any:
        x = f.embedding(tokens, p["tok"]) + p["pos"]
        return _blocks(f, p, x, s["layers"], s["heads"], False, True)

    return Model(
        "BERT inference, float16",
        {
            "b": (16, 2, 1), "n": (384, 64, 32), "heads": (12, 2, 0), "layers": (12, 2, 0),
            "vocab": (30522, 500, 0),
        },
        lambda s: {"tok": (s["vocab"], 64 * s["heads"]), "pos": (s["n"], 64 * s["heads"])}
        | _block_shapes(s["layers"], 64 * s["heads"]),
        lambda s: [((s["b"], s["n"]), f"int:{s['vocab']}")],
        run,
        dtype="float16",
    )  # fmt: skip


def vit() -> Model:
    def run(f: Any, s: Sizes, p: dict[str, Any], x: Any, labels: Any) -> Any:
        y = f.conv2d(x, p["patch"], stride=16).flatten(2).transpose(1, 2) + p["pos"]
        y = _blocks(f, p, y, s["layers"], s["heads"], False, False)
        return f.cross_entropy(f.linear(y.mean(1), p["head"]), labels)

    def weights(s: Sizes) -> Shapes:
        d = 64 * s["heads"]
        own = {"patch": (d, 3, 16, 16), "pos": ((s["side"] // 16) ** 2, d), "head": (100, d)}
        return own | _block_shapes(s["layers"], d)

    return Model(
        "ViT-S training, bfloat16",
        {"b": (64, 2, 1), "side": (224, 64, 16), "heads": (6, 2, 0), "layers": (12, 2, 0)},
        weights,
        lambda s: [((s["b"], 3, s["side"], s["side"]), ""), ((s["b"],), "int:100")],
        run,
        True,
    )


def llama(decode: bool) -> Model:
    """A layer of a Llama of 8 B parameters: grouped keys, rotated pairs, gated units."""

    def rotated(x: Any, c: Any, s: Any) -> Any:
        half = x.shape[-1] // 2
        a, b = x[..., :half], x[..., half:]
        return x * c + _cat(-b, a) * s

    def run(f: Any, s: Sizes, p: dict[str, Any], x: Any, c: Any, sn: Any, *cache: Any) -> Any:
        batch, length, d = x.shape
        h, g = s["heads"], s["heads"] // 4
        y = f.rms_norm(x, (d,), p["n1"], 1e-5)
        q = rotated(f.linear(y, p["q"]).reshape(batch, length, h, 128).transpose(1, 2), c, sn)
        k = rotated(f.linear(y, p["k"]).reshape(batch, length, g, 128).transpose(1, 2), c, sn)
        v = f.linear(y, p["v"]).reshape(batch, length, g, 128).transpose(1, 2)
        if cache:
            k, v = _cat(cache[0], k, 2), _cat(cache[1], v, 2)
        mixed = f.scaled_dot_product_attention(q, k, v, is_causal=not cache, enable_gqa=True)
        x = x + f.linear(mixed.transpose(1, 2).reshape(batch, length, h * 128), p["o"])
        y = f.rms_norm(x, (d,), p["n2"], 1e-5)
        return x + f.linear(f.silu(f.linear(y, p["gate"])) * f.linear(y, p["up"]), p["down"])

    def weights(s: Sizes) -> Shapes:
        d, kv, up = 128 * s["heads"], 32 * s["heads"], 448 * s["heads"]
        return {"n1": (d,), "n2": (d,), "q": (d, d), "k": (kv, d), "v": (kv, d), "o": (d, d),
                "gate": (up, d), "up": (up, d), "down": (d, up)}  # fmt: skip

    def data(s: Sizes) -> list[tuple[tuple[int, ...], str]]:
        rows, d = (1 if decode else s["n"]), 128 * s["heads"]
        own = [((s["b"], rows, d), ""), ((rows, 128), ""), ((rows, 128), "")]
        kept = (s["b"], s["heads"] // 4, s["n"], 128)
        return own + ([(kept, ""), (kept, "")] if decode else [])

    name = f"Llama-8B layer, {'decode' if decode else 'prefill'}, bfloat16"
    sizes = {"b": (4 if decode else 1, 1, 0), "n": (2048, 64, 64), "heads": (32, 4, 0)}
    return Model(name, sizes, weights, data, run)


def _cat(a: Any, b: Any, dim: int = -1) -> Any:
    if hasattr(a, "uop"):
        return a.cat(b, dim=dim)
    import torch

    return torch.cat((a, b), dim)


# --- pictures and sounds


def _bottleneck(f: Any, p: dict[str, Any], x: Any, name: str, stride: int) -> Any:
    y = f.relu(f.batch_norm(f.conv2d(x, p[f"{name}.1"]), None, None, p[f"{name}.g1"], p[f"{name}.b1"], True))
    y = f.conv2d(y, p[f"{name}.2"], stride=stride, padding=1)
    y = f.relu(f.batch_norm(y, None, None, p[f"{name}.g2"], p[f"{name}.b2"], True))
    y = f.batch_norm(f.conv2d(y, p[f"{name}.3"]), None, None, p[f"{name}.g3"], p[f"{name}.b3"], True)
    short = f.conv2d(x, p[f"{name}.d"], stride=stride) if f"{name}.d" in p else x
    return f.relu(y + short)


def resnet() -> Model:
    """ResNet-50 by the number of blocks per stage."""

    def stages(s: Sizes) -> list[tuple[str, int, int, int]]:
        """(name, channels in, inner channels, stride) of every block."""
        found, c = [], s["width"]
        for stage, count in enumerate((3, 4, 6, 3) if s["deep"] else (1, 1, 1, 1)):
            for i in range(count):
                found.append((f"{stage}.{i}", c, s["width"] << stage, 2 if stage and not i else 1))
                c = 4 * s["width"] << stage
        return found

    def weights(s: Sizes) -> Shapes:
        found: Shapes = {"stem": (s["width"], 3, 7, 7), "g": (s["width"],), "b": (s["width"],),
                         "head": (1000, 32 * s["width"])}  # fmt: skip
        for name, c, m, _ in stages(s):
            found |= {f"{name}.1": (m, c, 1, 1), f"{name}.2": (m, m, 3, 3), f"{name}.3": (4 * m, m, 1, 1)}
            for i, n in ((1, m), (2, m), (3, 4 * m)):
                found |= {f"{name}.g{i}": (n,), f"{name}.b{i}": (n,)}
            if c != 4 * m:
                found[f"{name}.d"] = (4 * m, c, 1, 1)
        return found

    def run(f: Any, s: Sizes, p: dict[str, Any], x: Any, labels: Any) -> Any:
        y = f.conv2d(x, p["stem"], stride=2, padding=3)
        y = f.max_pool2d(f.relu(f.batch_norm(y, None, None, p["g"], p["b"], True)), 3, 2, 1)
        for name, _, _, stride in stages(s):
            y = _bottleneck(f, p, y, name, stride)
        return f.cross_entropy(f.linear(y.mean((2, 3)), p["head"]), labels)

    return Model(
        "ResNet-50 training, bfloat16",
        {"b": (64, 4, 1), "side": (224, 64, 32), "width": (64, 8, 0), "deep": (1, 0, 0)},
        weights,
        lambda s: [((s["b"], 3, s["side"], s["side"]), ""), ((s["b"],), "int:1000")],
        run,
        True,
    )


def mobilenet() -> Model:
    def run(f: Any, s: Sizes, p: dict[str, Any], x: Any) -> Any:
        y = f.relu(f.conv2d(x, p["stem"], stride=2, padding=1))
        for i in range(s["layers"]):
            y = f.relu(f.conv2d(y, p[f"{i}.dw"], stride=1 + i % 2, padding=1, groups=y.shape[1]))
            y = f.relu(f.conv2d(y, p[f"{i}.pw"]))
        return f.linear(y.mean((2, 3)), p["head"])

    def weights(s: Sizes) -> Shapes:
        c = s["width"]
        found: Shapes = {"stem": (c, 3, 3, 3)}
        for i in range(s["layers"]):
            found |= {f"{i}.dw": (c, 1, 3, 3), f"{i}.pw": (c * (1 + i % 2), c, 1, 1)}
            c *= 1 + i % 2
        return found | {"head": (1000, c)}

    return Model(
        "MobileNet inference, float16",
        {"b": (64, 2, 1), "side": (224, 64, 32), "width": (32, 16, 0), "layers": (8, 4, 0)},
        weights,
        lambda s: [((s["b"], 3, s["side"], s["side"]), "")],
        run,
        dtype="float16",
    )


def unet(trains: bool) -> Model:
    """Residual convolutions with group norm, then attention over the pixels: of a U-Net, of diffusion."""

    def run(f: Any, s: Sizes, p: dict[str, Any], x: Any, *more: Any) -> Any:
        batch, c, side, _ = x.shape
        y = f.conv2d(f.silu(f.group_norm(x, 8, p["g1"], p["b1"])), p["c1"], padding=1)
        x = x + f.conv2d(f.silu(f.group_norm(y, 8, p["g2"], p["b2"])), p["c2"], padding=1)
        y = f.group_norm(x, 8, p["g3"], p["b3"]).flatten(2).transpose(1, 2)
        other = y if trains else more[0]
        heads = c // 64

        def split(z: Any) -> Any:
            return z.reshape(batch, z.shape[1], heads, 64).transpose(1, 2)

        q, k, v = split(f.linear(y, p["q"])), split(f.linear(other, p["k"])), split(f.linear(other, p["v"]))
        mixed = f.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, side * side, c)
        x = x + f.linear(mixed, p["o"]).transpose(1, 2).reshape(batch, c, side, side)
        return f.cross_entropy(x.mean((2, 3)), more[0]) if trains else x

    def weights(s: Sizes) -> Shapes:
        c, other = 64 * s["heads"], 64 * s["heads"] if trains else 768
        found = {f"{k}{i}": (c,) for k in "gb" for i in (1, 2, 3)}
        return found | {"c1": (c, c, 3, 3), "c2": (c, c, 3, 3), "q": (c, c), "k": (c, other), "v": (c, other),
                        "o": (c, c)}  # fmt: skip

    def data(s: Sizes) -> list[tuple[tuple[int, ...], str]]:
        image = ((s["b"], 64 * s["heads"], s["side"], s["side"]), "")
        return [image, ((s["b"],), f"int:{64 * s['heads']}") if trains else ((s["b"], 77, 768), "")]

    name = "U-Net block training, bfloat16" if trains else "Stable-Diffusion block, float16"
    sizes = {"b": (8, 1, 1), "side": (32, 16, 8), "heads": (5, 1, 0)}
    return Model(name, sizes, weights, data, run, trains, "bfloat16" if trains else "float16")


def whisper() -> Model:
    def run(f: Any, s: Sizes, p: dict[str, Any], x: Any) -> Any:
        y = f.gelu(f.conv1d(x, p["c1"], padding=1))
        y = f.gelu(f.conv1d(y, p["c2"], stride=2, padding=1)).transpose(1, 2) + p["pos"]
        return _blocks(f, p, y, s["layers"], s["heads"], False, False)

    def weights(s: Sizes) -> Shapes:
        d = 64 * s["heads"]
        own = {"c1": (d, 80, 3), "c2": (d, d, 3), "pos": (s["n"], d)}
        return own | _block_shapes(s["layers"], d)

    return Model(
        "Whisper encoder, float16",
        {"b": (4, 1, 1), "n": (1500, 96, 4), "heads": (8, 2, 0), "layers": (6, 2, 0)},
        weights,
        lambda s: [((s["b"], 80, 2 * s["n"]), "")],
        run,
        dtype="float16",
    )


# --- rows that follow each other, and tables


def lstm() -> Model:
    def run(f: Any, s: Sizes, p: dict[str, Any], x: Any, labels: Any) -> Any:
        length = x.shape[1]
        h = c = x[:, 0] * 0.0
        if not hasattr(x, "uop"):
            import torch

            flat = [p["w"], p["u"], p["b"], p["b"] * 0.0]
            start = (h[None].contiguous(), c[None].contiguous())
            y = torch._VF.lstm(x, start, flat, True, 1, 0.0, True, False, True)[0][:, -1]
            return f.cross_entropy(y, labels)
        inputs = f.linear(x, p["w"], p["b"])
        for t in range(length):
            i, g, n, o = (inputs[:, t] + f.linear(h, p["u"])).chunk(4, -1)
            c = g.sigmoid() * c + i.sigmoid() * n.tanh()
            h = o.sigmoid() * c.tanh()
        return f.cross_entropy(h, labels)

    return Model(
        "LSTM training, bfloat16",
        {"b": (64, 8, 8), "n": (32, 8, 0), "d": (512, 32, 32)},
        lambda s: {"w": (4 * s["d"], s["d"]), "u": (4 * s["d"], s["d"]), "b": (4 * s["d"],)},
        lambda s: [((s["b"], s["n"], s["d"]), ""), ((s["b"],), f"int:{s['d']}")],
        run,
        True,
    )


def dlrm() -> Model:
    def run(f: Any, s: Sizes, p: dict[str, Any], dense: Any, ids: Any, labels: Any) -> Any:
        x = f.relu(f.linear(f.relu(f.linear(dense, p["d1"])), p["d2"]))
        rows = f.embedding(ids, p["table"])
        every = _cat(x[:, None], rows, 1)
        pairs = (every @ every.transpose(1, 2)).flatten(1)
        y = f.relu(f.linear(_cat(x, pairs, 1), p["t1"]))
        return f.cross_entropy(f.linear(y, p["t2"]), labels)

    return Model(
        "DLRM training, float32",
        {"b": (4096, 64, 32), "rows": (100000, 1000, 0), "d": (64, 16, 0), "fields": (26, 8, 0)},
        lambda s: {
            "d1": (256, 13), "d2": (s["d"], 256), "table": (s["rows"], s["d"]),
            "t1": (256, s["d"] + (s["fields"] + 1) ** 2), "t2": (2, 256),
        },
        lambda s: [((s["b"], 13), ""), ((s["b"], s["fields"]), f"int:{s['rows']}"), ((s["b"],), "int:2")],
        run,
        True,
        "float32",
    )  # fmt: skip


def models() -> list[Model]:
    """All of them, quick ones first."""
    return [
        llama(decode=True), llama(decode=False), unet(False), dlrm(), mobilenet(), whisper(), bert(),
        gpt(False, "float16"), gpt(False, "float32"), unet(True), lstm(), vit(), gpt(True), resnet(),
    ]  # fmt: skip
