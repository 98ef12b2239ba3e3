"""What a forked child needs: locks that nobody holds, and nothing half done.

A fork copies the process but only the thread that forks. Whatever another thread held stays held, and what it
was changing stays half changed. Three things are done about that, all through `os.register_at_fork`:

- short work that must not be cut in two (LLVM, SQLite, an import) is waited for before the fork;
- locks that guard only Python objects are made anew in the child (dictionaries are whole at any time);
- threads and connections are dropped in the child and started again when they are needed.

Properties that are computed once hold no lock at all: `cached_property`.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")

_PATIENCE = 30.0  # seconds: whoever holds something for longer is not waited for
_PACKAGES = sys.stdlib_module_names | {"morok", "llvmlite", "ml_dtypes", "numpy"}
_owners: list[tuple[weakref.ref[Any], str, Callable[[], Any]]] = []
_register = getattr(os, "register_at_fork", None)  # not on every system


def at_fork(
    *,
    before: Callable[[], object] | None = None,
    parent: Callable[[], object] | None = None,
    child: Callable[[], object] | None = None,
) -> None:
    """Has functions called around every fork of this process."""
    given = {"before": before, "after_in_parent": parent, "after_in_child": child}
    if _register is not None:
        _register(**{name: function for name, function in given.items() if function is not None})


def renewed(owner: object, name: str, make: Callable[[], T]) -> T:
    """A lock for an attribute of an object, which gets another one there in every forked child.

    The object is held weakly, and the lock is a plain one, so using it costs nothing more.
    """
    _owners[:] = [entry for entry in _owners if entry[0]() is not None]
    _owners.append((weakref.ref(owner), name, make))
    return make()


class cached_property(Generic[T]):  # noqa: N801
    """A property that is computed once for each object: two threads at a time may both compute it.

    Up to Python 3.11 the one of `functools` holds a lock for all objects of a class while it computes: a
    child that was forked meanwhile would wait for ever, and threads that compile wait for each other.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._name = ""
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> cached_property[T] | T:
        if instance is None:
            return self
        return instance.__dict__.setdefault(self._name, self._compute(instance))  # type: ignore[no-any-return]


def _renew_all() -> None:
    for owner, name, make in _owners:
        found = owner()
        if found is not None:
            setattr(found, name, make())


def _importing() -> bool:
    """Whether another thread imports something that morok needs: its lock would stay held in the child."""
    locks = getattr(getattr(importlib, "_bootstrap", None), "_module_locks", {})
    for name, ref in list(locks.items()):
        owner = getattr(ref(), "owner", None)
        if owner is not None and owner != get_ident() and name.partition(".")[0] in _PACKAGES:
            return True
    return False


class Held:
    """A lock that is taken before a fork and given back after it, on both sides: no work is cut in two.

    `rest` is called before the fork, while the lock is held; `renew` in a child if it could not be had.
    """

    __slots__ = ("_lock", "_renew", "_rest", "_taken")

    def __init__(
        self,
        lock: Callable[[], Any],
        renew: Callable[[], object],
        rest: Callable[[], object] = lambda: None,
    ) -> None:
        self._lock = lock
        self._renew = renew
        self._rest = rest
        self._taken: Any = None
        _held.append(self)

    def take(self) -> None:
        lock = self._lock()
        if lock is not None and lock.acquire(timeout=_PATIENCE):
            self._taken = lock
            self._rest()

    def give_back(self, in_child: bool) -> None:
        taken, self._taken = self._taken, None
        if taken is not None:
            taken.release()
        elif in_child:
            self._renew()


_held: list[Held] = []


def _before() -> None:
    until = time.monotonic() + _PATIENCE
    while True:
        while _importing() and time.monotonic() < until:  # first: an import may need one of the locks
            time.sleep(0.001)
        for held in _held:
            held.take()
        if not _importing() or time.monotonic() >= until:
            return
        _in_parent()  # one has begun while we waited for the locks


def _in_parent() -> None:
    for held in reversed(_held):
        held.give_back(False)


def _in_child() -> None:
    for held in reversed(_held):
        held.give_back(True)
    _renew_all()


at_fork(before=_before, parent=_in_parent, child=_in_child)
