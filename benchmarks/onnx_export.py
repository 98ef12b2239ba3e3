"""Models that people use as ONNX files, with random weights: `onnx_models.py` runs them.

    python benchmarks/onnx_export.py FOLDER [NAME…]

Needs torch, torchvision, transformers and onnxscript. Images have an open batch, and an open height and width
where the network takes any; texts an open batch and length. Normalisations have seen some noise, so that
numbers keep their size on the way.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

Axes = dict[int, str]
Made = tuple[nn.Module, tuple[Any, ...], list[Axes]]
MODELS: dict[str, Callable[[], Made]] = {}
BATCH, TEXT = {0: "batch"}, {0: "batch", 1: "length"}
PICTURE = {0: "batch", 2: "height", 3: "width"}


def named(make: Callable[[], Made]) -> Callable[[], Made]:
    MODELS[make.__name__] = make
    return make


def pictured(name: str, size: int = 224, axes: Axes = PICTURE, **kw: Any) -> None:
    """A network of torchvision."""

    def make() -> Made:
        import torchvision

        return getattr(torchvision.models, name)(weights=None, **kw), (torch.randn(1, 3, size, size),), [axes]

    MODELS[name] = make


for _name in ("efficientnet_b0", "resnext50_32x4d", "densenet121", "mobilenet_v3_large"):
    pictured(_name)
for _name in ("shufflenet_v2_x1_0", "squeezenet1_1", "convnext_tiny", "regnet_y_400mf", "mnasnet1_0"):
    pictured(_name)
for _name in ("swin_t", "vit_b_16"):
    pictured(_name, axes=BATCH)  # they compute with their height and width on the host while they are traced


def words(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape)


class First(nn.Module):
    """The first result of a model of transformers, called with names."""

    def __init__(self, inner: nn.Module, *names: str, **more: Any) -> None:
        super().__init__()
        self.inner, self.names, self.more = inner, names, more

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        out = self.inner(**dict(zip(self.names, given, strict=False)), return_dict=False, **self.more)
        return out[0]


@named
def distilbert() -> Made:
    import transformers as tf

    inner = tf.DistilBertForSequenceClassification(tf.DistilBertConfig(attn_implementation="eager"))
    given = (words(30000, 1, 64), torch.ones(1, 64, dtype=torch.int64))
    return First(inner, "input_ids", "attention_mask"), given, [TEXT, TEXT]


@named
def t5_encoder() -> Made:
    import transformers as tf

    inner = tf.T5EncoderModel(tf.T5Config())
    return First(inner, "input_ids"), (words(30000, 1, 64),), [TEXT]


@named
def gpt2() -> Made:
    import transformers as tf

    inner = tf.GPT2LMHeadModel(tf.GPT2Config(attn_implementation="eager"))
    return First(inner, "input_ids", use_cache=False), (words(50000, 1, 48),), [TEXT]


@named
def whisper_encoder() -> Made:
    import transformers as tf

    config = tf.WhisperConfig(
        d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536, decoder_layers=1
    )
    inner = tf.WhisperModel(config).encoder
    return First(inner, "input_features"), (torch.randn(1, 80, 3000),), [BATCH]


class UNet(nn.Module):
    """Three levels down and up, with transposed convolutions."""

    def __init__(self, wide: int = 32) -> None:
        super().__init__()

        def pair(a: int, b: int) -> nn.Sequential:
            parts: list[nn.Module] = []
            for i, o in ((a, b), (b, b)):
                parts += [nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU()]
            return nn.Sequential(*parts)

        sizes = [wide, 2 * wide, 4 * wide, 8 * wide]
        self.down = nn.ModuleList(pair(a, b) for a, b in zip([3, *sizes], sizes, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * s, s, 2, stride=2) for s in sizes[-2::-1])
        self.join = nn.ModuleList(pair(2 * s, s) for s in sizes[-2::-1])
        self.last = nn.Conv2d(wide, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for i, part in enumerate(self.down):
            x = part(x if i == 0 else nn.functional.max_pool2d(x, 2))
            kept.append(x)
        for part, join, other in zip(self.up, self.join, kept[-2::-1], strict=True):
            x = join(torch.cat([other, part(x)], 1))
        return self.last(x)


@named
def unet() -> Made:
    return UNet(), (torch.randn(1, 3, 128, 160),), [BATCH]


class Detector(nn.Module):
    """A single-shot detector: a small backbone, a pyramid of features, heads for boxes and classes."""

    def __init__(self, wide: int = 96, classes: int = 20, anchors: int = 3) -> None:
        super().__init__()

        def step(a: int, b: int, stride: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.SiLU())

        self.classes = classes
        self.stem = nn.Sequential(step(3, 24, 2), step(24, 48, 2))
        self.levels = nn.ModuleList(
            nn.Sequential(step(a, b, 2), step(b, b, 1)) for a, b in ((48, 96), (96, 160), (160, 256))
        )
        self.sides = nn.ModuleList(nn.Conv2d(b, wide, 1) for b in (96, 160, 256))
        self.smooth = nn.ModuleList(step(wide, wide, 1) for _ in range(3))
        self.boxes = nn.Conv2d(wide, anchors * 4, 3, padding=1)
        self.kinds = nn.Conv2d(wide, anchors * classes, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.stem(x)
        found = []
        for level in self.levels:
            x = level(x)
            found.append(x)
        top = None
        boxes, kinds = [], []
        for side, smooth, f in zip(self.sides[::-1], self.smooth, found[::-1], strict=True):
            here = side(f)
            if top is not None:
                here = here + nn.functional.interpolate(top, scale_factor=2, mode="nearest")
            top = here
            here = smooth(here)
            boxes.append(self.boxes(here).flatten(2).transpose(1, 2).reshape(x.shape[0], -1, 4))
            kinds.append(self.kinds(here).flatten(2).transpose(1, 2).reshape(x.shape[0], -1, self.classes))
        box = torch.cat(boxes, 1)
        centre, size = box[..., :2].sigmoid(), box[..., 2:].clamp(max=4).exp()
        return torch.cat([centre - size / 2, centre + size / 2], -1), torch.cat(kinds, 1).softmax(-1)


@named
def detector() -> Made:
    return Detector(), (torch.randn(1, 3, 320, 320),), [BATCH]


class Tagger(nn.Module):
    """Words, a recurrence in both directions, a class for each word."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5000, 100)
        self.rnn = nn.LSTM(100, 128, num_layers=2, bidirectional=True, batch_first=True)
        self.kinds = nn.Linear(256, 17)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kinds(self.rnn(self.words(x))[0])


