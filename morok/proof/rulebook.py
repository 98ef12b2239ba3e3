"""Every rule of the installed package, by set and by name. Needs no Z3."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable

import morok
from morok.errors import DeviceError, ProofError, RuleError
from morok.rewrite.rules import Rule
from morok.rewrite.ruleset import NAMED_SETS, REGISTRY, RuleSet

SKIPPED: dict[str, str] = {}  # modules without which the package was loaded, and why
# Rooms without rules, some of which load large libraries of others.
_ROOMS = ("__main__", "cli", "proof", "nn", "onnx", "torch", "viewer")
NOT_FOR_RULES = tuple(f"morok.{room}" for room in _ROOMS)


def load_registry() -> dict[str, RuleSet]:
    """Imports every module of the package that may have rules, so that all sets are registered.

    What an optional part needs and does not find is noted in `SKIPPED`. Everything else is an error: a set
    that does not build must not go unproved.
    """
    for module in pkgutil.walk_packages(morok.__path__, "morok.", onerror=lambda name: None):
        if module.name.startswith(NOT_FOR_RULES):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("morok"):
                raise
            SKIPPED[module.name] = str(error)
        except (DeviceError, ProofError) as error:
            SKIPPED[module.name] = str(error)
    return REGISTRY


def all_rules(sets: Iterable[RuleSet] | None = None) -> list[Rule]:
    """The rules of the sets, each once."""
    found = {id(rule): rule for ruleset in (REGISTRY.values() if sets is None else sets) for rule in ruleset}
    return list(found.values())


def select(set_name: str | None = None, rule_name: str | None = None) -> list[Rule]:
    """The rules of one set (or of all), with one name (or part of one)."""
    load_registry()
    chosen = all_rules(None if set_name is None else [find_set(set_name)])
    if rule_name is None:
        return chosen
    exact = [r for r in chosen if r.name == rule_name]
    named = exact or [r for r in chosen if rule_name in r.name]
    if not named:
        raise RuleError(f"there is no rule {rule_name!r}; `morok rules` lists them")
    return named


def find_set(name: str) -> RuleSet:
    """The rule set of that name."""
    found = load_registry().get(name) or NAMED_SETS.get(name)
    if found is None:
        known = ", ".join(sorted({*REGISTRY, *NAMED_SETS}))
        raise RuleError(f"there is no rule set {name!r}; the sets are {known}")
    return found
