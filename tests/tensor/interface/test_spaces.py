"""Namespaces of functions: their examples run, their names are the ones that people look for."""

import doctest
import inspect
from importlib import import_module
from typing import Any

import pytest

import morok
from morok import Tensor
from morok.cli.api_page import SPACES, _space

MODULES = [*SPACES, "morok.nn.functional"]
WITHOUT = frozenset(
    ("multi_head_attention_forward",)
)  # too many arguments for an example; torch's samples run it


@pytest.mark.parametrize("module", MODULES)
def test_examples(module: str) -> None:
    loaded = import_module(module)
    names: dict[str, Any] = {"Tensor": Tensor, **vars(loaded)}
    failures: list[str] = []
    for name, member in _space(module):
        text = inspect.getdoc(member) or ""
        # methods have their examples in the form of methods, which test_examples.py runs
        known = {**names, member.__name__: getattr(loaded, name)}
        tests = doctest.DocTestParser().get_doctest(text, known, name, None, None)
        if not tests.examples and name not in WITHOUT:
            failures.append(f"{name} has no example")
        doctest.DocTestRunner(verbose=False).run(tests, out=failures.append)
    assert not failures, "".join(failures)


def test_spaces_are_found_from_the_package() -> None:
    for name in ("fft", "signal", "special", "linalg", "nn"):
        assert name in dir(morok)
        assert inspect.ismodule(getattr(morok, name))
    assert morok.signal.windows.hann(3).tolist() == [0.0, 1.0, 0.0]
