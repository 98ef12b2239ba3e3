"""Guards: what a traced function takes from outside. Python values are compared, tensors are looked up."""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import call, is_, itemgetter
from typing import Any, final

import numpy as np

from morok.ir.node import UOp
from morok.tensor.core import Core
from morok.tensor.jit.arguments import home
from morok.tensor.jit.rebinding import (
    MISSING,
    SIMPLE,
    Cell,
    ClassEntry,
    Names,
    Place,
    Slot,
    Space,
    is_list,
    put_of,
    spaces_of,
)

_MOST_GUARDS = 20_000
_SMALL_ARRAY = 1 << 16  # bytes of an array whose contents are compared, not only its identity
_LAYERS = "morok.nn."  # objects of these modules hold tensors and settings; others of ours are machinery


@final
class Guard:
    """A Python value that was there when the function was traced, and where to look for it."""

    __slots__ = ("get", "name", "value")

    def __init__(self, name: str, get: Callable[[], Any], value: Any) -> None:
        self.name = name
        self.get = get
        self.value = value

    def changed(self) -> bool:
        now = self.get()
        if now is self.value:
            return False
        if not isinstance(now, SIMPLE) or type(now) is not type(self.value):
            return True
        if isinstance(now, (float, complex)):  # 0.0 == -0.0, and nan != nan
            return repr(now) != repr(self.value)
        return bool(now != self.value)


@final
class _Watched:
    """All guards, in the form in which they are looked at at every call: entries of one dictionary together,
    and of those that were not there only that nothing has come."""

    def __init__(self, guards: Sequence[Guard]) -> None:
        self.count = len(guards)
        spaces: dict[int, tuple[Any, list[Guard]]] = {}
        self.others: list[Guard] = []
        for guard in guards:
            space = _space_of(guard.get)
            if space is None:
                self.others.append(guard)
            else:
                spaces.setdefault(id(space), (space, []))[1].append(guard)
        self.getters, self.values = [g.get for g in self.others], [g.value for g in self.others]
        self.spaces: list[tuple[Any, Callable[[Any], Any], list[Any], frozenset[Any], list[Guard]]] = []
        for space, members in spaces.values():
            there = [g for g in members if g.value is not MISSING]
            there = there if len(there) != 1 else there * 2  # of one key `itemgetter` makes no tuple
            entries = itemgetter(*map(_key_of, there)) if there else _nothing
            absent = frozenset(_key_of(g) for g in members if g.value is MISSING)
            self.spaces.append((space, entries, [g.value for g in there], absent, members))

    def suspects(self) -> list[Guard]:
        """Guards whose values may not be what they were: none, or few."""
        found: list[Guard] = []
        same = list(map(is_, map(call, self.getters), self.values))
        if False in same:
            found += [guard for guard, is_same in zip(self.others, same, strict=True) if not is_same]
        for space, entries, values, absent, members in self.spaces:
            try:
                if not all(map(is_, entries(space), values)) or (absent and not absent.isdisjoint(space)):
                    found += members
            except KeyError:
                found += members
        return found


def _space_of(get: Callable[[], Any]) -> Any:
    """The dictionary that a getter looks into; None if it does something else."""
    space = getattr(get.func, "__self__", None) if isinstance(get, partial) else None
    return space if type(space) in (dict, types.MappingProxyType) else None


def _key_of(guard: Guard) -> Any:
    assert isinstance(guard.get, partial)
    return guard.get.args[0]


def _nothing(space: Any) -> tuple[()]:
    return ()


