"""Errors are one sentence, with a place where there is one."""

import pickle

import pytest

from morok import errors
from morok.errors import MorokError, ParseError

ALL = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, MorokError)]


@pytest.mark.parametrize("kind", ALL)
def test_place_follows_the_sentence(kind: type[MorokError]) -> None:
    assert str(kind("it broke")) == "it broke"
    error = kind("it broke", place="model.py:42")
    assert str(error) == "it broke (at model.py:42)"
    assert (error.message, error.place) == ("it broke", "model.py:42")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_parse_errors_say_where_reading_stopped() -> None:
    error = ParseError("a source is missing", 3, 14)
    assert str(error) == "line 3, column 14: a source is missing"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
