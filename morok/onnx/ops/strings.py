"""Strings, on the host: joined, split, normalised, matched, counted."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from onnx import TensorProto

from morok.errors import UnsupportedModel
from morok.onnx.table import op
from morok.onnx.types import STRING
from morok.onnx.values import Host, Value

Text = Any  # an array of strings
Known = Host


def texts(items: list[Any], shape: tuple[int, ...] | None = None) -> Host:
    array = np.empty(len(items), object)
    array[:] = items
    return Host(array.reshape(shape) if shape is not None else array, STRING)


@op("StringConcat", since=20, reads=True)
def string_concat(a: Text, b: Text) -> Value:
    return Host(np.asarray(a + b, object), STRING)


@op("StringSplit", since=20, reads=True)
def string_split(x: Text, *, delimiter: Any = None, maxsplit: Any = None) -> Any:
    most = -1 if maxsplit is None else int(maxsplit)
    parts = [str(v).split(delimiter or None, most) for v in x.reshape(-1)]
    width = max((len(p) for p in parts), default=0)
    rows = [word for p in parts for word in [*p, *[""] * (width - len(p))]]
    counts = Host(np.array([len(p) for p in parts], np.int64).reshape(x.shape))
    return texts(rows, (*x.shape, width)), counts


@op("StringNormalizer", since=10, reads=True)
def string_normalizer(
    x: Text,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: Any = None,
    stopwords: Any = None,
) -> Value:
    words = [str(w) for w in x.reshape(-1)]
    if stopwords:
        fold = str if is_case_sensitive else str.casefold
        gone = {fold(w) for w in stopwords}
        words = [w for w in words if fold(w) not in gone]
    change: Any = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}[case_change_action]
    words = [change(w) for w in words] or [""]
    return texts(words, (1, len(words)) if x.ndim == 2 else (len(words),))


@op("RegexFullMatch", since=20, reads=True)
def regex_full_match(x: Text, *, pattern: str = "") -> Value:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UnsupportedModel(f"pattern {pattern!r} cannot be read: {error}") from None
    found = [compiled.fullmatch(str(v)) is not None for v in x.reshape(-1)]
    return Host(np.array(found, bool).reshape(x.shape))


@op("TfIdfVectorizer", since=9, reads=True)
def tf_idf_vectorizer(
    x: Known,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Any,
    ngram_indexes: Any,
    pool_int64s: Any = None,
    pool_strings: Any = None,
    weights: Any = None,
) -> Value:
    """How often each of some sequences of words occurs."""
    pool = list(pool_strings if pool_strings is not None else pool_int64s)
    grams: dict[tuple[Any, ...], int] = {}
    number = 0
    ends = [*ngram_counts[1:], len(pool)]
    for length, (start, end) in enumerate(zip(ngram_counts, ends, strict=True), 1):
        for at in range(start, end, length):
            grams[tuple(pool[at : at + length])] = number
            number += 1
    rows = x.array.reshape(-1, x.array.shape[-1]) if x.array.ndim > 1 else x.array.reshape(1, -1)
    out = np.zeros((len(rows), max(ngram_indexes) + 1), np.float32)
    for row, made in zip(rows, out, strict=True):
        for gram in _grams(row.tolist(), min_gram_length, max_gram_length, max_skip_count):
            if gram in grams:
                made[ngram_indexes[grams[gram]]] += 1
    if mode == "IDF":
        out = np.minimum(out, 1)
    if mode in ("IDF", "TFIDF") and weights is not None:
        factor = np.ones(out.shape[1], np.float32)
        factor[np.array(ngram_indexes)] = np.array(weights, np.float32)
        out = out * factor
    return Host(out.astype(np.float32) if x.array.ndim > 1 else out[0].astype(np.float32), TensorProto.FLOAT)


def _grams(words: list[Any], least: int, most: int, skips: int) -> list[tuple[Any, ...]]:
    found = []
    for length in range(least, most + 1):
        for skip in range(1 if length == 1 else skips + 1):
            reach = (length - 1) * (skip + 1)
            found += [tuple(words[i : i + reach + 1 : skip + 1]) for i in range(len(words) - reach)]
    return found
