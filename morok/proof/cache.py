"""Proofs on disk, by the content of what was proved: a rule that has not changed is not proved again.

A key covers the rule's terms, domains, class and conditions and the prover's own source. A rule with code
also depends on whatever that code calls, so its key covers the source of the whole package. Only good news
is kept.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from morok import knobs
from morok.proof.smt.solver import z3
from morok.proof.verdicts import APPROXIMATION, LOWERING, OUT_OF_SCOPE, PROVED, Effort, RuleReport
from morok.rewrite.rules import Rule
from morok.rewrite.terms import ANY, Apply, As, DTypeOf, Fact, Lit, Term, Var

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGE = (_ROOT,)
_PROVER = tuple(_ROOT / room for room in ("proof", "ir", "dtype", "rewrite"))
_FIELDS = ("theory", "verdict", "seconds", "note", "cases")
_KEPT = frozenset((PROVED, OUT_OF_SCOPE, LOWERING, APPROXIMATION))
_MOST_ENTRIES = 20_000


def key_of(rule: Rule, effort: Effort) -> str:
    """What a proof of the rule depends on, as a hash."""
    parts = [rule.before, rule.after, *rule.conditions]
    text = [dump(p) if isinstance(p, Term) else _named(p) for p in parts]
    text += [rule.name, rule.numeric.value, str(rule.unproved), repr(effort), z3.get_version_string()]
    code = [p for p in parts if not isinstance(p, Term)]
    text.append(_source_of(_PACKAGE if code else _PROVER))
    text += [_source_of((Path(file),)) for file in sorted(_files_outside(code))]
    return hashlib.sha256("\n".join(text).encode()).hexdigest()


def key_of_law(name: str) -> str:
    """The same for a law of interval arithmetic."""
    return hashlib.sha256(
        "\n".join([name, z3.get_version_string(), _source_of(_PROVER)]).encode()
    ).hexdigest()


def dump(term: Any) -> str:
    """Everything that a term consists of, as text; unlike `show`, which is for readers."""
    if isinstance(term, Var):
        return f"{type(term).__name__}:{term.DOMAIN}:{term.CONSTANT}:{term.MANY}:{term.name!r}"
    if isinstance(term, Lit):
        return f"{type(term.value).__name__}:{term.value!r}"
    if isinstance(term, As):
        return f"As({dump(term.var)},{dump(term.term)})"
    if isinstance(term, Fact):
        return f"Fact({term.kind},{dump(term.var)})"
    if isinstance(term, DTypeOf):
        return f"DTypeOf({dump(term.var)},{term.scalar})"
    if not isinstance(term, Apply):
        return repr(term)
    ops = "|".join(op.name for op in term.ops)
    src = "any" if term.src is None else f"[{','.join(map(dump, term.src))}]"
    arg = "any" if term.arg is ANY else dump(term.arg)
    return f"Apply({ops};{src};{term.commutative};{arg};{dump(term.dtype)})"


def _plain(function: Any) -> Any:
    """What a partial application applies."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.unwrap(function)


def _named(function: Any) -> str:
    inner = _plain(function)
    name = f"{getattr(inner, '__module__', '')}.{getattr(inner, '__qualname__', type(inner).__qualname__)}"
    fixed = [f"{f.args!r} {f.keywords!r}" for f in (function,) if isinstance(f, functools.partial)]
    return " ".join(["code", name, *fixed])


def _files_outside(functions: Iterable[Any]) -> set[str]:
    """The files of code that is not in the package."""
    found = set()
    for function in functions:
        inner = _plain(function)
        code = getattr(inner, "__code__", None) or getattr(type(inner).__call__, "__code__", None)
        if code is not None and not str(inner.__module__).startswith("morok."):
            found.add(str(code.co_filename))
    return found


@cache
def _source_of(places: tuple[Path, ...]) -> str:
    """A hash over Python files, and over all below a folder."""
    digest = hashlib.sha256()
    for place in places:
        for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            if file.exists():
                digest.update(file.name.encode() + b"\0" + file.read_bytes())
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
        and isinstance(entry["cases"], int)
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


def recalled(name: str, place: str, numeric: str, entry: dict[str, Any]) -> RuleReport:
    """A report from the disk."""
    return RuleReport(name=name, place=place, numeric=numeric, **{f: entry[f] for f in _FIELDS})
