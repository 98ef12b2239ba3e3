"""Programs, part by part.

A part is a stretch of nodes that one plan computes. It ends where an operator has to know values (the sizes
of a reshape that were computed from data, the condition of a branch), or where a node runs other programs.
Parts are remembered by where they start and by what they start on: shapes, types, and values on the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from morok.errors import MorokError, ShapeError, SizesDiffer, UnsupportedModel
from morok.onnx.functions import expanded, has_body
from morok.onnx.graph import Node, Program
from morok.onnx.replay import Recorder
from morok.onnx.sizes import (
    MOST_TIMED,
    Seen,
    Steps,
    bound_in,
    decide,
    give_up,
    is_symbolic,
    narrowed,
    raised,
    settled,
    sizes_of,
    stepped,
    tensors_in,
    with_variables,
)
from morok.onnx.table import (
    Call,
    NeedBody,
    NeedItems,
    NeedSteps,
    NeedValue,
    OpenSize,
    Operator,
    compute,
    lookup,
)
from morok.onnx.values import SMALL, Coded, Grown, Host, Value, passing, read, spilled
from morok.tensor.jit.jit import Jit
from morok.tensor.jit.variables import Bound, rebound, unbound, unbound_shape
from morok.tensor.tensor import Tensor

Env = dict[str, Value]
_CODE = compile("run(*given)", "model", "eval")
_MOST_PARTS = 4096  # that a program remembers


@final
class Tracer:
    """Computes nodes one after the other, as tensors that nothing has run for yet."""

    def __init__(self, name: str) -> None:
        self.name = name

    def advance(self, program: Program, start: int, env: Env) -> tuple[int, str | None]:
        """Trace from a node on; where it stopped, and the name of the value that is asked for there."""
        for number in range(start, len(program.nodes)):
            node = program.nodes[number]
            try:
                self.node(program, node, env)
            except NeedValue as need:
                return number, node.inputs[need.number]
            except NeedSteps:
                return number, None
        return len(program.nodes), None

    def inline(self, program: Program, env: Env) -> list[Value]:
        """Trace a whole program inside of another; what cannot be a part of a plan is run in steps."""
        own: Env = {**env, **program.constants}
        end, _ = self.advance(program, 0, own)
        if end < len(program.nodes):
            raise NeedSteps
        return [own[name] if name else None for name in program.outputs]

    def node(self, program: Program, node: Node, env: Env) -> None:
        values = [take(env, name, node) if name else None for name in node.inputs]
        around = [env.get(name) for name in node.captures]
        lasting = all(is_lasting(v) for v in (*values, *around) if v is not None)
        row, version = find(program, node)
        if row is None:
            give(env, node, expanded(node, program, values, self.inline), lasting)
            return
        call = Call(node, version, self, env, program)
        code = _CODE.replace(
            co_filename=f"{self.name}:{node.name}".replace("/", "."),
            co_firstlineno=node.index,
            co_name=node.text,  # what a page of the run shows as its line
        )
        try:
            with naming(node):
                outputs = eval(code, {"run": compute, "given": (row, call, values)})
        except NeedBody:
            outputs = expanded(node, program, values, self.inline)
        give(env, node, outputs, lasting)


def find(program: Program, node: Node) -> tuple[Operator | None, int]:
    """The row of the table for a node; None for one that runs as the graph that the specification gives."""
    version = program.scope.version(node.domain)
    row = lookup(node.domain, node.op, version)
    if row is None and not has_body(node.domain, node.op, version):
        raise UnsupportedModel(
            f"{node!r}: version {version} of {node.domain or 'ai.onnx'} has no such operator here"
        )
    return row, version


def _may_step(program: Program, node: Node) -> bool:
    """Whether a node can be run between plans."""
    row, _ = find(program, node)
    return row is None or row.reads or row.steps is not None


def take(env: Env, name: str, node: Node) -> Value:
    try:
        return env[name]
    except KeyError:
        raise UnsupportedModel(f"{node!r} reads {name!r}, which nothing has made before it") from None


def _output(env: Env, name: str) -> Value:
    if name and name not in env:
        raise UnsupportedModel(f"output {name!r} is made by nothing")
    return env[name] if name else None


def give(env: Env, node: Node, outputs: list[Value], lasting: bool) -> None:
    """Enter what a node has made under the names of its outputs. `lasting`: it takes nothing but constants.

    Of other nodes also a constant is what this call has made: another branch may give another one.
    """
    for number, name in enumerate(node.outputs):
        if not name:
            continue
        if number >= len(outputs):
            raise UnsupportedModel(
                f"{node!r} has {len(node.outputs)} outputs; {len(outputs)} are computed here"
            )
        value = outputs[number]
        if not lasting:
            value = passing(value)
        elif isinstance(value, Host):
            value.lasting = True
        env[name] = value


_ODD = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, AssertionError, RecursionError)


class naming:  # noqa: N801 - used as a statement
    """Whatever goes wrong inside names the node, once."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, _ODD) and not isinstance(
            error, MorokError
        ):  # what an operator did not think of is said about the node as well
            said = UnsupportedModel(f"it cannot be computed ({type(error).__name__}: {error})")
            self.__exit__(None, said, None)
            raise said from error
        if isinstance(error, MorokError) and not hasattr(error, "node"):
            error.node = self.node  # type: ignore[attr-defined]
            error.args = (f"{self.node!r}: {error.message}", *error.args[1:])
            error.place = self.node.where or None


