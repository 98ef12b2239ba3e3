"""Models as they are run: programs of nodes, read once from the file's graphs and functions."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, final

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper, numpy_helper

from morok.errors import FormatError, UnsupportedModel
from morok.onnx.types import STRING, Array, is_known, numpy_type, type_name
from morok.onnx.values import Host


@final
class Node:
    """An operator's use: names of what goes in and comes out, and attributes as Python's values."""

    __slots__ = (
        "attributes",
        "captures",
        "domain",
        "index",
        "inputs",
        "name",
        "op",
        "outputs",
        "proto",
        "where",
    )

    def __init__(self, proto: NodeProto, index: int, scope: Scope) -> None:
        require_text(proto.op_type, proto.domain, proto.name, *proto.input, *proto.output)
        require_text(*(a.name for a in proto.attribute))
        self.proto, self.index = proto, index
        self.domain = "" if proto.domain == "ai.onnx" else proto.domain
        self.op = proto.op_type
        self.inputs = list(proto.input)
        self.outputs = list(proto.output)
        self.name = proto.name or (self.outputs[0] if self.outputs else "")
        self.where = _source_line(proto)
        self.attributes: dict[str, Any] = {}
        self.captures: set[str] = set()  # what its subgraphs take from around
        for attribute in proto.attribute:
            value = _attribute(attribute, scope)
            for program in value if isinstance(value, list) else [value]:
                if isinstance(program, Program):
                    self.captures |= program.captures
            self.attributes[attribute.name] = value

    def with_ports(self, inputs: list[str], outputs: list[str]) -> Node:
        """The same node between other values."""
        made = copy.copy(self)
        made.inputs, made.outputs = inputs, outputs
        return made

    @property
    def text(self) -> str:
        """As a line of a program."""
        called = f"{', '.join(self.outputs)} = {self.op}({', '.join(self.inputs)})"
        return called if self.name in self.outputs else f"{called}  # {self.name}"

    def __repr__(self) -> str:
        return f"{self.domain + '.' if self.domain else ''}{self.op} {self.name!r}"


def require_text(*names: Any) -> None:
    """Names in a file are UTF-8; the parser gives out others as they are."""
    for name in names:
        if not isinstance(name, str):
            raise FormatError(f"a name in the file is no text: {bytes(name)[:40]!r}")


def _source_line(proto: NodeProto) -> str:
    """The exporter's line that made a node, if the file says it."""
    for entry in proto.metadata_props:
        if entry.key in ("pkg.torch.onnx.stack_trace", "stack_trace", "source"):
            lines = [line.strip() for line in entry.value.splitlines() if "line" in line]
            return lines[-1][:200] if lines else ""
    return ""


@final
class Scope:
    """What a file's graphs share: versions of operator sets, its folder, and functions."""

    def __init__(
        self, versions: dict[str, int], folder: str, functions: dict[Any, Any] | None = None
    ) -> None:
        self.versions, self.folder = versions, folder
        self.functions = functions if functions is not None else {}
        self.depth = 0

    def version(self, domain: str) -> int:
        return self.versions.get(domain, 1)


_DEPTH = 64  # of graphs in graphs


@final
class Program:
    """A graph: what it takes, what it gives, its constants, its nodes in order."""

    def __init__(
        self,
        nodes: list[Node],
        inputs: list[str],
        outputs: list[str],
        constants: dict[str, Host],
        scope: Scope,
        infos: dict[str, onnx.ValueInfoProto] | None = None,
    ) -> None:
        self.nodes, self.inputs, self.outputs, self.constants = nodes, inputs, outputs, constants
        self.scope = scope
        self.infos = infos or {}
        self._check_order()
        self.needed = self._needed()
        self.ordered = [sorted(names) for names in self.needed]
        self.varying = [[name for name in names if name not in self.constants] for names in self.ordered]
        own = {*inputs, *constants}
        self.captures = {name for name in self.needed[0] if name not in own}
        self.read_on_host: set[str] = set()  # values that operators have asked for
        self.looked_into: set[str] = set()  # sequences of which it matters what is in them
        self.steps: dict[Any, Any] = {}  # compiled parts, by where they start and on what
        self.sizes_seen: dict[Any, Any] = {}
        self.ran: Any = None  # the part that began the last run
        self.walks: list[Any] = []  # of the body of a loop: rounds that are one part each
        self.lock = threading.RLock()

    def _check_order(self) -> None:
        made: set[str] = set()
        for node in self.nodes:
            for name in node.outputs:
                if name and (name in made or name in self.inputs):
                    raise FormatError(f"value {name!r} is made twice, the second time by node {node.name!r}")
                made.add(name)

    def _needed(self) -> list[frozenset[str]]:
        """For each node, the names that it and those after it take from before, and the results."""
        wanted = {name for name in self.outputs if name}
        found = [frozenset(wanted)]
        for node in reversed(self.nodes):
            wanted -= set(node.outputs)
            wanted |= {name for name in node.inputs if name} | node.captures
            found.append(frozenset(wanted))
        return found[::-1]