@final
class Guards:
    """All that a function may read from outside."""

    def __init__(self) -> None:
        self.values: list[Guard] = []
        self.getters: list[Getter] = []  # of tensors, each tensor once
        self.signatures: list[Any] = []
        self.nodes: list[weakref.ref[UOp]] = []  # that had them when somebody looked
        self.names: list[str] = []
        self.aliases: list[tuple[str, Getter, int]] = []  # other names of tensors, and which one it was
        self.without_gradient: list[bool] = []  # parameters that had none
        self.shared: list[int] = []
        self.places: list[Place] = []  # where the function could put something else
        self.lists: list[Any] = []
        self.spaces: list[Space] = []
        self._numbers: dict[int, int] = {}
        self._watched: _Watched | None = None

    @property
    def is_empty(self) -> bool:
        return not self.values and not self.names

    def add_tensor(self, name: str, get: Getter, tensor: Core) -> None:
        number = self._numbers.get(id(tensor))
        if number is not None:
            self.aliases.append((name, get, number))
            return
        self._numbers[id(tensor)] = len(self.getters)
        self.getters.append(get)
        self.names.append(name)
        self.signatures.append(_signature(tensor))
        self.nodes.append(weakref.ref(tensor._uop))
        gradient = getattr(tensor, "_grad", None)
        self.without_gradient.append(gradient is None and getattr(tensor, "_leaf", False))
        if gradient is not None:
            self.add_tensor(f"{name}.grad", lambda: getattr(get(), "_grad", None), gradient)

    def notes(self, name: str, value: Any) -> None:
        """A container, into which the function could put something."""
        if is_list(value):
            self.lists.append(value)
        else:
            hidden = str(getattr(value, "__module__", "")).startswith(_LAYERS)
            self.spaces += spaces_of(name, value, hidden)

    def before(self) -> Names:
        """What names stand for now, before the function runs."""
        return Names(self.places, self.lists, self.spaces)

    def tensors(self) -> list[Core]:
        """The tensors as they are now."""
        return list(map(call, self.getters))

    def suspects(self) -> list[Guard]:
        """Guards of Python values that may have changed."""
        if self._watched is None or self._watched.count != len(self.values):
            self._watched = _Watched(self.values)
        return self._watched.suspects()

    def changed(self, now: Sequence[Any]) -> str | None:
        """None, or what is not as it was when the function was traced; `now` are the tensors."""
        for watch in self.suspects():
            if watch.changed():
                return f"{watch.name} was {watch.value!r:.60}"
        if _shared(now) != self.shared:
            return "tensors share memory in another way"
        for name, get, number in self.aliases:
            if get() is not now[number]:
                return f"{name} is another tensor"
        number = 0
        for tensor, signature, ref in zip(now, self.signatures, self.nodes, strict=True):
            if not isinstance(tensor, Core):
                return f"{self.names[number]} is another tensor"
            if self.without_gradient[number] and getattr(tensor, "_grad", None) is not None:
                return f"{self.names[number]}.grad was None"
            node = tensor._uop
            # The same node has the same shape, type and device.
            known = ref() is node and tensor._leaf is signature[3] and tensor._chain == signature[4]
            if not known:
                if _signature(tensor) != signature:
                    return f"{self.names[number]} has another shape, type or device"
                self.nodes[number] = weakref.ref(node)
            number += 1  # noqa: SIM113 - by hand is faster
        return None


def _signature(tensor: Core) -> Any:
    return tensor.shape, tensor.dtype, home(tensor), tensor._leaf, tensor._chain


def _shared(tensors: Sequence[Any]) -> list[int]:
    """For each tensor, the first one that shows the same storage."""
    first: dict[int, int] = {}
    return [first.setdefault(id(getattr(t, "_storage", t)), n) for n, t in enumerate(tensors)]


Getter = Callable[[], Any]


