"""A loaded model: what it takes, what it gives, what it cannot do, and calls of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from onnx import TypeProto

from morok.device.registry import default_device
from morok.errors import ArgumentError, DTypeError, ShapeError
from morok.onnx.files import prepared, read_model
from morok.onnx.fold import folded
from morok.onnx.functions import has_body
from morok.onnx.graph import Node, Program, Scope, read_graph
from morok.onnx.operators import FAMILIES
from morok.onnx.replay import Recorder, Replay, may_replay, replay_of
from morok.onnx.run import Env, Runner
from morok.onnx.table import lookup
from morok.onnx.types import PLAIN, elem_of_array, numpy_type, type_name
from morok.onnx.values import Host, from_user, to_user
from morok.tensor.tensor import Tensor

assert FAMILIES  # imported for what it enters into the table
_MOST_HELD = 64  # arrays for inputs
_MOST_READ = 256  # bytes of an input that the host reads
_MOST_REPLAYS = 16
_TRIES = 3  # to make one


@final
@dataclass(frozen=True)
class Port:
    """An input or an output: its name, its type in words, and its sizes (names for those that are open)."""

    name: str
    type: str
    shape: tuple[int | str | None, ...] | None
    elem: int = 0

    def __str__(self) -> str:
        sizes = (
            ""
            if self.shape is None
            else "[" + ", ".join("?" if n is None else str(n) for n in self.shape) + "]"
        )
        return f"{self.name}: {self.type}{sizes}"


def _port(info: Any) -> Port:
    kind: TypeProto = info.type
    which = kind.WhichOneof("value")
    if which != "tensor_type":
        return Port(info.name, (which or "unknown").removesuffix("_type"), None)
    tensor = kind.tensor_type
    sizes = None
    if tensor.HasField("shape"):
        sizes = tuple(map(_size, tensor.shape.dim))
    return Port(info.name, type_name(tensor.elem_type), sizes, tensor.elem_type)


def _size(dim: Any) -> int | str | None:
    """A size, or the name of an open one; None for those that are called -1 or ?, which share nothing."""
    if dim.HasField("dim_value"):
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    named = any(c.isalpha() for c in dim.dim_param) and dim.dim_param != "None"
    return str(dim.dim_param) if named else None


@final
class Model:
    """A model, ready to be called. `load` makes one.

    `inputs` and `outputs` are lists of ports; `missing` names operators that there are not, so that nobody
    finds out half-way. `m(x, y)`, `m(name=x)` and `m({"name": x})` give a dict of arrays by output name;
    `m.run(["name"], {"name": x})` gives a list.
    """

    def __init__(self, program: Program, name: str, dims: Mapping[str, int] | None, symbolic: bool) -> None:
        self._program = program
        self._lock = threading.RLock()
        self._name = name
        self._folded: Program | None = None  # with what constants decide computed
        self.nodes = list(program.nodes)
        self._runner = Runner(name, symbolic)
        self._dims = dict(dims or {})
        self._held: dict[Any, tuple[Any, Tensor]] = {}
        self._replays: dict[Any, Replay | int] = {}  # by kinds of calls, or how often one could not be made
        self._fills = default_device() == "CPU"  # whose tensors may lie in arrays of ours
        open_ = [n for n in program.inputs if n not in program.constants]
        self.inputs = [_port(program.infos[n]) for n in open_]
        self.outputs = [_port(program.infos[n]) for n in program.outputs]
        self._optional = [n for n in program.inputs if n in program.constants]
        self.missing = sorted({str(m) for m in _missing(program)})

    @property
    def compiled(self) -> int:
        """How many parts have been compiled so far."""
        return self._runner.compiled

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        feeds = self._feeds(args, kwargs)
        names = [port.name for port in self.outputs]
        return dict(zip(names, self.run(names, feeds), strict=True))

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """The named outputs, or all of them, for inputs by name."""
        wanted = list(names) if names else [port.name for port in self.outputs]
        known = {port.name for port in self.outputs}
        for name in wanted:
            if name not in known:
                raise ArgumentError(f"the model has no output {name!r}; it has {', '.join(sorted(known))}")
        with self._lock:
            kind = self._kind(wanted, feeds)
            replay = self._replays.get(kind)
            if isinstance(replay, Replay) and replay.fits() and may_replay():
                return replay(feeds)
            program = self._program
            if not any(name in feeds for name in self._optional):  # constants are what the file says
                if self._folded is None:
                    self._folded = folded(program, self._name)
                program = self._folded
            env = self._env(feeds, program)
            with self._recording(kind, env, program) as outputs:
                found = dict(zip(program.outputs, self._runner.run(program, env), strict=True))
                outputs += [found[name] for name in wanted]
                _together(outputs)
            return _apart([self._given_out(value) for value in outputs])

    def _kind(self, wanted: list[str], feeds: Mapping[str, Any]) -> Any:
        """What a call depends on besides numbers in tensors; None where that is more than this."""
        if len(feeds) != len(self.inputs) or self._folded is None or not self._fills:
            return None
        parts: list[Any] = [*wanted]
        for port in self.inputs:
            value = feeds.get(port.name)
            if value.__class__ is not np.ndarray:
                return None
            parts += (value.shape, value.dtype)
            if port.name in self._folded.read_on_host:
                if value.nbytes > _MOST_READ or value.dtype.kind == "O":
                    return None
                parts.append(value.tobytes())
        return tuple(parts)

    @contextmanager
    def _recording(self, kind: Any, env: Env, program: Program) -> Iterator[list[Any]]:
        """Around a call, whose outputs are put into the list: the next one of its kind may be a replay."""
        outputs: list[Any] = []
        tried = self._replays.get(kind, 0)
        if kind is None or isinstance(tried, Replay) or tried >= _TRIES:
            yield outputs
            return
        self._runner.recorder = recorder = Recorder()
        compiled = self._runner.compiled
        try:
            yield outputs
        finally:
            self._runner.recorder = None
        inputs = {
            name: held
            for name, held in ((port.name, self._held_for(port.name, env)) for port in self.inputs)
            if held is not None
        }
        if self._runner.compiled == compiled and may_replay():
            if len(self._replays) >= _MOST_REPLAYS:
                self._replays.clear()
            self._replays[kind] = replay_of(recorder, inputs, outputs) or tried + 1

    def _held_for(self, name: str, env: Env) -> tuple[Any, Tensor] | None:
        """The memory of an input that is filled for each call."""
        value = env.get(name)
        return next((held for held in self._held.values() if held[1] is value), None)

    def _given_out(self, value: Any) -> Any:
        """What somebody gets, and may write to: of inputs that are passed on, and of constants, a copy."""
        if isinstance(value, list):
            return [self._given_out(item) for item in value]
        array = to_user(value)
        if not isinstance(array, np.ndarray) or not array.size:
            return array
        known = isinstance(value, Host) or (
            isinstance(value, Tensor)
            and "_made_by" not in value.__dict__
            and value._storage.frozen is not None
        )
        if known or any(np.may_share_memory(array, held) for held, _ in self._held.values()):
            return array.copy()  # the memory of inputs is filled again
        return array

    def _taken(self, name: str, value: Any, program: Program) -> Any:
        """A fed array in memory that is used again for the next one: the plan finds its inputs in place."""
        if name not in program.needed[0]:
            return None
        plain = isinstance(value, np.ndarray) and value.size and elem_of_array(value) in PLAIN
        if not plain or not self._fills:
            return from_user(value)
        if name in program.read_on_host:  # by an operator that has to know the values
            return Host(value.copy())
        key = (name, value.shape, value.dtype)
        if key not in self._held:
            if len(self._held) >= _MOST_HELD:
                self._held.clear()
            own = np.empty(value.shape or 1, value.dtype)
            tensor = Tensor.from_numpy(own) if value.ndim else Tensor.from_numpy(own).reshape(())
            if not np.may_share_memory(own, tensor.numpy()):
                return from_user(value)
            self._held[key] = own, tensor
        own, tensor = self._held[key]
        np.copyto(own, value)
        return tensor

    def _feeds(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if len(args) == 1 and not kwargs and isinstance(args[0], Mapping):
            return dict(args[0])
        if len(args) > len(self.inputs):
            raise ArgumentError(f"the model takes {len(self.inputs)} inputs, not {len(args)}")
        feeds = {port.name: value for port, value in zip(self.inputs, args, strict=False)}
        for name, value in kwargs.items():
            if name in feeds:
                raise ArgumentError(f"input {name!r} is given twice")
            feeds[name] = value
        return feeds

    def _env(self, feeds: Mapping[str, Any], program: Program) -> Env:
        env: Env = {}
        sizes = dict(self._dims)
        for port in self.inputs:
            if port.name not in feeds:
                raise ArgumentError(
                    f"input {port.name!r} is missing; the model takes {', '.join(map(str, self.inputs))}"
                )
            env[port.name] = self._taken(port.name, _checked(port, feeds[port.name], sizes), program)
        unknown = set(feeds) - {port.name for port in self.inputs} - set(self._optional)
        if unknown:
            raise ArgumentError(
                f"the model has no input {sorted(unknown)[0]!r}; it takes {', '.join(map(str, self.inputs))}"
            )
        for name in set(feeds) & set(self._optional):
            env[name] = from_user(feeds[name])
        return env

    def __repr__(self) -> str:
        return f"Model({', '.join(map(str, self.inputs))} -> {', '.join(map(str, self.outputs))})"


def _checked(port: Port, value: Any, sizes: dict[str, int]) -> Any:
    """A fed value of the declared type and shape; Python's numbers and lists become what is declared."""
    if port.shape is None and not port.elem:
        return value
    if value is None:
        return None
    if not isinstance(value, Tensor | np.ndarray):
        value = np.asarray(value)
        if value.dtype.kind in "fiub" and port.elem:
            value = value.astype(numpy_type(port.elem))
    if isinstance(value, np.ndarray) and port.elem:
        found = elem_of_array(value)
        if found != port.elem:
            have = value.dtype if found is None else type_name(found)
            raise DTypeError(f"input {port.name!r} is of {port.type}, and {have} was given")
    if port.shape is not None:
        _check_shape(port, tuple(value.shape), sizes)
    return value


