"""What a model's steps read besides their arguments: settings as a text, and tensors.

By these a compiled step is found on disk, so nothing that it can read may be left out: an object of a kind
that is not known here is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from morok.llm.words import WordFormat
from morok.tensor.core import Core
from morok.tensor.tensor import Tensor

_PLAIN = (bool, int, float, str, type(None))
_OURS = "morok.llm."


def read_by(holder: Any) -> tuple[str, list[Core]]:
    """All settings of an object and of what it is made of, and its tensors, each once, in order."""
    tensors: dict[int, tuple[int, Tensor]] = {}
    said = _said(holder, tensors)
    return repr(said), [tensor for _, tensor in tensors.values()]


def _said(value: Any, tensors: dict[int, tuple[int, Tensor]]) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Tensor):
        return "tensor", tensors.setdefault(id(value), (len(tensors), value))[0]
    if isinstance(value, list | tuple):
        return [_said(v, tensors) for v in value]
    if isinstance(value, Mapping):
        return [(_said(k, tensors), _said(v, tensors)) for k, v in value.items()]
    if isinstance(value, WordFormat):  # the functions that it has are source, which the key knows
        return "format", value.block.name
    kind = type(value)
    if not kind.__module__.startswith(_OURS) or not hasattr(value, "__dict__"):
        raise TypeError(f"a step reads a {kind.__name__}")
    return kind.__qualname__, [(name, _said(v, tensors)) for name, v in vars(value).items()]
