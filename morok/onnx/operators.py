"""All families of operators, in the table once this is imported."""

from __future__ import annotations

from morok.onnx.ops import cast, control, hosted, index, math, nn, reduce, sequence, shape

FAMILIES = (math, shape, index, reduce, nn, cast, control, sequence, hosted)
