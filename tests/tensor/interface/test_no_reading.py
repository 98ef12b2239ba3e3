"""Functions of tensors compute with tensors: none looks at values on the host, but those that have to.

Where sizes depend on data, `measured` looks at one number; it refuses inside of jit. The check reads the
source: calls of `numpy`, `item` and `tolist`, and of what `export` has under these names.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import morok

ROOT = Path(morok.__file__).parent
FOLDERS = [
    "tensor/arrays", "tensor/elementwise", "tensor/images", "tensor/linalg", "tensor/signal",
    "tensor/special", "nn/functional", "functions",
]  # fmt: skip
FILES = ["tensor/distributions.py", "nn/losses.py"]
READERS = frozenset(("numpy", "item", "tolist", "__array__"))
ALLOWED: dict[str, set[str]] = {
    "tensor/arrays/selection.py": {
        "measured",
        "_largest_number",
    },  # sizes that depend on data; an error's text
    "tensor/arrays/index.py": {"_plain"},  # a mask as an index: its size depends on data
    "tensor/arrays/middle.py": {"quantile"},  # which quantile is wanted is a number here
    "nn/functional/alignment.py": {"_padded"},  # lengths of targets in one row, which say where to cut it
    "nn/functional/layers.py": {"one_hot"},  # how many classes there are, where nobody says so
}


def readings(source: str) -> Iterator[tuple[str, int]]:
    """(the function around it, the line) of every call that reads a tensor's values."""
    tree = ast.parse(source)
    around: dict[ast.AST, str] = {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            around.update(dict.fromkeys(ast.walk(function), function.name))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for node in sorted(calls, key=lambda call: call.lineno):
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if name in READERS:
            yield around.get(node, "<module>"), node.lineno


def sources() -> list[str]:
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return [str(path.relative_to(ROOT)) for path in [*found, *(ROOT / name for name in FILES)]]


@pytest.mark.parametrize("name", sources())
def test_no_values_are_read(name: str) -> None:
    found = list(readings((ROOT / name).read_text(encoding="utf-8")))
    assert [f"{name}:{line} {of}" for of, line in found if of not in ALLOWED.get(name, ())] == []


def test_a_reading_is_seen() -> None:
    planted = "def f(x):\n    return x * x.max().item()\n\n\ndef g(x):\n    return item(x)\n"
    assert list(readings(planted)) == [("f", 2), ("g", 6)]
