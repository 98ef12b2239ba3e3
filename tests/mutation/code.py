"""Mutants of Python functions: one comparison, connective, constant or sign is another one.

A mutant is put in place by giving the live function objects another code object, so whoever holds a function,
a compiled matcher say, runs the mutant.
"""

from __future__ import annotations

import ast
import copy
import gc
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any, final

_COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE,), ast.LtE: (ast.Lt,), ast.Gt: (ast.GtE,), ast.GtE: (ast.Gt,), ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}  # fmt: skip
_NAMES = {"min": "max", "max": "min", "vmin": "vmax", "vmax": "vmin", "all": "any", "any": "all"}
MOST_PER_FUNCTION = 10
FEWEST = 3  # a function in which there is less to change is changed in more ways


@final
@dataclass(frozen=True, slots=True)
class CodeMutant:
    """One change in one function."""

    id: str
    module: str
    function: str  # qualified name
    node: int  # which of the function's own nodes, and which of its alternatives
    choice: int

    def install(self) -> None:
        """Makes every live function of that name run the change."""
        tree = ast.parse(_source(self.module))
        function = next(f for f, name in _functions(tree, "") if name == self.function)
        node, is_place, _ = list(_own_nodes(function))[self.node]
        before = copy.deepcopy(node)
        _every_alternative(node, is_place, function)[self.choice](node)
        if isinstance(before, ast.expr):  # never run; it keeps the variables that the function closes over
            function.body.insert(0, ast.If(ast.Constant(0), [ast.Expr(before)], []))
        compiled = compile(ast.fix_missing_locations(tree), _file_of(self.module), "exec", dont_inherit=True)
        found = {code.co_qualname: code for code in _codes(compiled)}
        names = self.function.split(".<locals>.")
        wanted = {".<locals>.".join(names[: i + 1]) for i in range(len(names))}
        for live in _live(self.module):
            code = found.get(live.__code__.co_qualname)
            if live.__code__.co_qualname in wanted and code is not None:
                live.__code__ = code


@final
@dataclass(frozen=True, slots=True)
class TextMutant:
    """A function in which one piece of text is another."""

    module: str
    function: str
    old: str
    new: str

    @property
    def id(self) -> str:
        return f"{self.module}.{self.function}: {self.old} → {self.new}"

    def install(self) -> None:
        """As for a `CodeMutant`."""
        source = _source(self.module)
        start = source.index(f"def {self.function}(")
        at = source.index(self.old, start)
        text = source[:at] + self.new + source[at + len(self.old) :]
        compiled = compile(text, _file_of(self.module), "exec", dont_inherit=True)
        found = {code.co_qualname: code for code in _codes(compiled)}
        for live in _live(self.module):
            if live.__code__.co_qualname == self.function:
                live.__code__ = found[self.function]


@cache
def _source(module: str) -> str:
    """As it was when the mutants were made, whoever writes to the file in the meantime."""
    return inspect.getsource(sys.modules[module])


def _file_of(module: str) -> str:
    return str(sys.modules[module].__file__)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


def _live(module: str) -> list[FunctionType]:
    file = _file_of(module)
    # not isinstance: that asks objects for their class, and other people's objects answer with warnings
    return [f for f in gc.get_objects() if type(f) is FunctionType and f.__code__.co_filename == file]


def mutants(module: ModuleType) -> list[CodeMutant]:
    """Changes in every function of the module, except for those that yield rules."""
    tree = ast.parse(_source(module.__name__))
    found: list[CodeMutant] = []
    for function, name in _functions(tree, ""):
        every = list(_changes(function, name, module.__name__))
        if len(every) < FEWEST:
            every = list(_changes(function, name, module.__name__, thorough=True))
        step = max(1.0, len(every) / MOST_PER_FUNCTION)
        found += [every[int(i * step)] for i in range(min(len(every), MOST_PER_FUNCTION))]
    return list({m.id: m for m in found}.values())


