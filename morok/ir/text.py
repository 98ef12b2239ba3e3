"""Graphs for people: a tree, and one-line mathematics. The Python form is in `python_form.py`."""

from __future__ import annotations

from collections.abc import Callable

from morok.ir.args import write_arg
from morok.ir.node import UOp, toposort
from morok.ir.ops import Op, Ops
from morok.ir.provenance import place
from morok.ir.python_form import parse, to_python

__all__ = ["expr", "parse", "to_python", "tree"]

_FEW = 4  # operands of a call in a short expression
_DEEPEST = 24  # levels of indentation; what lies deeper is printed as a tree of its own


def tree(n: UOp, places: bool = False) -> str:
    """The graph as an indented tree. A node with several users has a number and is printed once.

    `places` adds the user's line of each node.
    """
    shared = _shared(n)
    numbers: dict[UOp, int] = {}
    lines: list[str] = []
    printed: set[UOp] = set()
    roots = [n]  # subtrees that became too deep wait here
    for root in roots:
        stack = [] if root in printed else [(root, "", "", 0)]
        while stack:
            node, branch, indent, depth = stack.pop()
            too_deep = depth == _DEEPEST and bool(node.src)
            if too_deep or node in shared:
                numbers.setdefault(node, len(numbers) + 1)
            if too_deep and node not in printed:
                roots.append(node)
            if too_deep or (node in printed and node in numbers):
                lines.append(f"{branch}→ #{numbers[node]}")
                continue
            printed.add(node)
            lines.append(branch + _describe(node, numbers.get(node), places))
            for i in range(len(node.src) - 1, -1, -1):
                last = i == len(node.src) - 1
                deeper = indent + ("   " if last else "│  ")
                stack.append((node.src[i], indent + ("└─ " if last else "├─ "), deeper, depth + 1))
    return "\n".join(lines)


def _shared(n: UOp) -> set[UOp]:
    """The nodes that are used more than once; constants apart, which are shorter than a reference to them."""
    uses: dict[UOp, int] = {}
    for node in toposort(n):
        for s in node.src:
            uses[s] = uses.get(s, 0) + 1
    return {node for node, count in uses.items() if count > 1 and node.op is not Ops.CONST}


def _describe(node: UOp, number: int | None, places: bool) -> str:
    words = [] if number is None else [f"#{number}"]
    words += [node.op.name, str(node.dtype)]
    if node.arg is not None:
        words.append(_show_arg(node.arg))
    where = place(node) if places else None
    if where is not None:
        words.append(f"· {where}")
    return " ".join(words)


def _show_arg(arg: object) -> str:
    try:
        return write_arg(arg)
    except Exception:  # a printer must not fail on the very graph that somebody tries to understand
        return repr(arg)


# --- one-line mathematics

_TERNARY, _COMPARISON, _OR, _XOR, _AND, _SHIFT, _SUM, _PRODUCT, _UNARY, _ATOM = range(10)
_INFIX: dict[Op, tuple[str, int]] = {
    Ops.ADD: (" + ", _SUM),
    Ops.SUB: (" - ", _SUM),
    Ops.MUL: ("*", _PRODUCT),
    Ops.FDIV: ("/", _PRODUCT),
    Ops.FLOORDIV: ("//", _PRODUCT),
    Ops.FLOORMOD: (" % ", _PRODUCT),
    Ops.CMPLT: (" < ", _COMPARISON),
    Ops.CMPEQ: (" == ", _COMPARISON),
    Ops.CMPNE: (" != ", _COMPARISON),
    Ops.AND: (" & ", _AND),
    Ops.OR: (" | ", _OR),
    Ops.XOR: (" ^ ", _XOR),
    Ops.SHL: (" << ", _SHIFT),
    Ops.SHR: (" >> ", _SHIFT),
}
_Written = tuple[str, int]  # text and how tightly it binds
_HIDDEN: _Written = ("…", _ATOM)
_NAMED = frozenset((Ops.RANGE, Ops.BIND, Ops.BUFFER, Ops.SPECIAL))  # a name says all, whatever lies below


def expr(n: UOp, limit: int = 160, depth: int | None = None) -> str:
    """A scalar expression as one line of mathematics; operands that make it longer than `limit` become …

    So does what lies deeper than `depth`, which bounds the work in a large graph as well.
    """
    written: dict[UOp, _Written] = {}
    inside = None if depth is None else _upper(n, depth)
    for node in toposort(n, stop=None if inside is None else lambda s: s not in inside):
        if inside is not None and node not in inside and node.src and node.op not in _NAMED:
            written[node] = _HIDDEN
            continue
        if inside is not None and node.op not in _INFIX and node.op not in _FORMS:
            written[node] = _short(node, written)
            continue
        operands = [written.get(s, _HIDDEN) for s in node.src]
        text, strength = _write(node, operands)
        while len(text) > limit and any(len(t) > 1 for t, _ in operands):
            longest = max(range(len(operands)), key=lambda i: len(operands[i][0]))
            operands[longest] = ("…", _ATOM)
            text, strength = _write(node, operands)
        written[node] = (text, strength)
    return written[n][0]


