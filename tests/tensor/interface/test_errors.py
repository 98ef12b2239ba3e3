"""What a user reads who got something wrong: one sentence with his line, the shapes, and what would fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from morok import Tensor, Variable, knobs
from morok.errors import MorokError, ShapeError, VariableError

N = Variable("n", 1, 8)
OWN = Variable("two_values", 1, 8)  # nodes are shared, and remember the line that made them first


def rows(*sizes: int) -> Tensor:
    return Tensor(np.ones(sizes, np.float32))


def two_values() -> Tensor:
    x = rows(8)
    return x[: OWN.bind(3)].sum() + x[: OWN.bind(4)].sum()


WRONG: dict[str, tuple[Callable[[Tensor], Any], type[MorokError], list[str]]] = {
    "shapes": (lambda x: x + rows(4, 3), ShapeError, ["(2, 3)", "(4, 3)", "must be equal, or one of them 1"]),
    "product": (lambda x: x @ rows(2, 5), ShapeError, ["(2, 3)", "(2, 5)", "need 3 rows"]),
    "axis": (lambda x: x.sum(5), ShapeError, ["axis 5", "(2, 3)", "use -2 … 1"]),
    "reshape": (lambda x: x.reshape(4, 2), ShapeError, ["(2, 3)", "(4, 2)", "6 elements", "has 8"]),
    "rest": (lambda x: x.reshape(4, -1), ShapeError, ["(2, 3)", "(4, -1)", "6 is no multiple of 4"]),
    "negative": (lambda x: x.expand(2, -3), ShapeError, ["(2, -3)", "sizes are 0 or more"]),
    "fraction": (lambda x: x.reshape(2.5, 2), ShapeError, ["whole number, not 2.5"]),
    "expand": (lambda x: x.expand(2, 4), ShapeError, ["(2, 3)", "(2, 4)", "only axes of size 1"]),
    "box": (lambda x: x.shrink([(0, 3), None]), ShapeError, ["(2, 3)", "axis 0", "0 … 2"]),
    "backwards": (lambda x: x.shrink([None, (2, 1)]), ShapeError, ["2 … 1 of axis 1", "the start first"]),
    "value": (lambda x: x.assign(rows(4)), ShapeError, ["(4,)", "(2, 3)", "must broadcast"]),
    "unbound": (lambda x: (rows(8)[: N.uop] * 2).realize(), VariableError, ["n has no value", "1 … 8"]),
    "outside": (lambda x: N.bind(9), VariableError, ["n lies in 1 … 8", "cannot be 9"]),
    "no number": (lambda x: N.bind(1.5), ShapeError, ["variable n", "whole number, not 1.5"]),
    "outside, later": (
        lambda x: (rows(8)[: N.bind(2)] * 2).prepare().run(n=9),
        VariableError,
        ["n lies in 1 … 8", "cannot be 9"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("again", [1, 3])
@pytest.mark.parametrize("name", WRONG)
def test_what_was_wrong_and_what_would_be_right(name: str, again: int) -> None:
    call, kind, parts = WRONG[name]
    x = rows(2, 3)
    for _ in range(again):
        with pytest.raises(kind) as caught:
            call(x)
    error = caught.value
    assert "\n" not in error.message
    for part in parts:
        assert part in error.message
    assert error.place is not None
    file, line = error.place.split(":")
    assert file == "test_errors.py" and int(line) in range(_first(call), _first(call) + 3)
    np.testing.assert_array_equal((x * 2).numpy(), 2.0)  # the graph is as good as before


def _first(call: Callable[..., Any]) -> int:
    return call.__code__.co_firstlineno


def test_a_variable_with_two_values() -> None:
    with pytest.raises(VariableError, match="two_values is bound to 3 and to 4 in one computation") as caught:
        two_values().realize()
    assert caught.value.place == f"test_errors.py:{_first(two_values) + 2}"


def test_without_lines() -> None:
    with knobs.override(PROVENANCE=0):
        with pytest.raises(VariableError) as caught:
            N.bind(9)
        assert caught.value.place is None


def test_a_truth_is_no_axis() -> None:
    """torch's var(True) means something else, and axis 1 would be silently wrong."""
    for wrong in (True, False, np.True_):
        with pytest.raises(ShapeError, match="an axis must be a whole number, not"):
            Tensor([[1.0, 2.0], [3.0, 4.0]]).var(wrong)
