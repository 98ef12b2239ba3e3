"""Operators that the specification itself writes as graphs of others: they are run as those graphs.

The table goes first, because a function of tensors is easier to compile than a graph of small steps. What is
not in the table and has a body in the installed package, also in a newer version than this room knows, runs.
"""

from __future__ import annotations

from typing import Any

import onnx
from onnx import AttributeProto, FunctionProto, NodeProto, TypeProto, defs, helper

from morok.errors import MorokError, UnsupportedModel
from morok.onnx.graph import Node, Program, Scope
from morok.onnx.table import NeedItems
from morok.onnx.values import Coded, Grown, Host, Value, elem_of
from morok.tensor.tensor import Tensor


def has_body(domain: str, name: str, version: int) -> bool:
    """Whether the specification writes an operator as a graph."""
    try:
        schema: Any = defs.get_schema(name, version, domain)
    except defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def body_of(node: Node, scope: Scope, values: list[Value]) -> Program:
    """The graph of an operator for a node, with the node's attributes in it."""
    version = scope.version(node.domain)
    schema: Any = defs.get_schema(node.op, version, node.domain)
    function = FunctionProto()
    if schema.has_function:
        function.CopyFrom(_function(schema, version))
    else:
        function.ParseFromString(_context_dependent(schema, node, version, values))
    given = {attribute.name: attribute for attribute in node.proto.attribute}
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.type != AttributeProto.UNDEFINED:
            given[name] = attribute.default_value
    for attribute in function.attribute_proto:
        given.setdefault(attribute.name, attribute)
    count = len(values)
    absent = {
        name
        for n, name in enumerate(function.input)
        if n >= count or (values[n] is None and not _has_name(node, n))
    }
    versions = {("" if s.domain == "ai.onnx" else s.domain): s.version for s in function.opset_import}
    inner = Scope({**scope.versions, **versions}, scope.folder)
    outputs = [
        name if n < len(node.outputs) and node.outputs[n] else "" for n, name in enumerate(function.output)
    ]
    protos = _used(list(function.node), outputs)
    nodes = [Node(_filled(proto, given, absent), n, inner) for n, proto in enumerate(protos)]
    return Program(nodes, list(function.input), outputs, {}, inner)


def _used(nodes: list[NodeProto], outputs: list[str]) -> list[NodeProto]:
    """The nodes of a body that wanted outputs come from."""
    wanted = {name for name in outputs if name}
    kept: list[NodeProto] = []
    for node in reversed(nodes):
        if wanted & set(node.output):
            kept.append(node)
            wanted |= set(node.input)
            wanted |= {n for a in node.attribute for inner in a.g.node for n in inner.input}
    return kept[::-1]


def _function(schema: Any, version: int) -> FunctionProto:
    """The body for the newest version that is not newer than the model's."""
    versions = [v for v in schema.function_opset_versions if v <= version]
    if not versions:
        return schema.function_body  # type: ignore[no-any-return]
    found = FunctionProto()
    found.ParseFromString(bytes(schema.get_function_with_opset_version(max(versions))))
    return found


def _has_name(node: Node, number: int) -> bool:
    return number < len(node.inputs) and bool(node.inputs[number])


def _context_dependent(schema: Any, node: Node, version: int, values: list[Value]) -> bytes:
    types = [_type_of(v).SerializeToString() for v in values]
    proto = node.proto
    for known in sorted(schema.context_dependent_function_opset_versions, reverse=True):
        if known <= version:
            made = schema.get_context_dependent_function_with_opset_version(
                known, proto.SerializeToString(), types
            )
            if made:
                return bytes(made)
    made = schema.get_context_dependent_function(proto.SerializeToString(), types)
    if not made:
        raise UnsupportedModel(f"the specification has no body for {node!r} on these types")
    return bytes(made)


def _type_of(value: Value) -> TypeProto:
    if isinstance(value, Tensor | Host | Coded):
        sizes = [n if isinstance(n, int) else None for n in value.shape]
        return helper.make_tensor_type_proto(elem_of(value), sizes)
    if isinstance(value, Grown):
        raise NeedItems(value.name)
    if isinstance(value, list):
        inner = _type_of(value[0]) if value else helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
        return helper.make_sequence_type_proto(inner)
    return TypeProto()


def _filled(proto: NodeProto, given: dict[str, AttributeProto], absent: set[str]) -> NodeProto:
    """A node of a body, with references to attributes resolved, also in graphs inside."""
    made = NodeProto()
    made.CopyFrom(proto)
    for n, name in enumerate(made.input):
        if name in absent:
            made.input[n] = ""
    del made.attribute[:]
    for attribute in proto.attribute:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name in given:
                copied = AttributeProto()
                copied.CopyFrom(given[attribute.ref_attr_name])
                copied.name = attribute.name
                made.attribute.append(copied)
            continue
        copied = AttributeProto()
        copied.CopyFrom(attribute)
        if attribute.type == AttributeProto.GRAPH:
            inner = [_filled(n, given, absent) for n in attribute.g.node]
            del copied.g.node[:]
            copied.g.node.extend(inner)
        made.attribute.append(copied)
    return made


def expanded(node: Node, program: Program, values: list[Value], run: Any) -> list[Value]:
    """The outputs of a node by way of its body."""
    body = body_of(node, program.scope, values)
    env = {name: value for name, value in zip(body.inputs, values, strict=False) if value is not None or name}
    try:
        return list(run(body, env))
    except MorokError as error:
        error.args = (f"in the body of {node!r}: {error.message}", *error.args[1:])
        error.node = node  # type: ignore[attr-defined]
        raise
