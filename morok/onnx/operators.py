"""All families of operators, in the table once this is imported."""

from __future__ import annotations

from morok.onnx.ops import (
    attention,
    cast,
    control,
    experts,
    hosted,
    image,
    index,
    math,
    microsoft,
    ml,
    nn,
    quantized,
    random,
    recurrent,
    reduce,
    resize,
    sample,
    sequence,
    shape,
    signal,
    strings,
    training,
    trees,
)

FAMILIES = (
    math, shape, index, reduce, nn, cast, control, sequence, strings, quantized, recurrent, resize, sample,
    signal, random, image, ml, trees, training, microsoft,
    attention, experts, hosted,
)  # fmt: skip
