"""Values in order, and where they were: two results, of which often only the first is looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, final


@final
class Sorted(tuple[Any, Any]):
    """Values, and where they were: what `sort` and `topk` return.

    Who looks at the values alone spares whoever sorts the positions, which take more time than the values
    (`later`). Who looks at the positions after that gets both anew.
    """

    _fields = ("values", "indices")
    _alone: Callable[[], Any] | None = None
    _both: Callable[[], tuple[Any, Any]] | None = None
    _first: Any = None
    _found: tuple[Any, Any] | None = None

    def __new__(cls, values: Any, indices: Any) -> Sorted:
        return super().__new__(cls, (values, indices))

    @classmethod
    def _make(cls, both: Iterable[Any]) -> Sorted:
        return cls(*both)

    @property
    def is_later(self) -> bool:
        """Whether nothing was made yet, for nobody has looked."""
        return self._both is not None

    @classmethod
    def later(cls, alone: Callable[[], Any], both: Callable[[], tuple[Any, Any]]) -> Sorted:
        """Of which values alone are one thing, and values with positions another."""
        new = cls(None, None)
        new._alone, new._both = alone, both
        return new

    def _pair(self) -> tuple[Any, Any]:
        if self._found is None:
            if self._both is None:
                values, indices = super().__iter__()
                self._found = values, indices
            else:
                values, indices = self._both()
                if self._first is not None:
                    values = self._first
                self._found = values, indices
        return self._found

    @property
    def values(self) -> Any:
        if self._found is None and self._alone is not None:
            if self._first is None:
                self._first = self._alone()
            return self._first
        return self._pair()[0]

    @property
    def indices(self) -> Any:
        return self._pair()[1]

    def __getitem__(self, place: Any) -> Any:
        return self.values if place in (0, -2) else self._pair()[place]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._pair())

    def __reversed__(self) -> Iterator[Any]:
        return iter(self._pair()[::-1])

    def __add__(self, other: Any) -> Any:
        return self._pair() + other

    def __radd__(self, other: Any) -> Any:
        return other + self._pair()

    def __eq__(self, other: object) -> bool:
        return self._pair() == (other._pair() if isinstance(other, Sorted) else other)

    def __hash__(self) -> int:
        return hash(self._pair())

    def __contains__(self, item: object) -> bool:
        return item in self._pair()

    def __repr__(self) -> str:
        values, indices = self._pair()
        return f"Sorted(values={values!r}, indices={indices!r})"

    def __reduce__(self) -> Any:
        return Sorted, self._pair()