def _short(node: UOp, written: dict[UOp, _Written]) -> _Written:
    """A call with the first few of its operands, and of the parts of its argument."""
    inner = [written.get(s, _HIDDEN)[0] for s in node.src[:_FEW]]
    arg = node.arg
    if isinstance(arg, tuple) and len(arg) > _FEW:
        shown = ", ".join([*map(_show_arg, arg[:_FEW]), "…"])
    else:
        shown = "" if arg is None else _show_arg(arg)
    more = ["…"] if len(node.src) > _FEW else []
    return f"{node.op.name.lower()}{f'[{shown}]' if shown else ''}({', '.join([*inner, *more])})", _ATOM


def _upper(n: UOp, depth: int) -> set[UOp]:
    """The nodes that are less than so many steps below."""
    found = {n}
    level = [n]
    for _ in range(depth - 1):
        level = [s for node in level for s in node.src if s not in found]
        found.update(level)
    return found


def _write(node: UOp, operands: list[_Written]) -> _Written:
    op = node.op
    infix = _INFIX.get(op)
    if infix is not None:
        sign, strength = infix
        # The right operand of - // % and of a comparison binds more tightly, or the brackets would be
        # missing.
        right = strength if op in (Ops.ADD, Ops.AND, Ops.OR, Ops.XOR) else strength + 1
        left = strength + 1 if op.is_compare else strength
        return _bracket(operands[0], left) + sign + _bracket(operands[1], right), strength
    writer = _FORMS.get(op)
    if writer is not None:
        return writer(node, operands)
    inner = ", ".join(text for text, _ in operands)
    arg = "" if node.arg is None else f"[{_show_arg(node.arg)}]"
    return f"{op.name.lower()}{arg}({inner})", _ATOM


def _bracket(operand: _Written, strength: int) -> str:
    text, own = operand
    return text if own >= strength else f"({text})"


def _constant(node: UOp, operands: list[_Written]) -> _Written:
    text = repr(node.arg)
    return text, _UNARY if text.startswith("-") else _ATOM


def _prefix(sign: str) -> Callable[[UOp, list[_Written]], _Written]:
    return lambda node, operands: (sign + _bracket(operands[0], _UNARY), _UNARY)


def _name(text: Callable[[UOp], str]) -> Callable[[UOp, list[_Written]], _Written]:
    return lambda node, operands: (text(node), _ATOM)


def _where(node: UOp, operands: list[_Written]) -> _Written:
    condition, x, y = (_bracket(operand, _COMPARISON) for operand in operands)
    return f"{x} if {condition} else {y}", _TERNARY


def _cast(node: UOp, operands: list[_Written]) -> _Written:
    return f"{node.dtype}({operands[0][0]})", _ATOM


def _call(node: UOp, operands: list[_Written]) -> _Written:
    """As it was called: the formula that computes it is not shown."""
    name, *attributes = node.arg
    inner = [text for text, _ in operands[1:]] + [f"{key}={_show_arg(value)}" for key, value in attributes]
    return f"{name}({', '.join(inner)})", _ATOM


def _index(node: UOp, operands: list[_Written]) -> _Written:
    gated = len(node.src) > 2 and node.src[-1].dtype.is_bool
    places = operands[1:-1] if gated else operands[1:]
    inner = ", ".join(text for text, _ in places)
    return f"{_bracket(operands[0], _ATOM)}[{inner}{f' if {operands[-1][0]}' if gated else ''}]", _ATOM


def _load(node: UOp, operands: list[_Written]) -> _Written:
    return operands[0] if len(operands) == 1 else (f"{operands[0][0]} else {operands[1][0]}", _TERNARY)


_FORMS: dict[Op, Callable[[UOp, list[_Written]], _Written]] = {
    Ops.CONST: _constant,
    Ops.NEG: _prefix("-"),
    Ops.NOT: _prefix("~"),
    Ops.WHERE: _where,
    Ops.CAST: _cast,
    Ops.CALL: _call,
    Ops.INDEX: _index,
    Ops.LOAD: _load,
    Ops.DEFINE_VAR: _name(lambda n: str(n.arg[0])),
    Ops.BIND: _name(lambda n: str(n.src[0].arg[0])),
    Ops.RANGE: _name(lambda n: f"r{n.arg[0]}"),
    Ops.SPECIAL: _name(lambda n: str(n.arg)),
    Ops.DEFINE_GLOBAL: _name(lambda n: f"data{n.arg}"),
    Ops.DEFINE_LOCAL: _name(lambda n: str(n.arg)),
    Ops.DEFINE_REG: _name(lambda n: str(n.arg)),
    Ops.BUFFER: _name(lambda n: f"buffer{n.src[0].arg}"),
    Ops.PARAM: _name(lambda n: f"param{n.arg[0]}"),
}
