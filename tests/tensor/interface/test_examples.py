"""Every example in the documentation of a public method is run."""

import doctest
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from morok import Tensor, Variable
from morok.tensor import tensor as module
from tests.devices import needs_host_memory

# Methods without an example: their result is not a short text.
WITHOUT = frozenset(("plan",))


def public() -> Iterator[tuple[str, Any]]:
    """The public methods that the table attaches, and the properties."""
    for name, member in inspect.getmembers(Tensor):
        function = inspect.unwrap(getattr(member, "__func__", member))
        if not name.startswith("_") and (callable(member) or isinstance(member, property)):
            yield name, function


METHODS = dict(public())


def test_there_are_methods() -> None:
    assert len(METHODS) > 300
    assert module.Tensor is Tensor


SHARES = frozenset(("from_numpy",))  # memory with the host, which its example writes to


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=needs_host_memory if n in SHARES else ()) for n in METHODS]
)
def test_example(name: str) -> None:
    text = inspect.getdoc(METHODS[name])
    assert text, f"{name} has no documentation"
    tests = doctest.DocTestParser().get_doctest(
        text, {"Tensor": Tensor, "Variable": Variable}, name, None, None
    )
    assert tests.examples or name in WITHOUT, f"{name} has no example"
    output: list[str] = []
    doctest.DocTestRunner(verbose=False).run(tests, out=output.append)
    assert not output, "".join(output)