@final
class _Always:
    """A part of something that cannot be changed: there is nothing to guard but what is inside of it."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self) -> Any:
        return self.value


def _entry(space: Mapping[Any, Any], key: Any) -> Getter:
    return partial(space.get, key, MISSING)


def _attribute(value: Any, name: str) -> Getter:
    return ClassEntry.of(value, name) if isinstance(value, type) else _entry(vars(value), name)


def _element(xs: Any, i: int) -> Getter:
    return lambda: xs[i] if i < len(xs) else MISSING


def _free_variables(function: Any) -> Iterator[tuple[str, Getter]]:
    """What a function can read besides its arguments: its object, its closure, its globals."""
    if isinstance(function, types.MethodType):
        owner = function.__self__
        yield "self", lambda: owner
        function = function.__func__
    code = getattr(function, "__code__", None)
    if code is None:
        if callable(function) and not isinstance(function, type):
            yield type(function).__name__, lambda: function
        return
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        yield name, Cell(cell)
    if function.__defaults__:
        yield "defaults", partial(getattr, function, "__defaults__")
    if function.__kwdefaults__:
        yield "defaults by name", partial(getattr, function, "__kwdefaults__")
    space = function.__globals__
    names = _names(code)
    for name in names:
        if name in space:
            yield name, _entry(space, name)
            value = space[name]
            if isinstance(value, (types.ModuleType, type)) and not _is_ours(value):
                for inner in names:  # of a module or a class only what the function may ask for
                    if inner in vars(value):
                        yield f"{name}.{inner}", _attribute(value, inner)


def _names(code: types.CodeType) -> dict[str, None]:
    """The names that a function and the functions written inside of it look up."""
    found = dict.fromkeys(code.co_names)
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            found |= _names(part)
    return found


def _is_ours(value: Any) -> bool:
    name = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    return str(name).split(".", 1)[0] in ("morok", "numpy")


def _inside(name: str, value: Any) -> Iterator[tuple[str, Getter]]:
    """The parts of a value that a function may read."""
    if isinstance(value, tuple):
        for i, part in enumerate(value):
            yield f"{name}[{i}]", _Always(part)
    elif is_list(value):
        yield f"len({name})", partial(len, value)
        for i in range(len(value)):
            yield f"{name}[{i}]", _element(value, i)
    elif isinstance(value, dict):
        yield f"len({name})", partial(len, value)
        for key in value:
            yield f"{name}[{key!r}]", _entry(value, key)
    elif isinstance(value, partial):
        for inner in ("func", "args", "keywords"):
            yield f"{name}.{inner}", _Always(getattr(value, inner))
    elif isinstance(value, (types.FunctionType, types.MethodType)):
        for inner, get in _free_variables(value):
            yield f"{name}.{inner}", get
    elif type(value).__module__ == "morok.tensor.jit.jit":
        for inner, get in _free_variables(value.function):
            yield f"{name}.{inner}", get
    elif not isinstance(value, (type, types.ModuleType, Core)):
        space = getattr(value, "__dict__", {})
        hidden = str(getattr(value, "__module__", "")).startswith(_LAYERS)  # private parts of layers are ours
        for key in space:
            if not (hidden and str(key).startswith("_")):
                yield f"{name}.{key}", _entry(space, key)
        for key in _shared_names(type(value)) if hasattr(value, "__dict__") else ():
            if key not in space:  # an own value would hide the one of the class
                yield f"{name}.{key}", _entry(space, key)
        for slot in _slots(type(value)):
            yield f"{name}.{slot}", Slot(value, slot)
        yield f"type({name})", lambda: _Class(type(value))


def _shared_names(kind: type) -> dict[str, None]:
    """What objects of a class have from it, by name."""
    parts = [part for part in kind.__mro__ if not _is_foreign(part)]
    return {name: None for part in parts for name in vars(part) if not name.startswith("__")}


def _slots(kind: type) -> Iterator[str]:
    for part in kind.__mro__:
        names = vars(part).get("__slots__", ())
        if not _is_foreign(part):
            yield from (names,) if isinstance(names, str) else names


def _is_foreign(kind: type) -> bool:
    """Whether a class is machinery: nobody changes what its objects share."""
    return _is_ours(kind) or kind.__module__.split(".", 1)[0] in sys.stdlib_module_names


@final
class _Class:
    """A class as what its objects share: methods, and values that they have no own ones of."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def parts(self) -> Iterator[tuple[str, Getter]]:
        for kind in self.kind.__mro__:
            if _is_foreign(kind):
                continue
            space = vars(kind)
            for name, value in space.items():
                if not name.startswith("__") or isinstance(value, types.FunctionType):
                    yield f"{kind.__name__}.{name}", ClassEntry.of(kind, name)


def guards_of(function: Any, tensors: bool = True, arguments: Iterable[Any] = ()) -> Guards:
    """Everything that the function may read from outside; without `tensors` only Python values.

    `arguments` are values that it is given and may look into.
    """
    found = Guards()
    seen: set[int] = set()
    pending = list(_free_variables(function))
    if tensors:
        found.notes("globals", getattr(function, "__func__", function))
    for n, argument in enumerate(arguments):
        if not isinstance(argument, SIMPLE):
            pending.append((f"argument {n}", _Always(argument)))
    while pending and len(found.values) < _MOST_GUARDS:
        name, get = pending.pop()
        value = get()
        if isinstance(value, (types.ModuleType, type, types.BuiltinFunctionType)):
            continue
        if isinstance(value, _Class):
            if id(value.kind) not in seen:
                seen.add(id(value.kind))
                pending += value.parts()
            continue
        if isinstance(value, property):
            pending.append((name, _Always(value.fget)))
            continue
        put = put_of(get) if tensors else None
        if put is not None:
            found.places.append(Place(get, put))
        if isinstance(value, Core):
            if tensors:
                found.add_tensor(name, get, value)
            continue
        if isinstance(value, np.ndarray):
            found.values.append(_guarded_array(name, get, value))
            continue
        module = str(getattr(value, "__module__", ""))
        is_layer = module.startswith(_LAYERS) and not isinstance(value, types.FunctionType)
        if module.startswith(("morok.", "numpy")) and not is_layer:
            continue
        if not isinstance(get, _Always):
            found.values.append(Guard(name, get, value))
        if id(value) not in seen and not isinstance(value, SIMPLE):
            seen.add(id(value))
            pending += _inside(name, value)
            if tensors:
                found.notes(name, value)
    found.shared = _shared(found.tensors())
    return found


def _guarded_array(name: str, get: Getter, array: Any) -> Guard:
    """An array is compared by its contents if it is small, so that one changed in place is noticed."""

    def contents() -> Any:
        now = get()
        if not isinstance(now, np.ndarray):
            return now
        return (now.shape, str(now.dtype), now.tobytes()).__repr__() if now.nbytes <= _SMALL_ARRAY else now

    return Guard(name, contents, contents())


__all__ = ["Guards", "guards_of"]
