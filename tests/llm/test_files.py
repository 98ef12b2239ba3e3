"""Files of models that are cut off, inconsistent or hostile: one sentence each, of a MorokError."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from morok import Tensor
from morok.errors import ArgumentError, FormatError, MorokError, UnsupportedModel
from morok.llm import load
from morok.llm.template import render
from morok.llm.tokenizer import tokenizer_of_gguf
from morok.nn.safetensors import save_safetensors
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


def test_split_files(tmp_path: Path) -> None:
    """Any of the parts stands for all; one that is missing or of another model is told."""
    files.tiny_llama(tmp_path / "whole.gguf", packed=False)
    weights = files.llama_weights()
    names = [tmp_path / f"tiny-0000{i}-of-00002.gguf" for i in (1, 2)]
    for number, path in enumerate(names):
        chosen = [n for i, n in enumerate(weights) if i % 2 == number]
        split = {"split.no": number, "split.count": 2, "split.tensors.count": len(weights)}
        tensors = {n: (0, weights[n].shape, weights[n].tobytes()) for n in chosen}
        files.write_gguf(path, (files.LLAMA if number == 0 else {}) | split, tensors)
    wanted = load(tmp_path / "whole.gguf").score([5, 6, 7])
    for path in names:
        np.testing.assert_array_equal(load(path).score([5, 6, 7]), wanted)
    names[1].rename(tmp_path / "other.gguf")
    with pytest.raises(FormatError, match=r"one of 2 files, and .*-00002-of-00002\.gguf is not there"):
        load(names[0])
    with pytest.raises(FormatError, match="whose names must end in -00001-of-00002"):
        load(tmp_path / "other.gguf")
    (tmp_path / "whole.gguf").rename(names[1])
    with pytest.raises(FormatError, match="not a part of the same model"):
        load(names[0])


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


def test_an_index_says_which_files(tmp_path: Path) -> None:
    """Other files of the folder are not looked at; one that is named must be there."""
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 9, **sizes}))
    numbers = np.random.default_rng(0).standard_normal
    shapes = {
        "model.embed_tokens.weight": (9, 8), "model.norm.weight": (8,),
        **{f"model.layers.0.{name}.weight": shape for name, shape in (
            ("input_layernorm", (8,)), ("post_attention_layernorm", (8,)), ("self_attn.q_proj", (8, 8)),
            ("self_attn.k_proj", (8, 8)), ("self_attn.v_proj", (8, 8)), ("self_attn.o_proj", (8, 8)),
            ("mlp.gate_proj", (8, 8)), ("mlp.up_proj", (8, 8)), ("mlp.down_proj", (8, 8)),
        )},
    }  # fmt: skip
    weights = {name: Tensor(numbers(shape).astype(np.float32)) for name, shape in shapes.items()}
    save_safetensors(weights, tmp_path / "model.safetensors")
    wanted = load(tmp_path).score([1, 2, 3])
    parts = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for number, part in enumerate(parts):
        one = {name: value for i, (name, value) in enumerate(weights.items()) if i % 2 == number}
        save_safetensors(one, tmp_path / part)
    (tmp_path / "model.safetensors").write_bytes(b"of another time")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {n: parts[i % 2] for i, n in enumerate(weights)}}))
    np.testing.assert_array_equal(load(tmp_path).score([1, 2, 3]), wanted)
    for said, message in (
        ({}, "no weight_map"),
        ({"weight_map": {"a": 5}}, "no weight_map"),
        ({"weight_map": {"a": "../x.safetensors"}}, "not in its folder"),
        ({"weight_map": {"a": "x.safetensors"}}, r"lacks x\.safetensors"),
    ):
        index.write_text(json.dumps(said))
        with pytest.raises(FormatError, match=message):
            load(tmp_path)


_SIXTY = "{%% set n = namespace(x='x', y=[1], z=3) %%}{%% for i in range(60) %%}%s{%% endfor %%}"
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
    "texts that double": (_SIXTY % "{% set n.x = n.x + n.x %}", "more than"),
    "joined texts": (_SIXTY % "{% set n.x = n.x ~ n.x %}", "more than"),
    "blocks": (_SIXTY % "{% set y %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = y %}", "more than"),
    "lists that double": (_SIXTY % "{% set n.y = n.y + n.y %}", "without an end"),
    "numbers that grow": (_SIXTY % "{% set n.z = n.z * n.z %}", "large numbers"),
    "replaced": (_SIXTY % "{% set n.x = n.x|replace('x', 'xx') %}", "more than"),
    "a method": (_SIXTY % "{% set n.x = n.x.replace('x', 'xx') %}", "more than"),
    "loops over lists": (
        "{% set x = range(9999)|list %}{% for a in x %}{% for b in x %}{% endfor %}{% endfor %}",
        "without an end",
    ),
    "macros": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        "without an end",
    ),
    "center": ("{{ 'x'|center(9999999999) }}", "large numbers"),
    "ljust": ("{{ 'x'.ljust(9999999999) }}", "large numbers"),
    "a width": ("{{ '{:>9999999999}'.format(1) }}", "large numbers"),
    "a width of long ago": ("{{ '%999999999d' % 1 }}", "large numbers"),
    "a width that is given": ("{{ '%*d' % (999999999, 1) }}", "large numbers"),
    "a filter's width": ("{{ '%999999999d'|format(1) }}", "large numbers"),
    "slices": ("{{ [1]|slice(999999999)|list }}", "large numbers"),
    "nothing": ("{{ messages[0].absent.absent }}", "fails"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates(name: str) -> None:
    pytest.importorskip("jinja2")
    template, message = HOSTILE[name]
    with pytest.raises(FormatError, match=message):
        render(template, [{"role": "user", "content": "x"}], {})


def test_what_templates_need() -> None:
    """Blocks, macros, calls, loops with their numbers, parts for training, JSON; 9,000 messages."""
    pytest.importorskip("jinja2")
    template = (
        "{% macro said(m) %}{{ m.role ~ ':' ~ m.content|trim }}{% endmacro %}"
        "{% set head %}<{{ messages|length }}>{% endset %}{{ head }}"
        "{% for m in messages if m.role != 'tool' %}{{ loop.index0 }}{{ '' if loop.last else '-' }}"
        "{% generation %}{{ said(m) }}{% endgeneration %}"
        "{% if loop.index > 1 %}{% break %}{% endif %}{% endfor %}"
        "{% call(x) wrapped() %}[{{ x }}]{% endcall %}" + "{{ {'é': [1, '<']}|tojson(ensure_ascii=False) }}"
        "{{ messages[0].content.split(' ')[-1] }}{{ '%s=%05d' % ('a', 7) }}{{ '{:>4}'.format(5) }}"
    )
    template = "{% macro wrapped() %}({{ caller('y') }}){% endmacro %}" + template
    messages = [{"role": "user", "content": f" {i} x"} for i in range(9000)]
    wanted = '<9000>0-user:0 x1-user:1 x([y]){"é": [1, "<"]}xa=00007   5'
    assert render(template, messages, {}) == wanted
    long = render(None, messages, {})
    assert long.count("<|im_end|>") == 9000 and long.endswith("<|im_start|>assistant\n")


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


@pytest.mark.parametrize("pre", ["default", "smollm", "gpt-2", "llama-bpe", "qwen2", "tekken", "gpt-4o"])
def test_texts_come_back(pre: str) -> None:
    tokenizer = tokenizer_of_gguf(files.LLAMA | {"tokenizer.ggml.pre": pre})
    rng = np.random.default_rng(0)
    drawn = ["".join(chr(int(c)) for c in rng.integers(32, 0x2FF, 12)) for _ in range(50)]
    for text in STRINGS + drawn:
        found: Callable[..., str] = tokenizer.decode
        text = text if pre != "qwen2" else __import__("unicodedata").normalize("NFC", text)
        assert found(tokenizer.encode(text), special=True) == text
