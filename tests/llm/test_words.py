"""Weights in words: the same numbers as the block formats, and products of bytes as good as float32."""

import numpy as np
import pytest

from morok import Tensor
from morok.llm.as_bytes import EXACT, Q8, in_bytes
from morok.llm.matrix import pack
from morok.llm.words import LANES, WORD_FORMATS
from morok.nn.blocks import FORMATS, BlockFormat

SMALL = ("Q4_1", "Q4_K")  # the others are in the slow tier


def formats() -> list[object]:
    marks = {True: (), False: (pytest.mark.slow,)}
    return [pytest.param(f, id=f.name, marks=marks[f.name in SMALL]) for f in FORMATS.values()]


def random_blocks(form: BlockFormat, rows: int, columns: int) -> np.ndarray:
    rnd = np.random.default_rng(form.bytes)
    raw = rnd.integers(0, 256, (rows, columns // form.numbers, form.bytes)).astype(np.uint8)
    for at in WORD_FORMATS[form.name].halves:
        scales = (rnd.random((*raw.shape[:2], 1)) * 0.1 + 0.01).astype(np.float16)
        raw[..., at : at + 2] = scales.view(np.uint8)
    if form.name == "MXFP4":
        raw[..., 0] = rnd.integers(110, 130, raw.shape[:2])
    return raw


@pytest.mark.parametrize("form", formats())
def test_the_same_numbers(form: BlockFormat) -> None:
    """Bit by bit; that the block formats are those of the package gguf is tested with them."""
    raw = random_blocks(form, 20, 2 * form.numbers)
    wanted = form.decode(Tensor(raw).unsqueeze(3)).numpy().reshape(20, -1)
    packed = pack(form, raw)
    assert packed.shape == wanted.shape
    assert packed.nbytes == 2 * LANES * 2 * form.bytes  # rows are rounded up, and nothing else is added
    stored = packed.stored
    arrays = [t.numpy().nbytes for t in (stored.halves, stored.bytes, stored.words) if t is not None]
    assert sum(arrays) == packed.nbytes
    assert np.array_equal(packed.rows(Tensor(np.arange(20)[::-1].copy())).numpy(), wanted[::-1])


@pytest.mark.parametrize("device", ["CPU", "EMULATOR"])
@pytest.mark.parametrize(
    "rows", [1, 3, 8, pytest.param(16, marks=pytest.mark.slow), pytest.param(20, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("form", formats())
def test_products_are_as_good_as_float32(form: BlockFormat, rows: int, device: str) -> None:
    raw = random_blocks(form, 24, 512)
    matrix = form.decode(Tensor(raw).unsqueeze(3)).numpy().reshape(24, -1).astype(np.float64)
    x = np.random.default_rng(rows).standard_normal((rows, 512)).astype(np.float32)
    found = pack(form, raw, device=device).product(Tensor(x, device=device)).numpy()
    bound = np.abs(x).astype(np.float64) @ np.abs(matrix).T
    assert np.all(np.abs(found - x.astype(np.float64) @ matrix.T) <= 4 * 2.0**-24 * bound)


def test_numbers_as_bytes() -> None:
    rnd = np.random.default_rng(0)
    x = (rnd.standard_normal((2, 96)) * 10.0 ** rnd.integers(-20, 20, (2, 96))).astype(np.float32)
    x[0, :32] = 0
    for digits, bits in ((EXACT, 22), (Q8, 6)):
        words, scales = (t.numpy() for t in in_bytes(Tensor(x), digits))
        places = words.view(np.int8).astype(np.int64).reshape(2, digits, 96)
        whole = sum(places[:, i] << 8 * i for i in range(digits)).reshape(2, 3, 32)
        error = np.abs(whole * scales.astype(np.float64)[..., None] - x.reshape(2, 3, 32))
        assert np.all(error <= np.abs(x).reshape(2, 3, 32).max(-1, keepdims=True) * 2.0**-bits)


@pytest.mark.parametrize("device", ["CPU", "EMULATOR"])
def test_what_is_not_finite_stays_so(device: str) -> None:
    form = FORMATS[8]
    raw = random_blocks(form, 16, 64)
    for value in (np.inf, -np.inf, np.nan):
        x = np.ones((1, 64), np.float32)
        x[0, 40] = value
        assert np.all(np.isnan(pack(form, raw, device=device).product(Tensor(x, device=device)).numpy()))
        x = x.repeat(8, 0)  # which matrix units take together
        x[1:, 40] = 1
        found = pack(form, raw, device=device).product(Tensor(x, device=device)).numpy()
        assert np.all(np.isnan(found[0])) and np.all(np.isfinite(found[1:]))


def test_one_byte_is_an_option() -> None:
    form = FORMATS[8]
    raw = random_blocks(form, 16, 512)
    matrix = form.decode(Tensor(raw).unsqueeze(3)).numpy().reshape(16, -1)
    x = np.random.default_rng(4).standard_normal((1, 512)).astype(np.float32)
    found = pack(form, raw, digits=Q8).product(Tensor(x)).numpy()
    error = np.abs(found - x @ matrix.T) / (np.abs(x) @ np.abs(matrix.T))
    assert 1e-6 < error.max() < 2.0**-7
