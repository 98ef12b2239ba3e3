"""Names that a traced function gives other values: `self.h = …`, `nonlocal h`, `layers[0] = …`, `d["k"] = …`.

A replay runs no Python, so it does what the function did to names that it takes from outside: tensors that
were put there are results of the plan, and are put there after each replay. Where a container changes its
length, or is replaced, guards see that at the next call, and the function runs again.
"""

from __future__ import annotations

import dis
import types
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping, Set
from functools import partial
from typing import Any, NamedTuple, final

from morok.tensor.core import Core
from morok.tensor.jit.pytree import Value, flatten, unflatten

MISSING: Any = object()
SIMPLE = (int, float, bool, str, bytes, complex, type(None))
_OURS = ("_jit_methods",)  # attributes that calls leave behind by themselves


class Cell:
    """A variable of an enclosing function."""

    __slots__ = ("cell",)

    def __init__(self, cell: Any) -> None:
        self.cell = cell

    def __call__(self) -> Any:
        try:
            return self.cell.cell_contents
        except ValueError:
            return MISSING

    def put(self, value: Any) -> None:
        if value is MISSING:
            del self.cell.cell_contents
        else:
            self.cell.cell_contents = value


class Slot:
    """An attribute of an object that has no dictionary."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name

    def __call__(self) -> Any:
        return getattr(self.owner, self.name, MISSING)

    def put(self, value: Any) -> None:
        if value is MISSING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, value)


def _put_entry(space: MutableMapping[Any, Any], key: Any, value: Any) -> None:
    if value is MISSING:
        space.pop(key, None)
    else:
        space[key] = value


def _put_elements(xs: Any, values: Any) -> None:
    xs.clear()
    xs.extend(values)


class ClassEntry(partial[Any]):
    """A look at what a class has under a name."""

    owner: type

    @classmethod
    def of(cls, owner: type, name: str) -> ClassEntry:
        entry = cls(vars(owner).get, name, MISSING)
        entry.owner = owner
        return entry

    def put(self, value: Any) -> None:
        Slot(self.owner, self.args[0]).put(value)


def put_of(get: Any) -> Callable[[Any], None] | None:
    """How to put a value where a guard looks; None if that takes another container."""
    if isinstance(get, (Cell, Slot, ClassEntry)):
        return get.put
    space = getattr(get.func, "__self__", None) if isinstance(get, partial) else None
    return partial(_put_entry, space, get.args[0]) if isinstance(space, dict) else None


class Space(NamedTuple):
    """A dictionary into which a function may put something new, and what it has before."""

    name: str
    space: MutableMapping[Any, Any]
    keys: Set[Any]
    only: Set[Any] | None  # names that it puts there; None: any but private ones of ours
    hidden: bool = False


def spaces_of(name: str, value: Any, hidden: bool) -> Iterator[Space]:
    """Where a function that knows a value may put something new."""
    if isinstance(value, dict):
        yield Space(name, value, frozenset(value), None)
    elif isinstance(value, types.FunctionType):
        names = _stored_globals(value.__code__)
        if names:
            yield Space(name, value.__globals__, frozenset(value.__globals__), names)
    elif not isinstance(value, (type, types.ModuleType, types.MethodType, Core)):
        space = getattr(value, "__dict__", None)
        if isinstance(space, dict):
            yield Space(name, space, frozenset(space), None, hidden)


def _stored_globals(code: types.CodeType) -> frozenset[str]:
    """The global names that a function, or one inside of it, assigns to."""
    found: set[str] = set()
    if dis.opmap["STORE_GLOBAL"] in code.co_code[::2]:
        found.update(i.argval for i in dis.get_instructions(code) if i.opname == "STORE_GLOBAL")
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            found |= _stored_globals(part)
    return frozenset(found)


class Place(NamedTuple):
    """How to find and to change what a name stands for."""

    get: Callable[[], Any]
    put: Callable[[Any], None]


class Rebound(NamedTuple):
    """What a function puts in a place, as a structure with places for tensors."""

    put: Callable[[Any], None]
    structure: Any


@final
class Names:
    """What names stand for before a function runs."""

    def __init__(self, places: list[Place], lists: list[Any], spaces: list[Space]) -> None:
        self.places = [(place, place.get()) for place in places]
        self.lists = [(xs, list(xs)) for xs in lists]
        self.spaces = spaces
        self.new: dict[str, Callable[[], Any]] = {}  # names of what no replay could make: objects, functions
        self._undo: list[tuple[Callable[[Any], None], Any]] = []

    def changes(self, found: list[Core]) -> list[Rebound]:
        """What the function has put in other places; the tensors of that are added to what was found."""
        changed: list[Rebound] = []
        for place, was in self.places:
            now = place.get()
            if now is not was and (isinstance(was, Core) or _has_tensors(now)):
                self._undo.append((place.put, was))
                changed.append(Rebound(place.put, flatten(now, found)))
        for xs, before in self.lists:
            same = len(xs) == len(before) and all(a is b for a, b in zip(xs, before, strict=True))
            if not same and any(map(_has_tensors, (*xs, *before))):
                put = partial(_put_elements, xs)
                known = {id(x) for x in before if not isinstance(x, Core)}
                parts = tuple([Value(x) if id(x) in known else flatten(x, found) for x in xs])
                self._undo.append((put, before))
                changed.append(Rebound(put, (list, parts)))
        for space in self.spaces:
            for key in _new_keys(space):
                put, now = partial(_put_entry, space.space, key), space.space[key]
                self._undo.append((put, MISSING))
                changed.append(Rebound(put, flatten(now, found)))
                if not (isinstance(now, SIMPLE) or _has_tensors(now)):
                    self.new[f"{space.name}.{key}"] = partial(space.space.get, key, MISSING)
        return changed

    def restore(self) -> None:
        """Names stand for what they stood for, after the function was traced, or has failed."""
        self.changes([])
        while self._undo:
            put, was = self._undo.pop()
            put(was)


def _new_keys(space: Space) -> list[Any]:
    if space.only is not None:
        return [key for key in space.only if key not in space.keys and key in space.space]
    if len(space.space) == len(space.keys) and not space.keys - space.space.keys():
        return []
    new = [key for key in space.space if key not in space.keys and key not in _OURS]
    return [key for key in new if not (space.hidden and str(key).startswith("_"))]


def _has_tensors(value: Any) -> bool:
    if isinstance(value, Core):
        return True
    if not isinstance(value, (list, tuple, dict)):
        return False
    found: list[Core] = []
    flatten(value, found)
    return bool(found)


def put_back(rebound: list[Rebound], results: list[Core], count: int) -> list[Core]:
    """Puts what was computed in its places; the results of the function are left."""
    tensors = iter(results[count:])
    values = [unflatten(each.structure, tensors) for each in rebound]
    for each, value in zip(rebound, values, strict=True):
        each.put(value)
    return results[:count]


def is_list(value: Any) -> bool:
    """Whether a value is a list whose elements are guarded one by one."""
    return isinstance(value, (list, deque))