def _attribute(proto: AttributeProto, scope: Scope) -> Any:
    kind = proto.type
    if proto.ref_attr_name:
        raise UnsupportedModel(
            f"attribute {proto.name} refers to {proto.ref_attr_name} outside of a function"
        )
    if kind == AttributeProto.GRAPH:
        return read_graph(proto.g, scope)
    if kind == AttributeProto.GRAPHS:
        return [read_graph(g, scope) for g in proto.graphs]
    if kind == AttributeProto.TENSOR:
        return read_tensor(proto.t, scope)
    if kind == AttributeProto.TENSORS:
        return [read_tensor(t, scope) for t in proto.tensors]
    if kind == AttributeProto.SPARSE_TENSOR:
        return read_sparse(proto.sparse_tensor, scope)
    value = helper.get_attribute_value(proto)
    if kind == AttributeProto.STRING:
        return _text(value)
    if kind == AttributeProto.STRINGS:
        return [_text(v) for v in value]
    if kind in (AttributeProto.INTS, AttributeProto.FLOATS):
        return list(value)
    return value


def _text(value: bytes) -> Any:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value


def read_tensor(proto: TensorProto, scope: Scope, apart: Array | None = None) -> Host:
    """A constant of the file. Data outside of it are mapped, not read. `apart`: its bytes, if they are not
    in the message."""
    from morok.onnx.files import external_array, require_size

    if proto.data_type != STRING and not is_known(proto.data_type):
        raise UnsupportedModel(
            f"constant {proto.name!r} is of {type_name(proto.data_type)}, which is not supported"
        )
    found = require_size(proto, apart)
    if found is not None:
        return Host(found, proto.data_type, lasting=True)
    if proto.data_location == TensorProto.EXTERNAL:
        return Host(external_array(proto, scope.folder), proto.data_type, lasting=True)
    if proto.data_type == STRING:
        texts = [s.decode("utf-8", "surrogateescape") for s in proto.string_data]
        if len(texts) != int(np.prod(proto.dims, dtype=object) if proto.dims else 1):
            raise FormatError(f"constant {proto.name!r} has {len(texts)} strings, not what its shape says")
        flat = np.empty(len(texts), object)
        flat[:] = texts
        return Host(flat.reshape(tuple(proto.dims)), STRING, lasting=True)
    try:
        return Host(numpy_helper.to_array(proto), proto.data_type, lasting=True)
    except (ValueError, TypeError) as error:
        raise FormatError(f"constant {proto.name!r} cannot be read: {error}") from None


def read_sparse(proto: onnx.SparseTensorProto, scope: Scope) -> Host:
    """A sparse constant, filled up."""
    from morok.onnx.files import require_count

    shape = tuple(proto.dims)
    require_count(proto.values.name, shape, numpy_type(proto.values.data_type).itemsize)
    values, places = read_tensor(proto.values, scope).array, read_tensor(proto.indices, scope).array
    dense = np.zeros(shape, values.dtype)
    try:
        if places.ndim == 1:
            dense.reshape(-1)[places] = values
        else:
            dense[tuple(places.T)] = values
    except IndexError:
        raise FormatError(
            f"sparse constant {proto.values.name!r} has positions outside of its shape"
        ) from None
    return Host(dense, proto.values.data_type, lasting=True)


_NONE: Mapping[int, Array] = MappingProxyType({})


def read_graph(graph: GraphProto, scope: Scope, apart: Mapping[int, Array] = _NONE) -> Program:
    """A program from a graph of the file. `apart`: bytes of constants that are not in it, by number."""
    scope.depth += 1
    if scope.depth > _DEPTH:
        raise FormatError(f"graphs lie more than {_DEPTH} deep in each other")
    require_text(*(part.name for part in (*graph.initializer, *graph.input, *graph.output)))
    require_text(*(t.values.name for t in graph.sparse_initializer))
    try:
        constants = {t.name: read_tensor(t, scope, apart.get(n)) for n, t in enumerate(graph.initializer)}
        constants |= {t.values.name: read_sparse(t, scope) for t in graph.sparse_initializer}
        nodes = [Node(proto, n, scope) for n, proto in enumerate(graph.node)]
        infos = {info.name: info for info in (*graph.input, *graph.output)}
        inputs = [info.name for info in graph.input]
        return Program(nodes, inputs, [info.name for info in graph.output], constants, scope, infos)
    finally:
        scope.depth -= 1
