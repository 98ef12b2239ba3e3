"""The same models on a grid, emulated: all memory is the device's, rows of a cache lie by their position."""

from pathlib import Path

import numpy as np
import pytest

from morok.llm import load
from tests.llm import files

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
