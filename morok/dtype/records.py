"""Dataclasses whose methods are written when the first of them is called.

The standard library compiles some six functions for every dataclass when its module is loaded, two thirds of
a millisecond each time: a third of what importing this package took. Most processes call few of them. A
record is a dataclass in every other respect; type checkers take it for one.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING, Any

from morok.forks import at_fork

_METHODS = ("__init__", "__repr__", "__eq__", "__hash__")
_FACTS = ("__dataclass_fields__", "__dataclass_params__", "__match_args__")
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
    """Stands where a method will be; who asks for it has all of them written."""

    __slots__ = ("name", "options", "owner")

    def __init__(self, owner: type, name: str, options: dict[str, Any]) -> None:
        self.owner, self.name, self.options = owner, name, options

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        _write(self.owner, self.options)
        return getattr(owner if instance is None else instance, self.name)


def _write(cls: type, options: dict[str, Any]) -> None:
    """The standard library makes a twin of the class, and the class gets its methods, one by one.

    At no time is one of them missing: another thread may be about to call it.
    """
    with _locks.writing:
        own = dict(vars(cls))
        plain = {
            name: value
            for name, value in own.items()
            if name not in _NOT_COPIED and not isinstance(value, _Unwritten)
        }
        if not any(isinstance(value, _Unwritten) for value in own.values()):
            return
        made = vars(dataclasses.dataclass(**options)(type(cls)(cls.__name__, cls.__bases__, plain)))
        for name, value in plain.items():
            if isinstance(value, dataclasses.Field):  # its default, if any, is the attribute
                if name in made:
                    setattr(cls, name, made[name])
                else:
                    delattr(cls, name)
        for name, value in made.items():
            if name not in plain and name not in _NOT_COPIED:
                setattr(cls, name, value)


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