@named
def lstm_tagger() -> Made:
    return Tagger(), (words(5000, 1, 40),), [TEXT]


def export(name: str, folder: Path) -> None:
    torch.manual_seed(0)
    inner, given, axes = MODELS[name]()
    norms = [m for m in inner.modules() if isinstance(m, nn.BatchNorm2d)]
    if norms:
        for norm in norms:
            norm.momentum = None  # the mean of all that they see
        inner.train()
        with torch.no_grad():
            for _ in range(2):
                inner(*(x.expand(4, *x.shape[1:]) + 0.1 * torch.randn(4, *x.shape[1:]) for x in given))
    inner.eval()
    sizes = tuple(axes)
    wide = tuple(x.repeat(2, *([1] * (x.ndim - 1))) for x in given)  # a batch of one would be taken for known
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            inner,
            wide,
            dynamo=True,
            dynamic_shapes=(sizes,) if isinstance(inner, First) else sizes,
            verbose=False,
        )
    assert program is not None
    program.save(folder / f"{name}.onnx", external_data=False)


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or MODELS:
        try:
            export(name, folder)
            print(name, (folder / f"{name}.onnx").stat().st_size, flush=True)
        except Exception as error:
            print(f"{name} failed: {type(error).__name__}: {str(error)[:500]}", flush=True)


if __name__ == "__main__":
    main()
