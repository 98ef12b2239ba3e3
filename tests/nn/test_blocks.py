"""Block formats against the package that llama.cpp's makers publish, bit by bit, where it is installed."""

import math

import numpy as np
import pytest

from morok import Tensor
from morok.nn.blocks import FORMATS, BlockFormat

# where a block has its float16 numbers
HALVES: dict[str, tuple[int, ...]] = dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0,))
HALVES |= dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2))
HALVES |= {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "MXFP4": ()}


def random_blocks(form: BlockFormat, count: int, seed: int = 0) -> np.ndarray:
    """Blocks of random bits whose scales are finite."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (count, form.bytes), dtype=np.uint8)
    for at in HALVES[form.name]:
        scales = rng.standard_normal((count, 1)).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8)
    if form.name == "MXFP4":
        blocks[:, 0] = rng.integers(0, 250, count)
    return blocks


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: FORMATS[kind].name)
def test_as_the_gguf_package(kind: int) -> None:
    gguf = pytest.importorskip("gguf", reason="the reference decoding of blocks is in the package gguf")
    from gguf.quants import dequantize

    form = FORMATS[kind]
    assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)] == (form.numbers, form.bytes)
    blocks = random_blocks(form, 96, kind)
    wanted = dequantize(blocks, gguf.GGMLQuantizationType(kind))
    found = form.decode(Tensor(blocks).unsqueeze(2)).numpy().reshape(96, form.numbers)
    np.testing.assert_array_equal(found, wanted.reshape(96, form.numbers))


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: FORMATS[kind].name)
def test_parts_are_the_numbers(kind: int) -> None:
    """`select` names the same numbers as `parts`, and rows may lie side by side."""
    form = FORMATS[kind]
    blocks = random_blocks(form, 12, kind).reshape(3, 4, form.bytes)  # 3 rows of 4 blocks
    lanes = Tensor(np.ascontiguousarray(blocks.transpose(1, 2, 0)))  # (4, bytes, 3)
    whole = form.decode(lanes)
    assert whole.shape == (4, form.numbers, 3)
    alone = form.decode(Tensor(blocks).unsqueeze(3)).numpy()[..., 0]
    np.testing.assert_array_equal(whole.numpy().transpose(2, 0, 1), alone)
    row = Tensor(alone[1].reshape(-1))
    parts = form.parts(lanes)
    for part, place in zip(parts, form.select(row, 0), strict=True):
        np.testing.assert_array_equal(part.values().numpy()[..., 1], place.numpy())
    assert sum(math.prod(p.codes.shape) for p in parts) == 12 * form.numbers
