"""Every differentiable method against finite differences."""

from typing import Any

import pytest

from morok import Tensor
from morok.tensor.calls.record import _OPERATORS
from tests.gradient.cases import ALIASES, CASES, NO_GRADIENT
from tests.gradient.check import check

FLAT = [
    pytest.param(*case, id=f"{name}-{number}" if number else name)
    for name, cases in CASES.items()
    for number, case in enumerate(cases if isinstance(cases, list) else [cases])
]


@pytest.mark.parametrize("function, arrays", FLAT)
def test_gradient_is_the_slope(function: Any, arrays: Any) -> None:
    check(function, *arrays)


def test_every_method_is_known_here() -> None:
    """A method that is entered nowhere has a gradient that nobody has looked at."""
    names = {
        n for n in dir(Tensor) if not n.startswith("_") or (n in _OPERATORS_WITH_CODE and hasattr(Tensor, n))
    }
    known = set(CASES) | ALIASES | set().union(*NO_GRADIENT.values())
    missing = sorted(names - known)
    assert not missing, f"enter in tests/gradient/cases.py how the gradient is checked: {', '.join(missing)}"


_OPERATORS_WITH_CODE = {n for n in _OPERATORS if n in vars(object) or hasattr(Tensor, n)}


def test_nothing_is_entered_twice() -> None:
    groups = [set(CASES), ALIASES, *NO_GRADIENT.values()]
    assert sum(map(len, groups)) == len(set().union(*groups))
