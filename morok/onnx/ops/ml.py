"""ai.onnx.ml: features, labels, linear models and support vectors. Trees have a file of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from morok import dtype as dt
from morok.errors import ArgumentError, UnsupportedModel
from morok.onnx.ops.strings import texts
from morok.onnx.table import T, as_tensor, converted, op
from morok.onnx.types import STRING
from morok.onnx.values import Host, Value
from morok.tensor.tensor import Tensor

ML = "ai.onnx.ml"
Known = Host


def transformed(scores: Tensor, name: Any) -> Tensor:
    """What is done to scores at the end."""
    names = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
    kind = names[name] if isinstance(name, int) else name
    if kind == "NONE":
        return scores
    if kind == "SOFTMAX":
        return scores.softmax(-1)
    if kind == "LOGISTIC":
        return scores.sigmoid()
    if kind == "SOFTMAX_ZERO":  # of those that are not zero
        live = scores.ne(0)
        powers = live.where((scores - scores.max(-1, keepdim=True)).exp(), 0.0)
        return powers / powers.sum(-1, keepdim=True)
    if kind == "PROBIT":
        return _probit(scores)
    raise UnsupportedModel(f"post_transform {name!r} is not known")


def _probit(p: Tensor) -> Tensor:
    """The number that a normal variable is below with probability p, by erf's inverse and Newton."""
    x = p * 2 - 1
    log = (-(x * x) + 1).log()
    a = 0.147
    first = log * 0.5 + 2 / (np.pi * a)
    y = x.sign() * ((first * first - log / a).sqrt() - first).sqrt()
    for _ in range(2):
        y = y - (y.erf() - x) / ((-(y * y)).exp() * float(2 / np.sqrt(np.pi)))
    return y * float(np.sqrt(2))


def labels_of(ints: Any, strings: Any) -> Host:
    return texts(list(strings)) if strings else Host(np.array(ints, np.int64))


@op("Binarizer", domain=ML)
def binarizer(x: T, *, threshold: float = 0.0) -> T:
    return (x > threshold).cast(x.dtype)


@op("Scaler", domain=ML)
def scaler(x: T, *, offset: Any = None, scale: Any = None) -> T:
    y = x.cast(dt.float32)
    if offset:
        y = y - Tensor(np.array(offset, np.float32))
    return y * Tensor(np.array(scale, np.float32)) if scale else y


@op("Normalizer", domain=ML)
def normalizer(x: T, *, norm: str = "MAX") -> T:
    y = x.cast(dt.float32)
    if norm == "MAX":
        size = y.max(-1, keepdim=True)
    elif norm == "L1":
        size = y.abs().sum(-1, keepdim=True)
    else:
        size = y.square().sum(-1, keepdim=True).sqrt()
    return size.eq(0).where(y, y / size)