def _functions(node: Any, prefix: str) -> Iterator[tuple[Any, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            name = prefix + child.name
            returns = ast.unparse(child.returns) if child.returns else ""
            if returns not in ("Rules", "RuleSet"):
                yield child, name
            if returns != "Rules":
                yield from _functions(child, f"{name}.<locals>.")
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        elif not isinstance(child, ast.expr):
            yield from _functions(child, prefix)


def _own_nodes(function: Any) -> Iterator[tuple[Any, bool, Any]]:
    """The nodes of a function's body, without functions inside; whether each is inside of [ ]; its parent."""
    stack: list[tuple[Any, bool, Any]] = [(s, False, s) for s in reversed(function.body)]
    while stack:
        node, is_place, parent = stack.pop()
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring
        if isinstance(node, (ast.Assert, ast.Raise)):
            continue
        yield node, is_place, parent
        for field, value in ast.iter_fields(node):
            inside = is_place or (isinstance(node, ast.Subscript) and field == "slice")
            if field == "annotation":
                continue
            children = value if isinstance(value, list) else [value]
            stack += [(c, inside, node) for c in reversed(children) if isinstance(c, ast.AST)]


def _changes(function: Any, name: str, module: str, thorough: bool = False) -> Iterator[CodeMutant]:
    for number, (node, is_place, parent) in enumerate(_own_nodes(function)):
        shown = parent if isinstance(node, ast.Constant) else node  # a number alone says little
        ways = _every_alternative(node, is_place, function) if thorough else _alternatives(node, is_place)
        for choice, change in enumerate(ways):
            old = _text(shown)
            saved = dict(node.__dict__)
            change(node)
            new = _text(shown)
            node.__dict__.clear()
            node.__dict__.update(saved)
            if new != old:
                yield CodeMutant(f"{module}.{name}: {old} → {new}", module, name, number, choice)


def _text(node: Any) -> str:
    return " ".join(ast.unparse(node).split())[:150]


def _alternatives(node: Any, is_place: bool) -> list[Any]:
    if isinstance(node, ast.Compare):
        return [_set_op(i, other) for i, op in enumerate(node.ops) for other in _COMPARED.get(type(op), ())]
    if isinstance(node, ast.BoolOp):
        other = ast.Or if isinstance(node.op, ast.And) else ast.And
        drops = [_drop(i) for i in range(len(node.values))] if len(node.values) > 1 else []
        return [lambda n: setattr(n, "op", other()), *drops]
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        new = _ARITHMETIC[type(node.op)]
        return [lambda n: setattr(n, "op", new())]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
        return [_round_up]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return [lambda n: setattr(n, "op", ast.UAdd())] if not isinstance(node.operand, ast.Constant) else []
    if isinstance(node, ast.Constant) and type(node.value) is int and not is_place:
        value = node.value
        return [lambda n: setattr(n, "value", value + 1), lambda n: setattr(n, "value", value - 1)]
    if isinstance(node, ast.IfExp):
        return [_swap_branches]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _NAMES:
        return [lambda n: setattr(n, "func", ast.Name(_NAMES[n.func.id], ast.Load()))]
    return []


def _every_alternative(node: Any, is_place: bool, function: Any) -> list[Any]:
    """The usual ones first; then places in tuples, operands the other way round, and other results."""
    found = _alternatives(node, is_place)
    if isinstance(node, ast.Constant) and type(node.value) is int and is_place:
        value = node.value
        found.append(lambda n: setattr(n, "value", value + 1))
    if isinstance(node, ast.Call) and len(node.args) > 1 and not _is_symmetric(node):
        found.append(lambda n: setattr(n, "args", [n.args[1], n.args[0], *n.args[2:]]))
    if isinstance(node, ast.Return) and node.value is not None:
        returns = ast.unparse(function.returns) if function.returns else ""
        if returns == "bool":
            found.append(lambda n: setattr(n, "value", ast.UnaryOp(ast.Not(), n.value)))
            found.append(lambda n: setattr(n, "value", ast.Constant(True)))
            found.append(lambda n: setattr(n, "value", ast.Constant(False)))
        elif "UOp" in returns:
            found.append(lambda n: setattr(n, "value", ast.Constant(None)))
    return found


def _is_symmetric(call: ast.Call) -> bool:
    """Whether the first two operands may be exchanged: extremes of numbers, operands as they come."""
    extreme = isinstance(call.func, ast.Name) and call.func.id in ("min", "max")
    return extreme or isinstance(call.args[1], ast.Starred)


def _set_op(i: int, other: type[ast.cmpop]) -> Any:
    def change(n: Any) -> None:
        n.ops = [*n.ops[:i], other(), *n.ops[i + 1 :]]

    return change


def _drop(i: int) -> Any:
    def change(n: Any) -> None:
        neutral = ast.Constant(isinstance(n.op, ast.And))
        n.values = [neutral if j == i else v for j, v in enumerate(n.values)]

    return change


def _round_up(n: Any) -> None:
    n.left, n.right = ast.UnaryOp(ast.USub(), n.left), ast.UnaryOp(ast.USub(), n.right)
    quotient = ast.BinOp(ast.UnaryOp(ast.USub(), n.left.operand), ast.FloorDiv(), n.right.operand)
    n.left, n.op, n.right = ast.Constant(0), ast.Sub(), quotient


def _swap_branches(n: Any) -> None:
    n.body, n.orelse = n.orelse, n.body
