"""The table of operators: a row is a Python function, with the versions of the operator that it computes.

The signature of a function says how it is called. Positional parameters are the node's inputs, converted to
what their annotations say: `T` a tensor, `Ints` whole numbers that are known while tracing (sizes may be
symbolic), `Nums` numbers that are known, `Value` whatever there is; `| None` where the input may be absent.
Keyword parameters are attributes. One that a node has and the function has not is an error: nothing that a
file says is dropped in silence. A parameter `call` gets the node itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar, final

from morok.errors import DTypeError, MorokError, ShapeError, UnsupportedModel
from morok.onnx.types import type_name
from morok.onnx.values import SMALL, Coded, Host, Value, elem_of
from morok.tensor.tensor import Tensor

T: TypeAlias = Tensor
Ints: TypeAlias = "tuple[Any, ...]"
Nums: TypeAlias = "tuple[Any, ...]"

_REQUIRED: Any = object()


class NeedValue(Exception):
    """An operator wants to know the values of an input, by its number, before it can be traced."""

    def __init__(self, number: int) -> None:
        self.number = number


class NeedItems(Exception):
    """An operator looks into a sequence that a part starts on, by its name."""

    def __init__(self, name: str) -> None:
        self.name = name


class OpenSize(ShapeError):
    """A size has to be a number, whatever is known about it."""


class NeedBody(Exception):
    """A case of an operator that is run as the graph that the specification gives."""


class NeedSteps(Exception):
    """An operator cannot be part of a plan: it is run step by step, between plans."""


@dataclass(frozen=True)
class Parameter:
    name: str
    kind: str
    optional: bool
    many: bool


@final
@dataclass(frozen=True)
class Operator:
    """A row of the table."""

    domain: str
    name: str
    since: int
    until: int | None
    function: Callable[..., Any]
    inputs: tuple[Parameter, ...]
    attributes: dict[str, Any] = field(hash=False)
    takes_call: bool
    moves: bool  # elements are moved only, so codes will do
    steps: Callable[..., Any] | None = None  # runs the node between plans
    reads: bool = False  # it computes with values on the host, between plans
    replays: bool = False  # its steps tell a recorder what they run

    @property
    def note(self) -> str:
        """The first line of what the function says about itself."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]


_TABLE: dict[tuple[str, str], list[Operator]] = {}
_ON_HOST: dict[tuple[str, str], Callable[..., Any]] = {}

F = TypeVar("F", bound=Callable[..., Any])


def op(
    *names: str,
    since: int = 1,
    until: int | None = None,
    domain: str = "",
    moves: bool = False,
    steps: Callable[..., Any] | None = None,
    reads: bool = False,
    replays: bool = False,
) -> Callable[[F], F]:
    """A decorator that enters a function into the table under the names of operators."""

    def enter(function: F) -> F:
        inputs, attributes, call = _read_signature(function)
        for name in names:
            row = Operator(
                domain, name, since, until, function, inputs, attributes, call, moves, steps, reads, replays
            )
            _TABLE.setdefault((domain, name), []).append(row)
        return function

    return enter


def on_host(*names: str, domain: str = "") -> Callable[[F], F]:
    """A decorator for what operators do with small arrays that are known while tracing."""

    def enter(function: F) -> F:
        for name in names:
            _ON_HOST[domain, name] = function
        return function

    return enter


def _read_signature(function: Callable[..., Any]) -> tuple[tuple[Parameter, ...], dict[str, Any], bool]:
    inputs, attributes, call = [], {}, False
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "call":
            call = True
        elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            required = parameter.default is inspect.Parameter.empty
            attributes[name.removesuffix("_")] = _REQUIRED if required else parameter.default
        else:
            kind = str(parameter.annotation)
            many = parameter.kind is inspect.Parameter.VAR_POSITIONAL
            optional = kind.endswith("| None")
            inputs.append(Parameter(name, kind.removesuffix("| None").strip(), optional, many))
    return tuple(inputs), attributes, call


def lookup(domain: str, name: str, version: int) -> Operator | None:
    """The row for an operator in a version of its domain's set."""
    for row in _TABLE.get((domain, name), ()):
        if row.since <= version and (row.until is None or version <= row.until):
            return row
    return None


def rows() -> Iterable[Operator]:
    """All rows, by domain and name."""
    return (row for key in sorted(_TABLE) for row in sorted(_TABLE[key], key=lambda row: row.since))


