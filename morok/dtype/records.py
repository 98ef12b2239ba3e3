"""Dataclasses whose methods are written when they are first called.

The standard library compiles some six functions for every dataclass when its module is loaded, two thirds of
a millisecond each time: a third of what importing this package took. Most processes make some of each kind,
and neither print nor compare them: `__init__` is written alone, which takes a quarter of that. A record is a
dataclass in every other respect; type checkers take it for one.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from morok.forks import at_fork

_METHODS = ("__init__", "__repr__", "__eq__", "__hash__")
_FACTS = ("__dataclass_fields__", "__dataclass_params__", "__match_args__")
_FIRST = frozenset(("__init__", "__dataclass_fields__", "__match_args__"))  # what making one takes
_FROZEN = ("__setattr__", "__delattr__")
_NOT_COPIED = frozenset(("__dict__", "__weakref__", *_FROZEN))


class _Locks:
    """A lock that a forked child makes anew: whoever held it has not come along."""

    def __init__(self) -> None:
        self.renew()
        at_fork(child=self.renew)

    def renew(self) -> None:
        self.writing = threading.RLock()


_locks = _Locks()


class _Unwritten:
    """Stands where a method will be; who asks for it has it written."""

    __slots__ = ("name", "options", "owner")

    def __init__(self, owner: type, name: str, options: dict[str, Any]) -> None:
        self.owner, self.name, self.options = owner, name, options

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        with _locks.writing:
            if self is vars(self.owner).get(self.name):  # no other thread has written it meanwhile
                _write(self.owner, self.options, self.name in _FIRST)
        return getattr(owner if instance is None else instance, self.name)


def _write(cls: Any, options: dict[str, Any], first: bool) -> None:
    """The standard library makes a twin of the class, and the class gets its methods, one by one.

    At no time is one of them missing: another thread may be about to call it.
    """
    plain = {n: v for n, v in vars(cls).items() if n not in _NOT_COPIED and not isinstance(v, _Unwritten)}
    known = plain.get("__dataclass_fields__", {})  # from the first time: defaults are not all attributes
    plain.update({name: known[name] for name in plain.get("__annotations__", ()) if name in known})
    alone = first and not any(hasattr(base, "__dataclass_fields__") for base in cls.__bases__)
    what = {"init": False, "repr": False, "eq": False} if alone else options
    twin: Any = dataclasses.dataclass(**what)(type(cls)(cls.__name__, cls.__bases__, plain))
    made = dict(vars(twin))
    if alone:
        made = {name: made[name] for name in made if name in plain or name in _FIRST}
        made["__init__"] = _init(cls, dataclasses.fields(twin), options.get("frozen", False))
    for name, value in plain.items():
        if isinstance(value, dataclasses.Field):  # its default, if any, is the attribute
            if name in made:
                setattr(cls, name, made[name])
            elif name in vars(cls):
                delattr(cls, name)
    for name, value in made.items():
        if isinstance(vars(cls).get(name), _Unwritten):
            setattr(cls, name, value)


class _Factory:
    """The default of a field that is made anew every time."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


def _init(cls: type, fields: Sequence[dataclasses.Field[Any]], frozen: bool) -> Any:
    """`__init__` as the standard library has it."""
    known: dict[str, Any] = {"_set_": object.__setattr__, "_factory_": _FACTORY}
    given, lines = ["self"], []
    for field in fields:
        name, value = field.name, field.name
        if field.default is not dataclasses.MISSING:
            known[f"_default_{name}"] = field.default
            given.append(f"{name}=_default_{name}")
        elif field.default_factory is not dataclasses.MISSING:
            known[f"_factory_{name}"] = field.default_factory
            given.append(f"{name}=_factory_")
            value = f"_factory_{name}() if {name} is _factory_ else {name}"
        else:
            given.append(name)
        lines.append(f"    _set_(self, {name!r}, {value})" if frozen else f"    self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("    self.__post_init__()")
    exec(f"def __init__({', '.join(given)}):\n" + ("\n".join(lines) or "    pass"), known)
    made = known["__init__"]
    made.__qualname__, made.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    made.__annotations__ = {field.name: field.type for field in fields} | {"return": None}
    return made


def _freeze(cls: Any) -> None:
    """What keeps attributes from being changed needs no compiler."""

    def refuse(self: Any, name: str, what: str) -> None:
        if type(self) is cls or name in cls.__dataclass_fields__:
            raise dataclasses.FrozenInstanceError(f"cannot {what} field {name!r}")

    def set_attribute(self: Any, name: str, value: Any) -> None:
        refuse(self, name, "assign to")
        super(cls, self).__setattr__(name, value)

    def delete_attribute(self: Any, name: str) -> None:
        refuse(self, name, "delete")
        super(cls, self).__delattr__(name)

    cls.__setattr__ = set_attribute
    cls.__delattr__ = delete_attribute


def _record(cls: type | None = None, /, **options: Any) -> Any:
    if cls is None:
        return lambda cls: _record(cls, **options)
    eq, frozen = options.get("eq", True), options.get("frozen", False)
    if set(options) - {"eq", "frozen"}:
        raise TypeError(f"a record has no {', '.join(sorted(set(options) - {'eq', 'frozen'}))}")
    own = vars(cls)
    options_of_fields = [v for v in own.values() if isinstance(v, dataclasses.Field)]
    if any(not f.init or f.kw_only is True for f in options_of_fields):
        raise TypeError("a record's fields are all given to it, by place or by name")
    wanted = [name for name in _METHODS if name not in own]
    if not eq:
        wanted = [name for name in wanted if name not in ("__eq__", "__hash__")]
    elif not frozen:
        if "__hash__" in wanted and "__eq__" in wanted:
            wanted.remove("__hash__")
            cls.__hash__ = None  # type: ignore[method-assign, assignment]
    if frozen:
        _freeze(cls)
    for name in (*_FACTS, *wanted):
        setattr(cls, name, _Unwritten(cls, name, options))
    return cls


def is_frozen(cls: type) -> bool:
    """Whether a class is a dataclass that refuses changes. Nothing is written because of the question."""
    unwritten = vars(cls).get("__dataclass_params__")
    if isinstance(unwritten, _Unwritten):
        return bool(unwritten.options.get("frozen", False))
    return bool(dataclasses.is_dataclass(cls) and cls.__dataclass_params__.frozen)  # type: ignore[attr-defined]


if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:
    record = _record

__all__ = ["is_frozen", "record"]