# --- what a part starts on, and leaves


def signature(value: Value) -> Any:
    """What a compiled part depends on of a value that it starts on."""
    if isinstance(value, Tensor):
        return unbound_shape(value.shape), value.dtype
    if isinstance(value, Host):
        if value.symbolic:
            return value.elem, value.shape, tuple(unbound(n) for n in value.array.reshape(-1))
        if value.is_text:
            return value.shape, tuple(value.array.reshape(-1))
        return value.elem, value.shape, value.array.tobytes()
    if isinstance(value, Coded):
        return "coded", value.elem, unbound_shape(value.shape)
    if isinstance(value, list):
        return tuple(map(signature, value))
    if isinstance(value, Grown):
        return "grown", value.name, tuple(map(signature, value.added))
    if isinstance(value, dict):
        return tuple(sorted(value.items()))
    return value


def form_of(value: Value) -> Any:
    """A signature without sizes."""
    if isinstance(value, Tensor):
        return len(value.shape), value.dtype
    if isinstance(value, Host):
        if value.array.dtype.kind == "i" and value.array.size <= 16:
            return value.elem, value.shape
        return signature(value)
    if isinstance(value, Coded):
        return "coded", value.elem, len(value.shape)
    if isinstance(value, list):
        return tuple(map(form_of, value))
    return signature(value)


def rebuilt(value: Value, tensors: Any, size: Callable[[Any], Any]) -> Value:
    """A value with other tensors in it, and with other sizes."""
    if isinstance(value, Tensor):
        return next(tensors)  # type: ignore[no-any-return]
    if isinstance(value, Coded):
        return Coded(next(tensors), value.elem)
    if isinstance(value, list):
        return [rebuilt(item, tensors, size) for item in value]
    if isinstance(value, Grown):
        return Grown(value.name, [rebuilt(item, tensors, size) for item in value.added])
    if isinstance(value, Host) and value.symbolic:
        flat = np.empty(value.array.size, object)
        flat[:] = [size(n) for n in value.array.reshape(-1)]
        return Host(flat.reshape(value.array.shape), value.elem)
    return value


@final
@dataclass
class Part:
    """A compiled stretch: its plan, where it ends, and what it leaves."""

    names: list[str]
    plan: Jit | None = None
    end: int = 0
    asked: str | None = None
    left: dict[str, Value] = field(default_factory=dict)  # with tensors as they were traced
    first: list[Tensor] | None = None  # what the run that compiled it has given
    forms: tuple[Any, ...] = ()  # of tensors and arrays that it starts on, where there is nothing else
    sizes: tuple[int, ...] = ()  # that it was compiled for, but for those that are variables
    variables: dict[int, Steps] = field(default_factory=dict)  # by the number of the size
    looked_at: int = 0  # how many traces there were when somebody asked whether it is a round

    def starts_on(self, values: list[Value], variables: dict[int, Steps]) -> None:
        """Take down the form of values whose sizes are known."""
        if all(isinstance(value, Tensor | Host) for value in values):
            self.forms, self.sizes = tuple(map(form_of, values)), sizes_of(values)
            self.variables = variables

    def run(self, env: Env, recorder: Recorder | None = None) -> Env:
        given = [env[name] for name in self.names]
        first, self.first = self.first, None
        if first is None:
            arguments = _arguments(given)
            first = self.plan(*arguments) if self.plan is not None else []
            if recorder is not None and self.plan is not None:
                recorder.part(self.plan, arguments, first)
        results = iter(first)
        bound = bound_in(given)
        return {name: rebuilt(v, results, lambda n: rebound(n, bound)) for name, v in self.left.items()}


