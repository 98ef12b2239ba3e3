"""Rule sets: ordered lists of rules, checked when they are built, added with `+`, and registered by name."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

from morok import knobs
from morok.errors import RuleError
from morok.rewrite.checks import check
from morok.rewrite.rules import DEFAULT_CLASSES, Numeric, Rule, Rules, collect, is_shipped, parameters
from morok.rewrite.terms import Term

_ids = itertools.count(1)


@final
class RuleSet:
    """An ordered list of rules; the first that matches wins. `a + b` is a set with a's rules before b's."""

    __slots__ = ("id", "matchers", "name", "rules", "uses_context")

    def __init__(self, name: str, ruleset: Iterable[Rule], checked: bool = False) -> None:
        self.name = name
        self.rules = tuple(ruleset)
        self.id = next(_ids)
        self.uses_context = any(_asks_for_context(r) for r in self.rules)
        self.matchers: dict[Any, Any] = {}  # compiled forms, kept by the engine
        if not checked:
            check(self.rules)

    def __add__(self, other: RuleSet) -> RuleSet:
        return join(f"{self.name} + {other.name}", self, other)

    def active(self, classes: frozenset[Numeric] = DEFAULT_CLASSES) -> tuple[Rule, ...]:
        """The rules of the allowed numeric classes."""
        return tuple(r for r in self.rules if r.numeric in classes)

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def __repr__(self) -> str:
        return f"<rules {self.name}: {len(self.rules)}>"


def join(name: str, *sets: RuleSet) -> RuleSet:
    """The rules of several sets one after the other, each once, under a new name.

    Each set has been checked by itself. Rules of one set that hide those of another are looked for when the
    knob SPEC asks for checks, as the tests do; a user's process does not pay for it.
    """
    found = dict.fromkeys(rule for s in sets for rule in s.rules)
    NAMED_SETS[name] = result = RuleSet(name, found, checked=not knobs.SPEC.value)
    return result


def _asks_for_context(rule: Rule) -> bool:
    return any(not isinstance(f, Term) and "ctx" in parameters(f) for f in (rule.after, *rule.conditions))


REGISTRY: dict[str, RuleSet] = {}  # where rules are written
NAMED_SETS: dict[str, RuleSet] = {}  # what they are put together to


def rules(name: str) -> Callable[[Callable[..., Rules]], RuleSet]:
    """Makes a rule set out of a generator of rules and enters it in the registry."""

    def decorate(function: Callable[..., Rules]) -> RuleSet:
        result = RuleSet(name, collect(name, function), checked=is_shipped(function))
        old = REGISTRY.get(name)
        if old is not None and old.rules and result.rules and old.rules[0].place != result.rules[0].place:
            raise RuleError(f"there is a rule set called {name!r} already", place=old.rules[0].place)
        REGISTRY[name] = result
        return result

    return decorate
