"""The same models on a grid, emulated: all memory is the device's, rows of a cache lie by their position."""

from pathlib import Path

import numpy as np
import pytest

from morok import Tensor
from morok.llm import load
from morok.llm.matrix import Packed
from morok.llm.words import LANES, WORD_FORMATS, Stored
from morok.optimize.record import applied
from tests.llm import files
from tests.optimize.plans import an_h200, empty, planned

pytest.importorskip("tokenizers", reason="texts need the package tokenizers")


@pytest.mark.parametrize(
    ("packed", "cache_type"), [(False, "bfloat16"), pytest.param(True, "q8", marks=pytest.mark.slow)]
)
def test_texts_on_a_grid(tmp_path: Path, packed: bool, cache_type: str) -> None:
    """The default device is the processor: whatever stays there is refused by the emulator's kernels."""
    path = tmp_path / "tiny.gguf"
    weights = files.tiny_llama(path, packed=packed)
    model = load(path, device="EMULATOR", cache_type=cache_type, context=32)
    model.reserve(2)
    slots = [model.new_slot() for _ in range(2)]
    texts = [[5, 9, 4], [7, 3]]
    for slot, tokens in zip(slots, texts, strict=True):
        for count in range(1, len(tokens)):
            model.advance(slot, tokens[:count])
    found = model.advance_together(list(zip(slots, texts, strict=True)))
    for row, tokens in zip(found, texts, strict=True):
        assert row is not None
        assert np.abs(row - files.llama_logits(weights, tokens)[-1]).max() < 0.1


def packed_on_a_gpu(form: str, rows: int, columns: int) -> Packed:
    f = WORD_FORMATS[form]
    words = sum(c.stop - c.start for c in f.codes) // 4
    sizes = ((len(f.halves), "float16"), (0 if f.small is None else 12, "uint8"), (words, "int32"))
    front = (rows // LANES, columns // f.block.numbers)
    halves, small, codes = (empty(*front, n, LANES, dtype=t) if n else None for n, t in sizes)
    assert codes is not None
    return Packed(f, Stored(halves, small, codes), rows)


@pytest.mark.parametrize("form", ["Q8_0", "Q4_1", "Q4_K"])
def test_a_product_is_two_kernels(form: str) -> None:
    """Numbers as bytes with their scales and sums are one, however many results it has."""
    with an_h200():
        found = packed_on_a_gpu(form, 512, 2048).product(empty(1, 2048, dtype="float32"))
        assert len(found.plan().kernels) == 2


def test_rows_after_a_product_of_several_have_blocks_of_their_own() -> None:
    with an_h200() as machine:
        x = packed_on_a_gpu("Q8_0", 2048, 2048).product(empty(16, 2048, dtype="float32"))
        last = planned([Tensor.rms_norm(x, -1, empty(2048, dtype="float32"), 1e-5).uop], machine)[-1]
        assert last.shares and last.steps == 16 * 2048
        assert next(a for a in applied(last.ast) if a.name == "GROUP").amount >= 128
