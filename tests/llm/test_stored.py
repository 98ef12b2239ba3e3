"""Steps of a model in a second process: found on disk, and right."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.llm import load
from morok.llm.read_by import read_by
from morok.tensor.jit.pytree import flatten
from tests.llm import files

pytest.importorskip("tokenizers", reason="texts need the package tokenizers")


def test_a_model_that_was_there_is_not_traced_again(tmp_path: Path) -> None:
    tokens = [int(t) for t in np.random.default_rng(0).integers(3, len(files.TOKENS), 5)]
    with knobs.override(DEVICE="CPU", CACHE_DIR=str(tmp_path / "cache"), CACHE_PLANS=1):
        for seed, traces in ((0, 1), (1, 0)):  # of other weights
            weights = files.tiny_llama(tmp_path / "tiny.gguf", seed=seed)
            model = load(tmp_path / "tiny.gguf")
            for count in (2, 3, 5):
                found = model.advance(model.slot, tokens[:count])
                wanted = files.llama_logits(weights, tokens[:count])[-1]
                np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4)
            assert model._token.traces == traces


def key_of(path: Path, **options: Any) -> str | None:
    """By which the step of one token is found."""
    model = load(path, **options)
    given: list[Any] = []
    bound: Any = {}
    model.reserve(1)
    args = (Tensor(np.zeros(1, np.int32)), model.caches, 0, model._at[1].bind(0))
    structure = flatten(args, given, bound)
    assert model._token.named is not None
    return model._token.named.key(structure, given, bound)


def test_other_settings_are_other_steps(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    files.tiny_llama(path)
    first = key_of(path)
    assert first is not None and key_of(path) == first
    keys = {first, key_of(path, cache_type="q8"), key_of(path, context=64), key_of(path, activations="q8")}
    changes: dict[str, Any] = {"llama.attention.layer_norm_rms_epsilon": 0.5}
    files.tiny_llama(path, **changes)
    keys.add(key_of(path))
    files.tiny_llama(path, packed=False)
    keys.add(key_of(path))
    assert len(keys) == 6


def test_what_a_step_may_read_and_nobody_knows_is_an_error() -> None:
    with pytest.raises(TypeError, match="a step reads a object"):
        read_by([1, object()])