def _arguments(values: list[Value]) -> list[Any]:
    """What a plan is called with: the tensors, and the variables that only numbers on the host have."""
    tensors = [t for value in values for t in tensors_in(value)]
    if not any(isinstance(value, Host) and value.symbolic for value in values):
        return tensors
    of_tensors: Bound = {}
    for tensor in tensors:
        unbound_shape(tensor.shape, of_tensors)
    rest = {v: bind for v, bind in bound_in(values).items() if v not in of_tensors}
    return [*tensors, *rest.values()]


@final
class Runner:
    """Runs programs; compiled parts stay with the program."""

    def __init__(self, name: str, symbolic: bool = True) -> None:
        self.tracer = Tracer(name)
        self.symbolic = symbolic
        self.compiled = 0  # parts so far
        self._taken: frozenset[str] = frozenset()  # variables of the programs around the one that runs
        self._timed: tuple[Seen, tuple[int, ...]] | None = (
            None  # the sizes that a part with variables runs on
        )
        self.recorder: Recorder | None = None  # who notes what a call runs

    def run(self, program: Program, env: Env) -> list[Value]:
        """The outputs of a program, given its inputs and what it takes from around."""
        # an initialiser that is an input may be fed something else
        plain = program.constants.keys().isdisjoint(env)
        env = {**program.constants, **env}
        at = 0
        with program.lock:
            while at < len(program.nodes):
                at = self._advance(program, at, env, (program.varying if plain else program.ordered)[at])
        return [_output(env, name) for name in program.outputs]

    def _advance(self, program: Program, at: int, env: Env, candidates: list[str]) -> int:
        for name in program.read_on_host:
            if name in program.needed[at] and isinstance(env.get(name), Tensor | Coded):
                env[name] = read(env[name])
                self.refuse()
        names = [n for n in candidates if n in env and not is_lasting(env[n])]
        lists = [n for n in names if isinstance(env[n], list) and n not in program.looked_into]
        given = {**env, **{n: Grown(n, []) for n in lists}} if lists else env
        try:
            part = self._part(program, at, given, names)
        except NeedItems as need:
            program.looked_into.add(need.name)
            return self._advance(program, at, env, candidates)
        start, timed, again = time.perf_counter(), self._timed, part.first is None
        self._timed = None
        for name, value in {**(given if lists else {}), **part.run(given, self.recorder)}.items():
            env[name] = [*_list(env, value.name), *value.added] if isinstance(value, Grown) else value
        if timed is not None and again:
            seen, sizes = timed
            if len(seen.spent) >= MOST_TIMED:
                seen.spent.clear()
            seen.spent[sizes] = seen.spent.get(sizes, 0.0) + time.perf_counter() - start
        if at == 0:
            program.ran = part
        if part.end < len(program.nodes) and part.asked is None:
            around = self._taken
            values = [env[name] for name in program.varying[part.end] if name in env]
            self._taken = around | {str(variable.arg[0]) for variable in bound_in(values)}
            try:
                self._steps(program, program.nodes[part.end], env)
            finally:
                self._taken = around
            return part.end + 1
        return part.end

    def refuse(self) -> None:
        """What runs now depends on more than the kind of what the call was given."""
        if self.recorder is not None:
            self.recorder.refuse()

    def _spill(self, env: Env, names: list[str]) -> None:
        for name in names:
            value = env[name]
            if isinstance(value, Host) and not value.is_text and value.array.size > SMALL:
                env[name] = value.tensor()

    def _steps(self, program: Program, node: Node, env: Env) -> None:
        row, version = find(program, node)
        values = [take(env, name, node) if name else None for name in node.inputs]
        if row is None:
            give(env, node, expanded(node, program, values, self.run), False)
            return
        call = Call(node, version, self, env, program)
        if not row.replays:
            self.refuse()
        with naming(node):
            if row.reads:  # as many elements as the data say: tensors whose sizes may change
                outputs = [spilled(v) for v in compute(row, call, [read(v) for v in values], between=True)]
            elif row.steps is None:
                raise UnsupportedModel("it cannot be run between plans")
            else:
                outputs = row.steps(call, values)
        give(env, node, outputs, False)

    # --- parts

    def _part(self, program: Program, at: int, env: Env, names: list[str]) -> Part:
        self._spill(env, names)
        values = [env[name] for name in names]
        key = (at, tuple(names), tuple(map(signature, values)))
        known = program.steps.get(key)
        if known is not None:
            return known  # type: ignore[no-any-return]
        around = any(map(is_symbolic, values))  # sizes that are variables since an earlier part
        if self.symbolic:
            form = (at, tuple(names), tuple(signature(v) if is_symbolic(v) else form_of(v) for v in values))
            seen = program.sizes_seen.setdefault(form, Seen())
            part = self._with_variables(program, at, env, names, seen)
            if part is not None:
                return part
            if (sizes := sizes_of(_numbers(values))) not in seen.odd:
                seen.known.append(sizes)
        if self.symbolic and not around:
            start = time.perf_counter()
            part = self._compiled(program, at, env, names)
            seen.cost = time.perf_counter() - start
            part.starts_on(values, {})
            self._remember(program, key, part)
            return part
        try:
            part = self._compiled(program, at, env, names)
        except (MorokError, MemoryError):
            if not around:
                raise
            # Something needs numbers: from here on the sizes are those of this call.
            for name in names:
                env[name] = settled(env[name])
            return self._part(program, at, env, names)
        self._remember(program, key, part)
        return part

    def _remember(self, program: Program, key: Any, part: Part) -> None:
        if len(program.steps) >= _MOST_PARTS:
            del program.steps[next(iter(program.steps))]
        program.steps[key] = part

    def _with_variables(
        self, program: Program, at: int, env: Env, names: list[str], seen: Seen
    ) -> Part | None:
        values = [env[name] for name in names]
        plain = _numbers(values)
        taken = self._taken | {str(variable.arg[0]) for variable in bound_in(values)}
        variables = decide(seen, sizes_of(plain), taken)
        if not variables:
            return None
        try:
            made = with_variables(plain, variables)
            changed = [v if is_symbolic(v) else new for v, new in zip(values, made, strict=True)]
            key = (at, tuple(names), tuple(map(signature, changed)))
            part = program.steps.get(key)
            trial = {**env, **dict(zip(names, changed, strict=True))}
            if part is None:
                part = self._compiled(program, at, trial, names)
                self._remember(program, key, part)
                if not any(map(is_symbolic, values)):
                    part.starts_on(values, variables)
        except (MorokError, MemoryError) as error:
            if isinstance(error, SizesDiffer) and stepped(seen, sizes_of(plain)):
                return self._with_variables(program, at, env, names, seen)
            bounds = isinstance(error, ShapeError) and not isinstance(error, OpenSize)
            if bounds and (raised(seen, sizes_of(plain)) or narrowed(seen)):
                return self._with_variables(program, at, env, names, seen)
            give_up(seen, sizes_of(plain))
            return None
        self._timed = seen, sizes_of(plain)
        env.update(trial)
        return part

    def _compiled(self, program: Program, at: int, env: Env, names: list[str]) -> Part:
        part = Part(names)
        given = [env[name] for name in names]
        around = {n: v for n, v in env.items() if is_lasting(v)}
        symbolic = any(map(is_symbolic, given))

        def function(*arguments: Any) -> list[Tensor]:
            source = iter(arguments)  # tensors come first
            inner: Env = dict(around)
            for name, value in zip(names, given, strict=True):
                inner[name] = rebuilt(value, source, unbound)
            before = set(inner)
            part.end, part.asked = self.tracer.advance(program, at, inner)
            ends = part.asked is None and part.end < len(program.nodes)
            if ends and symbolic and not _may_step(program, program.nodes[part.end]):
                raise OpenSize(f"{program.nodes[part.end]!r} needs known sizes")
            wanted = program.needed[part.end]
            part.left = {n: v for n, v in inner.items() if n in wanted and n not in before}
            return [t for value in part.left.values() for t in tensors_in(value)]

        plan = Jit(function, guard_tensors=False)
        self._first_run(plan, _arguments(given), part)
        self.compiled += 1
        if part.asked is not None:
            program.read_on_host.add(part.asked)
        return part

    def _first_run(self, plan: Jit, flat: list[Any], part: Part) -> None:
        part.first = plan(*flat)
        if any(tensors_in(value) for value in part.left.values()):
            part.plan = plan


def _list(env: Env, name: str) -> list[Any]:
    found = env[name]
    assert isinstance(found, list), name
    return found


def _numbers(values: list[Value]) -> list[Value]:
    """The values whose sizes are numbers; None in place of the others."""
    return [None if is_symbolic(value) else value for value in values]


def is_lasting(value: Value) -> bool:
    return isinstance(value, Host) and value.lasting