@op("Imputer", domain=ML)
def imputer(
    x: T,
    *,
    imputed_value_floats: Any = None,
    imputed_value_int64s: Any = None,
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> T:
    if x.dtype.is_float:
        bad = x.isnan() if np.isnan(replaced_value_float) else x.eq(replaced_value_float)
        return bad.where(Tensor(np.array(imputed_value_floats, np.float32)).cast(x.dtype), x)
    return x.eq(replaced_value_int64).where(Tensor(np.array(imputed_value_int64s, np.int64)).cast(x.dtype), x)


@op("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(x: T, places: T) -> T:
    picked = x.index_select(x.ndim - 1, places.reshape(-1))
    return picked.reshape((1, -1)) if x.ndim == 1 else picked


@op("FeatureVectorizer", domain=ML)
def feature_vectorizer(*xs: T, inputdimensions: Any = None) -> T:
    rows = [(x.reshape((1, -1)) if x.ndim == 1 else x).cast(dt.float32) for x in xs]
    return rows[0].cat(*rows[1:], dim=1) if len(rows) > 1 else rows[0]


@op("OneHotEncoder", domain=ML)
def one_hot_encoder(x: Value, *, cats_int64s: Any = None, cats_strings: Any = None, zeros: int = 1) -> Value:
    if cats_strings:
        held = converted("Text", x, 0)
        found = np.array(held[..., None] == np.array(cats_strings, object), np.float32)
        if not zeros and not found.any(-1).all():
            raise ArgumentError("a string is none of the categories")
        return Host(found)
    y = as_tensor(x).cast(dt.int64).unsqueeze(-1)
    return y.eq(Tensor(np.array(cats_int64s, np.int64))).cast(dt.float32)


# --- labels


def _list(x: Any) -> Any:
    return x.array.reshape(-1).tolist() if isinstance(x, Host) else x


def _mapped(x: Host, table: dict[Any, Any], default: Any, elem_text: bool, kind: Any) -> Host:
    flat = [
        table.get("nan" if isinstance(v, float) and v != v else v, default)
        for v in x.array.reshape(-1).tolist()
    ]
    if elem_text:
        return texts(flat, x.array.shape)
    return Host(np.array(flat, kind).reshape(x.array.shape))


@op("LabelEncoder", domain=ML, since=2, reads=True)
def label_encoder(
    x: Known,
    *,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    default_tensor: Any = None,
    keys_floats: Any = None,
    keys_int64s: Any = None,
    keys_strings: Any = None,
    keys_tensor: Any = None,
    values_floats: Any = None,
    values_int64s: Any = None,
    values_strings: Any = None,
    values_tensor: Any = None,
) -> Value:
    """Each element's label, looked up on the host."""
    keys = next(_list(k) for k in (keys_tensor, keys_strings, keys_int64s, keys_floats) if k is not None)
    table: dict[Any, Any] = {}
    text, kind, default, values = False, None, None, None
    if values_tensor is not None:
        values, text = _list(values_tensor), values_tensor.elem == STRING
        kind = values_tensor.array.dtype
        zero: Any = "_Unused" if text else (-1 if kind.kind in "iu" else -0.0)
        default = _list(default_tensor)[0] if default_tensor is not None else zero
    elif values_strings is not None:
        values, text, default = values_strings, True, default_string
    elif values_int64s is not None:
        values, kind, default = values_int64s, np.int64, default_int64
    else:
        values, kind, default = values_floats, np.float32, default_float
    floats = x.array.dtype.kind == "f"
    for key, value in zip(keys, values, strict=True):
        key = float(np.array(key, x.array.dtype)) if floats else key
        table["nan" if floats and key != key else key] = value
    return _mapped(x, table, default, text, kind)


@op("LabelEncoder", domain=ML, until=1, reads=True)
def label_encoder_1(
    x: Known, *, classes_strings: Any, default_int64: int = -1, default_string: str = "_Unused"
) -> Value:
    return _both_ways(x, list(range(len(classes_strings))), classes_strings, default_int64, default_string)


@op("CategoryMapper", domain=ML, reads=True)
def category_mapper(
    x: Known, *, cats_int64s: Any, cats_strings: Any, default_int64: int = -1, default_string: str = "_Unused"
) -> Value:
    return _both_ways(x, cats_int64s, cats_strings, default_int64, default_string)


def _both_ways(x: Host, ints: Any, strings: Any, default_int: int, default_string: str) -> Host:
    if x.is_text:
        return _mapped(x, dict(zip(strings, ints, strict=True)), default_int, False, np.int64)
    return _mapped(x, dict(zip(ints, strings, strict=True)), default_string, True, None)


# --- maps


@op("DictVectorizer", domain=ML)
def dict_vectorizer(x: Value, *, int64_vocabulary: Any = None, string_vocabulary: Any = None) -> Value:
    assert isinstance(x, dict)
    words = string_vocabulary if string_vocabulary is not None else int64_vocabulary
    return Host(np.array([[x.get(word, 0) for word in words]]))


@op("CastMap", domain=ML)
def cast_map(x: Value, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1) -> Value:
    assert isinstance(x, dict)
    if map_form == "DENSE":
        row = [x[key] for key in sorted(x)]
    else:
        row = [x.get(key, 0) for key in range(max_map)]
    if cast_to == "TO_STRING":
        return texts([str(v) for v in row], (1, len(row)))
    return Host(np.array([row], np.float32 if cast_to == "TO_FLOAT" else np.int64))


@op("ZipMap", domain=ML, reads=True)
def zip_map(x: Known, *, classlabels_int64s: Any = None, classlabels_strings: Any = None) -> Value:
    names = classlabels_strings if classlabels_strings else classlabels_int64s
    rows = x.array.reshape(-1, len(names))
    return [dict(zip(names, row.tolist(), strict=True)) for row in rows]


# --- linear models and support vectors


@op("LinearRegressor", domain=ML)
def linear_regressor(
    x: T, *, coefficients: Any, intercepts: Any = None, post_transform: str = "NONE", targets: int = 1
) -> T:
    weights = Tensor(np.array(coefficients, np.float32).reshape(targets, -1))
    y = x.cast(dt.float32).matmul(weights.T)
    return transformed(y + Tensor(np.array(intercepts, np.float32)) if intercepts else y, post_transform)


@op("LinearClassifier", domain=ML)
def linear_classifier(
    x: T,
    *,
    classlabels_ints: Any = None,
    classlabels_strings: Any = None,
    coefficients: Any,
    intercepts: Any = None,
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> Any:
    count = len(intercepts) if intercepts else len(classlabels_ints or classlabels_strings)
    weights = Tensor(np.array(coefficients, np.float32).reshape(count, -1))
    y = x.cast(dt.float32).matmul(weights.T)
    if intercepts:
        y = y + Tensor(np.array(intercepts, np.float32))
    labels = labels_of(classlabels_ints, classlabels_strings)
    if count == 1 and labels.shape[0] == 2:
        y = (-y).cat(y, dim=1)
    return labelled(y, labels), transformed(y, post_transform)


def labelled(scores: Tensor, labels: Host) -> Value:
    """The label of the largest score of each row."""
    places = scores.argmax(-1)
    if labels.is_text:
        raise UnsupportedModel("labels that are strings are not computed; encode them as numbers")
    held = labels.tensor()
    assert isinstance(held, Tensor)
    return held.index_select(0, places)


def _kernel(x: Tensor, vectors: Any, kind: str, params: Any) -> Tensor:
    gamma, offset, degree = (float(p) for p in (*params, 0.0, 0.0, 0.0)[:3])
    v = Tensor(vectors)
    if kind == "RBF":
        distance = (x.unsqueeze(1) - v.unsqueeze(0)).square().sum(-1)
        return (distance * -gamma).exp()
    y = x.matmul(v.T)
    if kind == "POLY":
        return (y * gamma + offset) ** degree
    return (y * gamma + offset).tanh() if kind == "SIGMOID" else y


@op("SVMRegressor", domain=ML)
def svm_regressor(
    x: T,
    *,
    coefficients: Any,
    kernel_params: Any = (),
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
    rho: Any = (0.0,),
    support_vectors: Any = None,
) -> T:
    y = x.cast(dt.float32)
    weights = np.array(coefficients, np.float32)
    if n_supports:
        vectors = np.array(support_vectors, np.float32).reshape(n_supports, -1)
        y = _kernel(y, vectors, kernel_type, kernel_params).matmul(Tensor(weights.reshape(-1, 1)))
    else:
        y = y.matmul(Tensor(weights.reshape(-1, 1)))
    y = y + float(rho[0])
    if one_class:
        y = (y > 0).where(1.0, -1.0)
    return transformed(y, post_transform)


@op("SVMClassifier", domain=ML)
def svm_classifier(
    x: T,
    *,
    classlabels_ints: Any = None,
    classlabels_strings: Any = None,
    coefficients: Any,
    kernel_params: Any = (),
    kernel_type: str = "LINEAR",
    post_transform: str = "NONE",
    prob_a: Any = None,
    prob_b: Any = None,
    rho: Any = (),
    support_vectors: Any = None,
    vectors_per_class: Any = None,
) -> Any:
    """One against one: each pair of classes votes."""
    if prob_a or not vectors_per_class:
        raise UnsupportedModel("SVMClassifier is read with support vectors and without probabilities")
    counts = list(vectors_per_class)
    classes, total = len(counts), sum(counts)
    starts = np.concatenate([[0], np.cumsum(counts)])
    vectors = np.array(support_vectors, np.float32).reshape(total, -1)
    weights = np.array(coefficients, np.float32).reshape(classes - 1, total)
    near = _kernel(x.cast(dt.float32), vectors, kernel_type, kernel_params)
    scores: list[Tensor] = []
    votes: list[tuple[int, int]] = []
    for i in range(classes):
        for j in range(i + 1, classes):
            pair = np.zeros(total, np.float32)
            pair[starts[i] : starts[i + 1]] = weights[j - 1, starts[i] : starts[i + 1]]
            pair[starts[j] : starts[j + 1]] = weights[i, starts[j] : starts[j + 1]]
            scores.append(near.matmul(Tensor(pair)) + float(rho[len(scores)]))
            votes.append((i, j))
    table = scores[0].stack(*scores[1:], dim=1) if len(scores) > 1 else scores[0].unsqueeze(1)
    first = np.zeros((len(votes), classes), np.float32)
    second = np.zeros((len(votes), classes), np.float32)
    for k, (i, j) in enumerate(votes):
        first[k, i], second[k, j] = 1, 1
    wins = (table > 0).cast(dt.float32)
    tally = wins.matmul(Tensor(first)) + (-wins + 1).matmul(Tensor(second))
    labels = labels_of(classlabels_ints, classlabels_strings)
    if classes == 2:
        table = (-table).cat(table, dim=1) if labels.shape[0] == 2 else table
    return labelled(tally, labels), transformed(table, post_transform)
