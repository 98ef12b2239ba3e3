"""Texts to tokens and back: the vocabulary of a GGUF file, or the tokenizer.json of a folder.

The work is done by the package `tokenizers`; here its parts are put together as the file says.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from morok.errors import ArgumentError, FormatError, MorokError, UnsupportedModel
from morok.forks import cached_property
from morok.llm.weights import read_json

_CONTROL, _USER = 3, 4  # types of tokens that are found in texts as they are
_BYTE = 6

_GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CASES = (r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]")  # capitals, small letters
_GPT4O = (
    r"[^\r\n\p{L}\p{N}]?{0}*{1}+{2}|[^\r\n\p{L}\p{N}]?{0}+{1}*{2}|\p{N}{3}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _by_case(ends: str, digits: str) -> str:
    """Words begin at their capitals."""
    found = _GPT4O
    for i, part in enumerate((*_CASES, ends, digits)):
        found = found.replace(f"{{{i}}}", part)
    return found


_UNKNOWN = (  # what llama.cpp does where a converter did not know better
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
)
# how texts are cut before bytes are merged: regular expressions, one after the other (none: GPT-2's), single
# digits, NFC first
_CUTS: dict[str, tuple[tuple[str, ...], bool, bool]] = {
    "default": (_UNKNOWN, False, False),
    "gpt-2": ((), False, False),
    "gpt2": ((), False, False),
    "smollm": ((), True, False),
    "llama-bpe": ((_GPT4 % "{1,3}",), False, False),
    "llama3": ((_GPT4 % "{1,3}",), False, False),
    "dbrx": ((_GPT4 % "{1,3}",), False, False),  # Phi-4
    "smaug-bpe": ((_GPT4 % "{1,3}",), False, False),
    "qwen2": ((_GPT4 % "",), False, True),
    "deepseek-r1-qwen": ((_GPT4 % "",), False, False),
    "tekken": ((_by_case("", ""),), False, False),  # Mistral Nemo and what followed
    "gpt-4o": ((_by_case("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "{1,3}"),), False, False),  # Phi-4 mini
}
_WHOLE_FIRST = ("llama-bpe", "llama3", "tekken")  # a word that is a token is not put together


_SEEN = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes that are letters of their own
_BYTES = {chr(b): b for b in _SEEN} | {
    chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in _SEEN)
}


def _package() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise MorokError("language models need the package tokenizers: pip install 'morok[llm]'") from None
    return tokenizers


@final
@dataclass
class Tokenizer:
    """Encodes and decodes. `ends` are the tokens after which a text is complete."""

    inner: Any
    bos: int | None = None
    ends: frozenset[int] = frozenset()
    add_bos: bool = False
    template: str | None = None
    names: dict[str, str] = field(default_factory=dict)  # bos_token, eos_token …, as templates call them

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The tokens of a text; with `special`, as the beginning of a document where the model wants that."""
        if not isinstance(text, str):
            raise ArgumentError(f"a prompt is a text, not {type(text).__name__}")
        try:
            found = list(self.inner.encode(text, add_special_tokens=False).ids)
        except (TypeError, UnicodeEncodeError):
            raise ArgumentError("the text has half of a pair of surrogates, which is no character") from None
        if special and self.add_bos and self.bos is not None and found[:1] != [self.bos]:
            found.insert(0, self.bos)
        return found

    def decode(self, tokens: Sequence[int], special: bool = False) -> str:
        """The text of some tokens; without the special ones, unless they are asked for."""
        return str(self.inner.decode(list(tokens), skip_special_tokens=not special))

    def bytes_of(self, token: int) -> bytes:
        """What a token stands for, which may be a part of a letter."""
        text = self.inner.id_to_token(token) or ""
        if self._in_bytes:
            found = [_BYTES.get(c) for c in text]
            return text.encode() if None in found else bytes(b for b in found if b is not None)
        byte = re.fullmatch("<0x([0-9A-Fa-f]{2})>", text)
        return bytes([int(byte[1], 16)]) if byte is not None else text.replace("▁", " ").encode()

    @cached_property
    def _in_bytes(self) -> bool:
        """Whether the letters of tokens stand for bytes, as GPT-2 has it."""
        decoder = self.inner.decoder
        return decoder is not None and b"ByteLevel" in decoder.__getstate__()

    @property
    def size(self) -> int:
        return int(self.inner.get_vocab_size())


