"""Files of models that are cut off, inconsistent or hostile: one sentence each, of a MorokError."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from morok.errors import ArgumentError, FormatError, MorokError, UnsupportedModel
from morok.llm import load
from morok.llm.template import render
from morok.llm.tokenizer import tokenizer_of_gguf
from tests.llm import files

pytest.importorskip("tokenizers", reason="models need the package tokenizers")

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({"general.architecture": "mamba"}, "architecture is 'mamba'; there are"),
    "layers": ({"llama.block_count": 3}, "'blk.2.attn_norm.weight' is missing"),
    "many layers": ({"llama.block_count": 2**31}, "block_count is 2147483648"),
    "width": ({"llama.embedding_length": 32}, "is needed|cannot be rotated"),
    "no width": ({"llama.embedding_length": "wide"}, "embedding_length is 'wide'; a size is needed"),
    "heads": ({"llama.attention.head_count": 3}, "do not divide|is needed|cannot be rotated"),
    "no heads": ({"llama.attention.head_count": 0}, "head_count is 0"),
    "groups": ({"llama.attention.head_count_kv": 3}, "3 groups of keys do not divide"),
    "rotation": ({"llama.rope.dimension_count": 64}, "64 numbers of a head of 16"),
    "eps": ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "epsilon is nan"),
    "vocabulary": ({"llama.vocab_size": 7}, "token_embd.weight"),
    "scaling": ({"llama.rope.scaling.type": "other"}, "no rotary embeddings of type 'other'"),
    "tokenizer": ({"tokenizer.ggml.model": "other"}, "tokenizer is 'other'"),
    "cuts": ({"tokenizer.ggml.pre": "other"}, "cuts texts by 'other'"),
    "types": ({"tokenizer.ggml.token_type": [1, 2]}, "not as many types"),
    "merges": ({"tokenizer.ggml.merges": ["q q"]}, "merges 'q q'"),
    "no merges": ({"tokenizer.ggml.merges": 5}, "not a list of texts"),
    "end": ({"tokenizer.ggml.eos_token_id": 10**6}, "eos token is 1000000"),
    "experts": ({"llama.expert_count": 4, "llama.expert_used_count": 9}, "cannot use 9 at once"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_metadata(name: str, tmp_path: Path) -> None:
    changes, message = WRONG[name]
    path = tmp_path / "wrong.gguf"
    files.tiny_llama(path, **changes)
    with pytest.raises(MorokError, match=message) as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_cut_off_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "whole.gguf"
    files.tiny_llama(path)
    whole = path.read_bytes()
    for count in np.linspace(0, len(whole) - 1, 25).astype(int):
        path.write_bytes(whole[:count])
        with pytest.raises(FormatError):
            load(path)


def test_random_damage_is_told_or_harmless(tmp_path: Path) -> None:
    """Bytes of the head changed at random: an error of morok's own, or a model that can be built."""
    path = tmp_path / "whole.gguf"
    files.tiny_llama(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(60):
        data = bytearray(whole)
        for at in rng.integers(4, 9000, 3):
            data[at] = rng.integers(0, 256)
        path.write_bytes(bytes(data))
        try:
            load(path)
        except MorokError as error:
            assert "\n" not in str(error)[:200]


def test_folders(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"cannot read .*config\.json"):
        load(tmp_path)
    config = tmp_path / "config.json"
    for content, kind, message in (
        ("{", FormatError, "not valid JSON"),
        ("[" * 100_000, FormatError, "not valid JSON"),
        ("[]", FormatError, "not a JSON object"),
        ('{"model_type": "x"}', UnsupportedModel, "model_type is 'x'"),
        ('{"model_type": "llama"}', FormatError, "hidden_size is None"),
    ):
        config.write_text(content)
        with pytest.raises(kind, match=message):
            load(tmp_path)
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
    config.write_text(json.dumps({"model_type": "llama", "vocab_size": 9, **sizes}))
    with pytest.raises(FormatError, match="no safetensors"):
        load(tmp_path)


HOSTILE: dict[str, tuple[str, str]] = {
    "attributes": ("{{ messages.__class__.__mro__ }}", "fails"),
    "globals": ("{{ cycler.__init__.__globals__.os.system('true') }}", "fails"),
    "files": ("{% include '/etc/passwd' %}", "fails"),
    "endless": ("{% for i in range(10**9) %}x{% endfor %}", "powers|without an end"),
    "nested": (
        "{% for i in range(99999) %}{% for j in range(99999) %}xxxxxxxx{% endfor %}{% endfor %}",
        "more than|without an end",
    ),
    "nested without a word": (
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "without an end",
    ),
    "long text": ("{{ 'x' * 999999999 }}", "more than"),
    "power": ("{{ 9 ** 99999999 }}", "powers"),
    "syntax": ("{% for %}", "fails"),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "fails"),
    "nothing": ("{{ messages[0].absent.absent }}", "fails"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates(name: str) -> None:
    pytest.importorskip("jinja2")
    template, message = HOSTILE[name]
    with pytest.raises(FormatError, match=message):
        render(template, [{"role": "user", "content": "x"}], {})


def test_formats_do_not_reach_attributes() -> None:
    pytest.importorskip("jinja2")
    found = render("{{ '{0.__class__}'.format(messages) }}", [{"role": "user", "content": "x"}], {})
    assert "class" not in found


def test_a_template_may_refuse() -> None:
    pytest.importorskip("jinja2")
    with pytest.raises(ArgumentError, match="refuses the conversation: no system"):
        render("{{ raise_exception('no system') }}", [{"role": "system", "content": "x"}], {})


STRINGS = [
    "",
    " ",
    "  a",
    "the the",
    "naïve café",
    "日本語の文",
    "👩‍👩‍👧 emoji 🎉",
    "1234567",
    "a\n\n b\t",
    "<|im_end|>x",
    "\u0000\ufffd",
]


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "llama-bpe", "qwen2"])
def test_texts_come_back(pre: str) -> None:
    tokenizer = tokenizer_of_gguf(files.LLAMA | {"tokenizer.ggml.pre": pre})
    rng = np.random.default_rng(0)
    drawn = ["".join(chr(int(c)) for c in rng.integers(32, 0x2FF, 12)) for _ in range(50)]
    for text in STRINGS + drawn:
        found: Callable[..., str] = tokenizer.decode
        text = text if pre != "qwen2" else __import__("unicodedata").normalize("NFC", text)
        assert found(tokenizer.encode(text), special=True) == text