def _check_shape(port: Port, shape: tuple[Any, ...], sizes: dict[str, int]) -> None:
    assert port.shape is not None
    if len(shape) != len(port.shape):
        raise ShapeError(f"input {port} has {len(port.shape)} axes, and {list(shape)} was given")
    for axis, (n, wanted) in enumerate(zip(shape, port.shape, strict=True)):
        if isinstance(wanted, int) and n != wanted:
            raise ShapeError(f"input {port} was given with shape {list(shape)}: axis {axis} must be {wanted}")
        if isinstance(wanted, str) and sizes.setdefault(wanted, n) != n:
            raise ShapeError(
                f"input {port} was given with shape {list(shape)}: {wanted} is {sizes[wanted]} here"
            )


def _apart(values: list[Any]) -> list[Any]:
    """Arrays of which none is a part of another one."""
    found = [
        (np.lib.array_utils.byte_bounds(v), n) for n, v in enumerate(values) if isinstance(v, np.ndarray)
    ]
    end = 0
    for (start, stop), n in sorted(found):
        if start < end:
            values[n] = values[n].copy()
        end = max(end, stop)
    return values


def _together(values: list[Any]) -> None:
    """Results that are still lazy are computed in one plan."""
    # What a plan has given out is computed; asking its node would make one.
    lazy = [v for v in values if isinstance(v, Tensor) and "_made_by" not in v.__dict__ and not v.is_realized]
    if lazy:
        lazy[0].realize(*lazy[1:])


def _missing(program: Program) -> Iterable[str]:
    for node in program.nodes:
        yield from _missing_of(program, node)


def _missing_of(program: Program, node: Node) -> Iterable[str]:
    version = program.scope.version(node.domain)
    if lookup(node.domain, node.op, version) is None and not has_body(node.domain, node.op, version):
        yield f"{node.domain or 'ai.onnx'}.{node.op} (version {version}), node {node.name!r}"
    for value in node.attributes.values():
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, Program):
                yield from _missing(inner)


def load(source: Any, dims: Mapping[str, int] | None = None, symbolic: bool = True) -> Model:
    """A model from a path, bytes or a ModelProto. `dims` fixes open sizes by name.

    Sizes that change between calls become symbolic; with `symbolic=False` each set of sizes is compiled.
    """
    proto, folder, apart = read_model(source)
    proto = prepared(proto)
    versions = {("" if s.domain == "ai.onnx" else s.domain): s.version for s in proto.opset_import}
    name = os.path.basename(os.fspath(source)) if isinstance(source, str | os.PathLike) else proto.graph.name
    return Model(read_graph(proto.graph, Scope(versions, folder), apart), name or "model", dims, symbolic)
