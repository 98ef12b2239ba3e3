"""Machines from files. A file is TOML: facts and tables named as in `Machine` and `rates.py`, and besides

- `base`: another machine; only what differs is written, and `false` takes a table away;
- `[match]`: which processors it describes: `arch`, perhaps `cpu` (by LLVM) and `features` (all of them);
- `[feature.NAME]`: facts that hold only where the processor has that feature;
- `ops_missing`, `ops_added`: what it does not compute by itself although others do, and the reverse;
- `[llvm]`: `triple`, `cpu` and `features`, to make code for it on another machine;
- `[probes]`: times of the machine that the rates were fitted on, see `fit.py`.

`morok/machine/data/` has those that come along; `MOROK_MACHINE` names one of them, or a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from fnmatch import fnmatch
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Any, NamedTuple, get_args, get_origin, get_type_hints

from morok.dtype import DType, parse
from morok.errors import MachineError
from morok.ir.matrix import ALL_UNITS, TILE_UNITS, MatrixUnit, TileUnit
from morok.ir.ops import Op, Ops
from morok.machine.machine import BASIC_OPS, Machine
from morok.machine.processor import Processor

if TYPE_CHECKING:
    from pathlib import Path

_SPECIAL = ("base", "match", "feature", "llvm", "probes")


class Source(NamedTuple):
    """A file with its bases laid under it: the tables of a machine, and what is about the file itself."""

    name: str
    tables: Mapping[str, Any]
    match: Mapping[str, Any]
    features: Mapping[str, Mapping[str, Any]]
    llvm: Mapping[str, str]
    probes: Mapping[str, float]

    @property
    def processor(self) -> Processor:
        """The processor that code is made for where the machine is not this one."""
        try:
            return Processor(self.llvm["triple"], self.llvm["cpu"], self.llvm.get("features", ""))
        except KeyError as missing:
            raise MachineError(f"machine {self.name}: [llvm] has no {missing}") from None

    def machine(self, flags: frozenset[str] = frozenset(), **known: Any) -> Machine:
        """The machine, with the facts of its features, and what the system knows better."""
        tables = dict(self.tables)
        for feature, facts in self.features.items():
            if feature in flags:
                tables = _laid_over(tables, facts)
        fewer, more = (_ops(tables.pop(key, []), self.name) for key in ("ops_missing", "ops_added"))
        tables.setdefault("ops", BASIC_OPS - fewer | more)
        made: Machine = _made(Machine, {**tables, "name": self.name, **known}, self.name)
        return made


def data() -> Path:
    """Where the files are that come along."""
    from pathlib import Path  # few processes read a file of a machine

    return Path(__file__).parent / "data"


def names() -> list[str]:
    """The machines that come along."""
    return sorted(path.stem for path in data().rglob("*.toml"))


def sources(family: str) -> list[Source]:
    """All machines of a family that come along."""
    return [source(str(path)) for path in sorted((data() / family).glob("*.toml"))]


@cache
def source(name: str) -> Source:
    """A machine by its name, or a file by its path."""
    path = _path(name)
    table = _read(path)
    base = table.get("base")
    under = source(str(path.parent / base) if _is_path(base) else base) if base else None
    if under is None:
        under = Source(path.stem, {}, {}, {}, {}, {})
    plain = {key: value for key, value in table.items() if key not in _SPECIAL}
    features = {**under.features, **table.get("feature", {})}
    llvm = {**under.llvm, **table.get("llvm", {})}
    probes = table.get("probes", under.probes)
    return Source(path.stem, _laid_over(under.tables, plain), table.get("match", {}), features, llvm, probes)


@cache
def load(name: str) -> Machine:
    """The machine of a name or file, with all of its features."""
    found = source(name)
    return found.machine(frozenset(found.features))


def _is_path(name: str | None) -> bool:
    return name is not None and (name.endswith(".toml") or "/" in name)


def _path(name: str) -> Path:
    if _is_path(name):
        from pathlib import Path

        return Path(name).expanduser()
    for path in data().rglob(f"{name}.toml"):
        return path
    known = ", ".join(names())
    raise MachineError(f"there is no machine {name!r}; there are {known}, or give the path of a .toml file")


def _read(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MachineError(f"the machine's file {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise MachineError(f"the machine's file {path} is not TOML: {error}") from None


def _laid_over(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Tables in tables are laid over one another, anything else is replaced."""
    found = dict(under)
    for key, value in over.items():
        old = found.get(key)
        found[key] = _laid_over(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return found


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _made(kind: Any, table: Mapping[str, Any], where: str) -> Any:
    """A dataclass from a table, with an error for what it does not know or lacks."""
    hints = _hints(kind)
    unknown = [key for key in table if key not in hints]
    if unknown:
        raise MachineError(f"machine {where}: there is no {unknown[0]!r}; there are {', '.join(hints)}")
    values = {key: _value(hints[key], value, f"{where}: {key}") for key, value in table.items()}
    try:
        return kind(**values)
    except TypeError:
        missing = [f.name for f in fields(kind) if f.name not in values]
        raise MachineError(
            f"machine {where}: {kind.__name__} also needs one of {', '.join(missing)}"
        ) from None


def _value(hint: Any, value: Any, where: str) -> Any:
    """A value of a file as the type that a field has."""
    if isinstance(hint, UnionType):
        if value is False:
            return None
        hint = next(part for part in get_args(hint) if part is not type(None))
    if is_dataclass(value) or isinstance(value, frozenset):
        return value  # the caller has made it
    if hint is Op or hint is DType:
        return _named(hint, value, where)
    if is_dataclass(hint) and isinstance(hint, type) and hint not in (MatrixUnit, TileUnit):
        if isinstance(value, list):
            value = dict(zip((f.name for f in fields(hint)), value, strict=False))
        return (
            _made(hint, value, where) if isinstance(value, Mapping) else _wrong(where, hint.__name__, value)
        )
    origin = get_origin(hint)
    if origin in (tuple, frozenset):
        if not isinstance(value, list | tuple):
            _wrong(where, "a list", value)
        inner = get_args(hint)
        if inner[0] is MatrixUnit:
            return _units(ALL_UNITS, value, where)
        if inner[0] is TileUnit:
            return _units(TILE_UNITS, value, where)
        if origin is tuple and len(inner) > 1 and inner[1] is not Ellipsis:
            return tuple(_value(h, v, where) for h, v in zip(inner, value, strict=True))
        return origin(_value(inner[0], v, where) for v in value)
    if hint is float and type(value) is int:
        return float(value)
    return value if type(value) is hint else _wrong(where, hint.__name__, value)


def _wrong(where: str, wanted: str, value: Any) -> Any:
    raise MachineError(f"machine {where} is {value!r}, where {wanted} is wanted")


def _named(hint: Any, value: Any, where: str) -> Op | DType:
    if hint is DType:
        return parse(value)
    found = getattr(Ops, str(value), None)
    return found if isinstance(found, Op) else _wrong(where, "the name of an op", value)


def _ops(found: Any, where: str) -> frozenset[Any]:
    return frozenset(_named(Op, name, where) for name in found)


def _units(known: tuple[Any, ...], patterns: list[str], where: str) -> tuple[Any, ...]:
    """Matrix units by name, in the order of their table; `*` stands for anything."""
    for pattern in patterns:
        if not any(fnmatch(unit.name, pattern) for unit in known):
            _wrong(where, "the name of a matrix unit", pattern)
    return tuple(unit for unit in known if any(fnmatch(unit.name, p) for p in patterns))
