"""Records are dataclasses in all that a program can see; only later."""

import copy
import dataclasses
import inspect
import pickle
import threading
from dataclasses import field
from typing import Any

import pytest

from morok.dtype.records import _record as record
from morok.dtype.records import _Unwritten, is_frozen


@record(frozen=True)
class Point:
    """A place."""

    x: int
    y: int = 2
    names: list[str] = field(default_factory=list, compare=False)

    def __post_init__(self) -> None:
        assert self.x >= 0


@record
class Count:
    """Some."""

    n: int = 0


@record(eq=False)
class Node:
    """One of a kind."""

    n: int = 0


@record(frozen=True)
class Named(Point):  # type: ignore[misc]
    """A place with a name."""

    name: str = ""

    def __repr__(self) -> str:
        return self.name


def unwritten(cls: type) -> bool:
    return any(isinstance(value, _Unwritten) for value in vars(cls).values())


def test_a_record_is_a_dataclass() -> None:
    p = Point(1)
    assert isinstance(vars(Point)["__repr__"], _Unwritten)
    assert repr(p) == "Point(x=1, y=2, names=[])"
    assert p == Point(1, 2, ["other"]) != Point(2)
    assert not unwritten(Point)
    assert hash(p) == hash(Point(1)) and len({p, Point(1), Point(2)}) == 2
    assert dataclasses.is_dataclass(Point) and [f.name for f in dataclasses.fields(Point)] == [
        "x",
        "y",
        "names",
    ]
    assert dataclasses.replace(p, x=5) == Point(5)
    assert not hasattr(Point, "names") and Point.y == 2
    assert str(inspect.signature(Point)).startswith("(x: int, y: int = 2")
    assert pickle.loads(pickle.dumps(p)) == p == copy.deepcopy(p)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        p.x = 3
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
        del p.x
    with pytest.raises(AssertionError):
        Point(-1)
    with pytest.raises(TypeError, match="missing 1 required"):
        Point()
    match p:
        case Point(x, y):
            assert (x, y) == (1, 2)


def test_equality_and_hashes_are_those_of_dataclasses() -> None:
    assert Count(1) == Count(1) and Count.__hash__ is None
    with pytest.raises(TypeError, match="unhashable"):
        hash(Count(1))
    assert Node(1) != Node(1) and isinstance(hash(Node(1)), int)


def test_a_record_of_a_record() -> None:
    n = Named(1, name="n")
    assert repr(n) == "n" and n == Named(1, name="n") != Point(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        n.name = "m"


def test_nothing_is_written_until_it_is_asked_for() -> None:
    @record(frozen=True)
    class Late:
        """Nobody makes one."""

        x: int

    assert is_frozen(Late) and unwritten(Late)
    assert not is_frozen(Count) and not is_frozen(int)
    assert Late.__match_args__ == ("x",) and unwritten(Late)
    assert Late(1) == Late(1) and not unwritten(Late)
    assert is_frozen(Late)
    with pytest.raises(TypeError, match="all given to it"):
        record(type("Other", (), {"__annotations__": {"x": "int"}, "x": field(init=False)}))
    with pytest.raises(TypeError, match="has no slots"):
        record(slots=True)(type("Other", (), {}))


def test_threads_that_make_the_first_ones() -> None:
    for _ in range(20):

        @record(frozen=True)
        class Fresh:
            """Made by several threads at once."""

            x: int
            y: int = 1

        made: list[Any] = []
        start = threading.Barrier(4)

        def make(made: list[Any] = made, start: threading.Barrier = start, kind: type = Fresh) -> None:
            start.wait()
            made.append((kind(3), hash(kind(3))))

        threads = [threading.Thread(target=make) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(made) == 4 and len(set(made)) == 1
