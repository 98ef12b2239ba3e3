"""Graphs as Python text, and back.

`to_python` writes one assignment per node, sources first, and the root's name at the end:

    n0 = UOp(Ops.DEFINE_VAR, dtypes.index, (), ("i", 0, 7))
    n1 = UOp(Ops.CONST, dtypes.index, (), 4)
    n2 = UOp(Ops.MUL, dtypes.index, (n0, n1))
    n2

The text is Python (run it with UOp, Ops, AxisKind and AddrSpace, and with morok.dtype as dtypes), but `parse`
never runs it: it walks the syntax tree and knows only the forms that are written here. Because equal nodes
are one object, parsing what was written gives back the very same node.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Sequence
from enum import Enum
from typing import Any, NoReturn

from morok import dtype as dtypes
from morok.dtype import AddrSpace, DType, as_value
from morok.errors import MorokError, ParseError
from morok.ir.args import REGISTERED, write_arg, write_dtype
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import Op, Ops, op_by_name

_SCALARS = {("bool_" if t is dtypes.bool_ else t.name): t for t in (*dtypes.ALL_SCALARS, dtypes.void)}
_INFINITE = ("nan", "inf", "-inf")


def to_python(*roots: UOp) -> str:
    """The graph under the roots as Python; the last line names them."""
    names: dict[UOp, str] = {}
    lines: list[str] = []
    for number, node in enumerate(toposort(*roots)):
        names[node] = f"n{number}"
        sources = ", ".join(names[s] for s in node.src) + ("," if len(node.src) == 1 else "")
        arg = "" if node.arg is None else f", {write_arg(node.arg)}"
        lines.append(f"n{number} = UOp(Ops.{node.op.name}, {write_dtype(node.dtype)}, ({sources}){arg})")
    lines.append(", ".join(names[root] for root in roots))
    return "\n".join(lines) + "\n"


def parse(text: str) -> UOp:
    """The node that the text ends with; a ParseError says where and why it is none."""
    try:
        module = ast.parse(text)
    except SyntaxError as error:
        raise ParseError(f"this is not Python: {error.msg}", error.lineno or 1, error.offset or 1) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ParseError(f"this is not Python: {error}", 1, 1) from None
    return _Reader().read(module)


def parse_values(texts: Sequence[str]) -> list[Any]:
    """Arguments and types as `write_arg` and `write_dtype` write them."""
    try:
        module = ast.parse("\n".join(texts))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ParseError(f"these are no arguments of nodes: {error}", 1, 1) from None
    reader = _Reader()
    found = [reader._value(line.value) for line in module.body if isinstance(line, ast.Expr)]
    if len(found) != len(texts):
        raise ParseError("these are no arguments of nodes", 1, 1)
    return found


class _Reader:
    """Reads one text; `nodes` holds what has been assigned so far."""

    def __init__(self) -> None:
        self.nodes: dict[str, UOp] = {}

    def read(self, module: ast.Module) -> UOp:
        last: UOp | None = None
        for statement in module.body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                continue  # a text may be a complete script; nothing is imported for it here
            last = self._statement(statement)
        if last is None:
            raise ParseError("the text holds no node; it should end with the name of one", 1, 1)
        return last

    def _statement(self, statement: ast.stmt) -> UOp:
        if isinstance(statement, ast.Expr):
            return self._node(statement.value)
        if not isinstance(statement, ast.Assign):
            _fail(statement, "only assignments `name = UOp(...)` and a node's name are understood")
        target = statement.targets[0]
        if len(statement.targets) != 1 or not isinstance(target, ast.Name):
            _fail(statement, "a node is assigned to one name")
        self.nodes[target.id] = node = self._node(statement.value)
        return node

    def _node(self, e: ast.expr) -> UOp:
        if isinstance(e, ast.Name):
            if e.id not in self.nodes:
                _fail(e, f"the name {e.id} is not defined; a node is assigned before it is used")
            return self.nodes[e.id]
        if not isinstance(e, ast.Call) or not isinstance(e.func, ast.Name) or e.func.id != "UOp":
            _fail(e, f"expected UOp(op, dtype, sources, arg) or a node's name, got {_source(e)}")
        if e.keywords or not 2 <= len(e.args) <= 4:
            _fail(e, "UOp takes an op, a dtype, a tuple of sources and an argument, in this order")
        op, dtype = self._op(e.args[0]), self._dtype(e.args[1])
        sources = self._sources(e.args[2]) if len(e.args) > 2 else ()
        arg = self._value(e.args[3]) if len(e.args) > 3 else None
        if op is Ops.CONST:
            _check_constant(e, dtype, arg)
        try:
            return make(op, dtype, sources, arg)
        except (MorokError, TypeError) as error:
            _fail(e, getattr(error, "message", str(error)))

    def _sources(self, e: ast.expr) -> tuple[UOp, ...]:
        if not isinstance(e, ast.Tuple):
            _fail(e, f"sources are a tuple like (n0, n1), got {_source(e)}")
        return tuple(self._node(item) for item in e.elts)

    def _op(self, e: ast.expr) -> Op:
        found = self._value(e) if isinstance(e, ast.Attribute) else None
        if not isinstance(found, Op):
            _fail(e, f"expected an op like Ops.ADD, got {_source(e)}")
        return found

    def _dtype(self, e: ast.expr) -> DType:
        found = self._value(e) if isinstance(e, ast.Attribute | ast.Call) else None
        if not isinstance(found, DType):
            _fail(e, f"expected a dtype like dtypes.float32, got {_source(e)}")
        return found

    # --- arguments

    def _value(self, e: ast.expr) -> Any:
        if isinstance(e, ast.Constant) and e.value is not Ellipsis and not isinstance(e.value, complex):
            return e.value
        if isinstance(e, ast.Tuple):
            return tuple(self._value(item) for item in e.elts)
        if isinstance(e, ast.UnaryOp) and isinstance(e.op, ast.USub):
            value = self._value(e.operand)
            if type(value) in (int, float):
                return -value
        if isinstance(e, ast.Attribute) and isinstance(e.value, ast.Name):
            return self._member(e, e.value.id)
        if isinstance(e, ast.Call):
            return self._call(e)
        _fail(e, f"{_source(e)} cannot be an argument")

    def _member(self, e: ast.Attribute, owner: str) -> Any:
        if owner == "Ops":
            try:
                return op_by_name(e.attr)
            except KeyError:
                _fail(e, f"unknown op {e.attr}; the table of ops is in docs/ops.md")
        if owner == "dtypes":
            if e.attr not in _SCALARS:
                _fail(e, f"unknown dtype {e.attr}; write one like float32, bool_ or int8.vec(4)")
            return _SCALARS[e.attr]
        cls = REGISTERED.get(owner)
        if cls is None or not issubclass(cls, Enum) or e.attr not in cls.__members__:
            _fail(e, f"{owner}.{e.attr} is not known")
        return cls[e.attr]

    def _call(self, e: ast.Call) -> Any:
        try:
            if isinstance(e.func, ast.Name):
                return self._named_call(e, e.func.id)
            if isinstance(e.func, ast.Attribute):
                return self._dtype_call(e, e.func)
        except MorokError as error:
            if isinstance(error, ParseError):
                raise
            _fail(e, error.message)
        _fail(e, f"{_source(e)} cannot be an argument")

    def _named_call(self, e: ast.Call, name: str) -> Any:
        if name == "float":
            text = e.args[0].value if len(e.args) == 1 and isinstance(e.args[0], ast.Constant) else None
            if text not in _INFINITE or e.keywords:
                _fail(e, f'only {", ".join(_INFINITE)} are written as float("...")')
            return float(str(text))
        cls = REGISTERED.get(name)
        if cls is None or not dataclasses.is_dataclass(cls):
            _fail(e, f"{name} is not a registered class of arguments")
        fields = {str(keyword.arg): self._value(keyword.value) for keyword in e.keywords}
        if e.args or fields.keys() != {field.name for field in dataclasses.fields(cls)}:
            _fail(e, f"{name} needs each of its fields by name")
        return cls(**fields)

    def _dtype_call(self, e: ast.Call, method: ast.Attribute) -> DType:
        values = [self._value(argument) for argument in e.args]
        base = self._dtype(method.value)
        if method.attr == "vec" and len(values) == 1 and type(values[0]) is int:
            return base.vec(values[0])
        if method.attr == "ptr" and len(values) == 2 and isinstance(values[1], AddrSpace):
            return base.ptr(values[0], values[1])
        _fail(e, f"a dtype has .vec(lanes) and .ptr(size, AddrSpace.GLOBAL), not {_source(e)}")


def _check_constant(e: ast.Call, dtype: DType, arg: Any) -> None:
    try:
        value = as_value(arg, dtype.scalar)
    except MorokError as error:
        _fail(e, error.message)
    if type(value) is not type(arg) or (value != arg and value == value):
        _fail(e, f"{arg!r} is not a value of {dtype}")


def _source(e: ast.expr) -> str:
    text = ast.unparse(e)
    return text if len(text) <= 40 else text[:37] + "..."


def _fail(e: ast.expr | ast.stmt, message: str) -> NoReturn:
    raise ParseError(message, e.lineno, e.col_offset + 1)
