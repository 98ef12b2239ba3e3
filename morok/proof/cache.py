"""Proofs on disk, by the content of what was proved: a rule that has not changed is not proved again.

A key covers the rule's terms, domains, class and conditions and the prover's own source. A rule with code
also depends on whatever that code calls, so its key covers the source of all rooms that it may use. Only
good news is kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from morok import knobs
from morok.proof.solver import z3
from morok.proof.verdicts import LOWERING, OUT_OF_SCOPE, PROVED, Effort, RuleReport
from morok.rewrite.rules import Rule
from morok.rewrite.terms import Term, Var, show, subterms

_PACKAGE = Path(__file__).resolve().parent.parent
_FIELDS = ("theory", "verdict", "seconds", "note")
_KEPT = frozenset((PROVED, OUT_OF_SCOPE, LOWERING))
_MOST_ENTRIES = 20_000


def key_of(rule: Rule, effort: Effort) -> str:
    """What a proof of the rule depends on, as a hash."""
    parts = [rule.before, rule.after, *rule.conditions]
    text = [show(p) if isinstance(p, Term) else f"code {p.__module__}.{p.__qualname__}" for p in parts]
    for part in parts:
        if isinstance(part, Term):
            text += [f"{t.name}:{type(t).__name__}:{t.DOMAIN}" for t in subterms(part) if isinstance(t, Var)]
    text += [rule.name, rule.numeric.value, str(rule.unproved), repr(effort), z3.get_version_string()]
    text.append(_source_of(("proof", "ir", "dtype", "rewrite")))
    if any(not isinstance(p, Term) for p in parts):
        text.append(_source_of(_rooms(p for p in parts if not isinstance(p, Term))))
    return hashlib.sha256("\n".join(text).encode()).hexdigest()


def _rooms(functions: Iterable[Any]) -> tuple[str, ...]:
    """Rooms below morok, or files elsewhere, in which the functions are written."""
    return tuple(sorted({_room(f) for f in functions}))


def _room(function: Any) -> str:
    module = str(function.__module__)
    if module.startswith("morok."):
        return module.split(".")[1]
    return str(function.__code__.co_filename)


@cache
def _source_of(rooms: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for room in rooms:
        path = _PACKAGE / room
        files = sorted(path.rglob("*.py")) if path.is_dir() else [Path(room)]
        for file in files:
            if file.exists():
                digest.update(file.read_bytes())
    return digest.hexdigest()


def folder() -> Path:
    return Path(knobs.CACHE_DIR.value) / "proofs"


def _file() -> Path:
    return folder() / "proofs.json"


def load() -> dict[str, dict[str, Any]]:
    """All entries that make sense; an unreadable or foreign file counts as empty."""
    path = _file()
    try:
        status = path.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            return {}
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(data, dict):
        return {}
    return {key: entry for key, entry in data.items() if _makes_sense(entry)}


def _makes_sense(entry: Any) -> bool:
    if not isinstance(entry, dict) or set(entry) != set(_FIELDS) or entry["verdict"] not in _KEPT:
        return False
    return (
        isinstance(entry["theory"], str)
        and isinstance(entry["note"], str)
        and isinstance(entry["seconds"], int | float)
    )


def save(found: dict[str, RuleReport]) -> None:
    """Adds reports to what is on disk.

    Trouble with the disk is no reason to fail: the proofs are just made again.
    """
    new = {k: {f: getattr(r, f) for f in _FIELDS} for k, r in found.items() if r.verdict in _KEPT}
    if not new:
        return
    entries = {**load(), **new}
    entries = dict(list(entries.items())[-_MOST_ENTRIES:])
    try:
        folder().mkdir(parents=True, exist_ok=True, mode=0o700)
        folder().chmod(0o700)
        handle, name = tempfile.mkstemp(dir=folder(), prefix=".proofs")  # readable by its owner only
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(entries, file, indent=0)
        os.replace(name, _file())
    except OSError:
        return


def recalled(rule: Rule, entry: dict[str, Any]) -> RuleReport:
    """A report from the disk."""
    fields = {f: entry[f] for f in _FIELDS}
    return RuleReport(name=rule.name, place=rule.place, numeric=rule.numeric.value, **fields)