@final
class Call:
    """A node while it is computed: what an operator may ask besides its inputs and attributes."""

    def __init__(self, node: Any, version: int, tracer: Any, env: Any, program: Any) -> None:
        self.node, self.version, self.tracer, self.env, self.program = node, version, tracer, env, program
        self.between = False  # whether it is computed between plans, where tensors have values

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs; an empty name is an output that nobody wants."""
        return list(self.node.outputs)

    def wants(self, number: int) -> bool:
        """Whether somebody uses an output."""
        return number < len(self.node.outputs) and bool(self.node.outputs[number])

    def is_constant(self, *numbers: int) -> bool:
        """Whether inputs are the same at every call, or absent."""
        names = [self.node.inputs[n] for n in numbers if n < len(self.node.inputs)]
        values = [self.env.get(name) for name in names if name]
        return all(isinstance(v, Host) and v.lasting for v in values)


def compute(row: Operator, call: Call, values: list[Value], between: bool = False) -> list[Value]:
    """The outputs of a node for its inputs. `between`: no plan is being traced, so that values are there."""
    attributes = _attributes(row, call)
    call.between = between
    if (
        row.reads
        and not between
        and not all(v is None or (isinstance(v, Host) and v.lasting) for v in values)
    ):
        raise NeedSteps
    twin = _ON_HOST.get((row.domain, row.name))
    if twin is not None and _known(values, row.name in _MOVED):
        made = twin(call, *values, **{_safe(k): v for k, v in attributes.items()})
        if made is not NotImplemented:
            return list(made) if isinstance(made, tuple) else [made]
    coded = next((v.elem for v in values if isinstance(v, Coded)), None) if row.moves else None
    arguments = _arguments(row, call, [_uncoded(v) for v in values] if coded is not None else values)
    if row.takes_call:
        arguments.insert(0, call)
    made = row.function(*arguments, **{_safe(k): v for k, v in attributes.items()})
    results = list(made) if isinstance(made, tuple) else [made]
    if coded is not None:
        codes = next(_uncoded(v) for v in values if isinstance(v, Coded)).dtype
        return [Coded(r, coded) if isinstance(r, Tensor) and r.dtype is codes else r for r in results]
    return results


def between_plans(call: Call, values: list[Value]) -> list[Value]:
    """A node whose function itself does what has to be done between plans."""
    row = lookup(call.node.domain, call.node.op, call.version)
    assert row is not None
    return compute(row, call, values, between=True)


def _uncoded(value: Value) -> Any:
    if isinstance(value, Host) and not value.is_text:
        held = value.tensor()
        return held.codes if isinstance(held, Coded) else value
    return value.codes if isinstance(value, Coded) else value


def _safe(name: str) -> str:
    return name + "_" if name in ("else", "from", "lambda", "in", "to_") else name


# Constants are put in another order once and for all, also in branches, where nothing is computed before.
_MOVED = frozenset(("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Concat", "Slice", "Split"))
_MOST_MOVED = 1 << 22  # elements


def _known(values: list[Value], moves: bool) -> bool:
    """Whether the host can compute with all of them at once."""
    found = False
    for value in values:
        if value is None:
            continue
        if not isinstance(value, Host):
            return False
        most = _MOST_MOVED if moves and value.lasting else SMALL
        if value.array.size > most and not value.is_text:
            return False
        found = True
    return found


def _attributes(row: Operator, call: Call) -> dict[str, Any]:
    given = dict(call.node.attributes)
    found = {}
    for name, default in row.attributes.items():
        if name in given:
            found[name] = given.pop(name)
        elif default is _REQUIRED:
            raise UnsupportedModel(f"attribute {name} is missing")
        else:
            found[name] = default
    if given:
        raise UnsupportedModel(
            f"attribute {sorted(given)[0]} is not one that version {call.version} of {row.name} has here"
        )
    return found


def _arguments(row: Operator, call: Call, values: list[Value]) -> list[Any]:
    made: list[Any] = []
    for number, parameter in enumerate(row.inputs):
        if parameter.many:
            made += [converted(parameter.kind, v, n) for n, v in enumerate(values) if n >= number]
            return made
        value = values[number] if number < len(values) else None
        if value is None and not (number < len(call.node.inputs) and call.node.inputs[number]):
            if not parameter.optional:
                raise UnsupportedModel(f"input {parameter.name} is missing")
            made.append(None)
        else:
            made.append(converted(parameter.kind, value, number))
    if len(values) > len(row.inputs) and any(v is not None for v in values[len(row.inputs) :]):
        raise UnsupportedModel(f"{row.name} takes {len(row.inputs)} inputs here, not {len(values)}")
    return made


def converted(kind: str, value: Value, number: int) -> Any:
    """A value as a parameter wants it."""
    if kind == "Value":
        return value
    if kind == "T":
        return as_tensor(value)
    if kind in ("Ints", "Nums", "Text", "Known"):
        if not isinstance(value, Host):
            if isinstance(value, Tensor | Coded):
                raise NeedValue(number)
            raise DTypeError(f"input {number} is a {type(value).__name__}, and a tensor is wanted")
        if kind == "Known":
            return value
        if kind == "Text" and not value.is_text:
            raise DTypeError(f"input {number} is of {type_name(value.elem)}, and strings are wanted")
        if kind == "Text":
            return value.array
        flat = value.array.reshape(-1)
        return tuple(flat) if value.symbolic else tuple(flat.tolist())
    raise MorokError(f"unknown kind of parameter {kind}")


def as_tensor(value: Value) -> Tensor:
    """A value as a tensor of numbers."""
    if isinstance(value, Host):
        value = value.tensor()
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Coded):
        raise DTypeError(f"{type_name(elem_of(value))} is only stored and converted, not computed with")
    raise DTypeError(f"a {type(value).__name__} was given where a tensor is wanted")