# --- GGUF


def _strings(metadata: Mapping[str, Any], key: str, needed: bool = True) -> list[str]:
    found = metadata.get(key)
    if found is None and not needed:
        return []
    if not isinstance(found, list) or any(kind is not str for kind in set(map(type, found))):
        raise FormatError(f"the file's {key} is not a list of texts")
    return found


def _token(metadata: Mapping[str, Any], name: str, count: int) -> int | None:
    found = metadata.get(f"tokenizer.ggml.{name}_token_id")
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < count:
        raise FormatError(f"the file's {name} token is {found!r}, of {count} tokens")
    return found


def tokenizer_of_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that a GGUF file describes."""
    package = _package()
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    if len(set(tokens)) != len(tokens):
        tokens = _distinct(tokens)
    kinds = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if not isinstance(kinds, list) or len(kinds) != len(tokens):
        raise FormatError(f"the file has {len(tokens)} tokens, but not as many types of tokens")
    model = metadata.get("tokenizer.ggml.model")
    try:
        if model == "gpt2":
            inner = _byte_pairs(package, metadata, tokens)
        elif model == "llama":
            inner = _sentence_piece(package, metadata, tokens, kinds)
        else:
            raise UnsupportedModel(f"the file's tokenizer is {model!r}; there are gpt2 and llama")
        added = [i for i, kind in enumerate(kinds) if kind in (_CONTROL, _USER) and tokens[i]]
        for i in added:
            token = package.AddedToken(tokens[i], special=kinds[i] == _CONTROL, normalized=False)
            (inner.add_special_tokens if kinds[i] == _CONTROL else inner.add_tokens)([token])
    except MorokError:
        raise
    except Exception as error:  # what the package raises has no type of its own
        raise FormatError(f"the file's tokenizer cannot be built: {error}") from None
    bos, eos = (_token(metadata, name, len(tokens)) for name in ("bos", "eos"))
    ends = {
        t for t in (eos, *(_token(metadata, name, len(tokens)) for name in ("eot", "eom"))) if t is not None
    }
    ends |= {i for i in added if kinds[i] == _CONTROL and tokens[i] in _ENDS}
    pre = metadata.get("tokenizer.ggml.pre", "default")
    add_bos = metadata.get("tokenizer.ggml.add_bos_token", model == "llama" or pre in _WHOLE_FIRST)
    names = {f"{n}_token": tokens[t] for n, t in (("bos", bos), ("eos", eos)) if t is not None}
    template = metadata.get("tokenizer.chat_template")
    return Tokenizer(
        inner, bos, frozenset(ends), bool(add_bos), template if isinstance(template, str) else None, names
    )


_ENDS = frozenset(
    ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|endoftext|>", "<|end_of_text|>")
)


def _distinct(tokens: list[str]) -> list[str]:
    """Equal texts of two tokens are told apart by their numbers; only the first can be met in a text."""
    seen: set[str] = set()
    found = []
    for i, token in enumerate(tokens):
        found.append(token if token not in seen else f"{token}[{i}]")
        seen.add(token)
    return found


def _byte_pairs(package: Any, metadata: Mapping[str, Any], tokens: list[str]) -> Any:
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if pre not in _CUTS:
        raise UnsupportedModel(f"the file cuts texts by {pre!r}; there are {', '.join(_CUTS)}")
    patterns, digits, compose = _CUTS[pre]
    vocabulary = dict(zip(tokens, range(len(tokens)), strict=True))
    merges = _strings(metadata, "tokenizer.ggml.merges")
    pairs, ignore = [tuple(merge.split(" ", 1)) for merge in merges], pre in _WHOLE_FIRST
    try:
        inner = package.Tokenizer(package.models.BPE(vocabulary, pairs, ignore_merges=ignore))
    except Exception:  # what the package raises has no type of its own; and it looks at every pair
        for merge in merges:
            left, _, right = merge.partition(" ")
            if not vocabulary.keys() >= {left, right, left + right}:
                raise FormatError(f"the file merges {merge!r}, which are not tokens of it") from None
        raise
    cuts = package.pre_tokenizers
    steps = [cuts.Digits(individual_digits=True)] if digits else []
    steps += [cuts.Split(package.Regex(pattern), "isolated") for pattern in patterns]
    steps.append(cuts.ByteLevel(add_prefix_space=False, use_regex=not patterns))
    inner.pre_tokenizer = cuts.Sequence(steps)
    inner.decoder = package.decoders.ByteLevel()
    if compose:
        inner.normalizer = package.normalizers.NFC()
    return inner


def _sentence_piece(package: Any, metadata: Mapping[str, Any], tokens: list[str], kinds: list[Any]) -> Any:
    """SentencePiece's merges are not in the file: they follow from the scores of the tokens they make."""
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise FormatError(f"the file has {len(tokens)} tokens, but not as many scores")
    vocabulary = dict(zip(tokens, range(len(tokens)), strict=True))
    merges = []
    for token, place in vocabulary.items():
        if kinds[place] in (_CONTROL, _BYTE) or not 2 <= len(token) <= 256:
            continue
        found = [
            (token[:cut], token[cut:], scores[place])
            for cut in range(1, len(token))
            if token[:cut] in vocabulary and token[cut:] in vocabulary
        ]
        merges += sorted(found, key=lambda m: (vocabulary[m[0]], vocabulary[m[1]]))
    merges.sort(key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    name = tokens[unknown] if isinstance(unknown, int) and 0 <= unknown < len(tokens) else None
    inner = package.Tokenizer(
        package.models.BPE(
            vocabulary, [m[:2] for m in merges], unk_token=name, fuse_unk=True, byte_fallback=True
        )
    )
    steps, decoders = package.normalizers, package.decoders
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    spaces = steps.Replace(" ", "▁")
    inner.normalizer = steps.Sequence([steps.Prepend("▁"), spaces] if prefix else [spaces])
    back = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    inner.decoder = decoders.Sequence([*back, decoders.Strip(" ", 1, 0)] if prefix else back)
    return inner


# --- folders


def tokenizer_of_folder(folder: str) -> Tokenizer:
    """The tokenizer of a folder with a tokenizer.json."""
    package = _package()
    path = os.path.join(folder, "tokenizer.json")
    read_json(path)  # for its sentences about what is wrong
    try:
        inner = package.Tokenizer.from_file(path)
    except Exception as error:  # what the package raises has no type of its own
        raise FormatError(f"{path} is not a tokenizer: {error}") from None
    names, ends = {}, set()
    options = {}
    if os.path.exists(os.path.join(folder, "tokenizer_config.json")):
        options = read_json(os.path.join(folder, "tokenizer_config.json"))
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = options.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            names[name] = value
    for file in ("config.json", "generation_config.json"):
        if os.path.exists(os.path.join(folder, file)):
            found = read_json(os.path.join(folder, file)).get("eos_token_id")
            ends |= {i for i in (found if isinstance(found, list) else [found]) if isinstance(i, int)}
    bos = inner.token_to_id(names.get("bos_token", ""))
    eos = inner.token_to_id(names.get("eos_token", ""))
    if eos is not None:
        ends.add(eos)
    add_bos = options.get("add_bos_token")
    if add_bos is None:
        add_bos = bos is not None and inner.encode("a").ids[:1] == [bos]
    return Tokenizer(inner, bos, frozenset(ends), bool(add_bos), _template(folder, options), names)


def _template(folder: str, options: Mapping[str, Any]) -> str | None:
    path = os.path.join(folder, "chat_template.jinja")
    if os.path.exists(path):
        try:
            with open(path, encoding="utf-8") as file:
                return file.read(1 << 20)
        except (OSError, UnicodeDecodeError):
            raise FormatError(f"cannot read {path}") from None
    found = options.get("chat_template")
    if isinstance(found, list):  # several, by name
        named = {t.get("name"): t.get("template") for t in found if isinstance(t, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None
