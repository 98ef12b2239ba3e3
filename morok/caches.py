"""What is remembered, and how much of it: one class for every table that would grow with the program.

A `Cache` has a name and a bound. It keeps what was used lately: entries begin in a young half; when that is
full it becomes the old half, and the former old half is forgotten. What is asked for in the meantime moves
back to the young half. So a look-up of something recent costs one look into a dictionary, nothing is ever
forgotten all at once, and there are never more entries than the bound says. `morok caches` lists them.

Forgetting an entry only drops the reference: a kernel that a plan still holds goes on to exist.

Tables that must not forget what is alive (equal nodes are one object) hold it weakly instead; they say how
many entries they have through `watch`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, final

K = TypeVar("K")
V = TypeVar("V")


@final
class Cache(Generic[K, V]):
    """Values by key, at most so many. A value is never None, which means that there is none.

    Threads may use it together: at worst they compute something twice. Who asks for every node, or at every
    call of a method, looks into `recent` first.
    """

    __slots__ = ("_old", "bound", "evicted", "hits", "misses", "name", "recent")

    def __init__(self, name: str, bound: int) -> None:
        self.name = name
        self.bound = bound
        self.hits = self.misses = self.evicted = 0
        self.recent: dict[K, V] = {}
        self._old: dict[K, V] = {}
        CACHES[name] = self

    def get(self, key: K) -> V | None:
        """What is known under a key."""
        found = self.recent.get(key)
        if found is None:
            found = self._old.pop(key, None)
            if found is None:
                self.misses += 1
                return None
            self[key] = found
        self.hits += 1
        return found

    def __setitem__(self, key: K, value: V) -> None:
        young = self.recent
        if len(young) >= max(self.bound // 2, 1) and key not in young:
            self.evicted += len(self._old)
            self._old, self.recent = young, {}
            if self.bound < 2:
                self._old = {}
        self.recent[key] = value

    def __len__(self) -> int:
        return len(self.recent) + len(self._old)

    def __contains__(self, key: object) -> bool:
        return key in self.recent or key in self._old

    def items(self) -> list[tuple[K, V]]:
        """All that is known, the older half first."""
        return [*self._old.items(), *self.recent.items()]

    def clear(self) -> None:
        """Forgets everything."""
        self.recent, self._old = {}, {}


CACHES: dict[str, Cache[Any, Any]] = {}
WATCHED: dict[str, Callable[[], int]] = {}


def watch(name: str, entries: Callable[[], int]) -> None:
    """Lists a table that has a rule of its own: its entries live as long as somebody uses them."""
    WATCHED[name] = entries


def describe() -> list[tuple[str, str, str, str, str, str]]:
    """One row per table for people: name, entries, bound, hits, misses, evicted."""
    rows = [
        (c.name, f"{len(c):,}", f"{c.bound:,}", f"{c.hits:,}", f"{c.misses:,}", f"{c.evicted:,}")
        for c in CACHES.values()
    ]
    rows += [(name, f"{entries():,}", "in use", "", "", "") for name, entries in WATCHED.items()]
    return sorted(rows)


def clear_all() -> None:
    """Forgets everything that can be found out again."""
    for cache in CACHES.values():
        cache.clear()
