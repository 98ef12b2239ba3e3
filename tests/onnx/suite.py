"""The whole test suite of the installed `onnx` package against `morok.onnx.backend`: run by `make test-onnx`.

The package's runner counts a refusal as a pass; here a refusal has to be listed, with its reason, and what is
listed has to be refused.
"""

import unittest
import warnings
from typing import Any

import pytest

onnx_test = pytest.importorskip("onnx.backend.test")

from morok import Tensor  # noqa: E402
from morok.onnx import backend  # noqa: E402
from tests.onnx.refusals import DIFFERENT, REFUSED  # noqa: E402

_refused: list[str] = []


class _Noted(backend.BackendIsNotSupposedToImplementIt):  # type: ignore[misc]
    def __init__(self, reason: str) -> None:
        _refused.append(reason)
        super().__init__(reason)


backend.BackendIsNotSupposedToImplementIt = _Noted  # type: ignore[misc]


def _cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package computes infinities on its way
        classes = onnx_test.BackendTest(backend, __name__).test_cases
    return [
        pytest.param(cls, name, id=name.removesuffix("_cpu"))
        for cls in classes.values()
        for name in sorted(dir(cls))
        if name.startswith("test_") and name.endswith("_cpu")
    ]


@pytest.mark.parametrize(("cls", "name"), _cases())
def test_case(cls: type[unittest.TestCase], name: str) -> None:
    case = name.removesuffix("_cpu")
    _refused.clear()
    Tensor.manual_seed(0)  # ten random truths may be those of the file: one run in a thousand
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            getattr(cls(name), name)()
    except (AssertionError, TypeError):
        assert case in DIFFERENT
        return
    assert case not in DIFFERENT, "it passes now: take it out of the list"
    assert bool(_refused) == (case in REFUSED), _refused
