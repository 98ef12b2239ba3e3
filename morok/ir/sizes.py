"""Arithmetic of sizes that are known later: sums of products in one order, so that equal sizes are one node.

    2 + k - 2 → k,  k + (8 - k) → 8,  (k + 1) * 2 → 2*k + 2

Every size is brought to this form where it is made; comparing is then comparing nodes, and whether one is at
most another is asked of the bounds of their difference. What is no sum or product (quotients, the larger of
two) stays whole inside of it, where it cannot be told what it is; there a question is tried at all values.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from morok.caches import Cache
from morok.dtype import index
from morok.ir.arithmetic.alu import evaluate_array
from morok.ir.bounds import bounds
from morok.ir.node import UOp, alu, const, sizes_shown_by, toposort
from morok.ir.ops import Op, Ops

Size = int | UOp
_Term = tuple[UOp, ...]  # a product, sorted by name; () is 1
_Sum = dict[_Term, int]
_MOST_TERMS = 64  # a product with more stays as it was written
_MOST_POINTS = 1 << 20  # values of variables that are tried one by one

_known: Cache[UOp, Size] = Cache("ir.canonical_sizes", 4096)


def canonical(size: Size) -> Size:
    """A size in the one form that all equal ones have, as far as sums and products tell."""
    if isinstance(size, int):
        return size
    if size.op is Ops.CONST:
        return int(size.arg)
    if not size.src or size.op is Ops.BIND:
        return size
    found = _known.get(size)
    if found is None:
        found = _known[size] = _size(_terms(size))
    return found


def combine(op: Op, a: Size, b: Size) -> Size:
    """Two sizes added, subtracted or multiplied."""
    return canonical(alu(op, *(x if isinstance(x, UOp) else const(index, x) for x in (a, b))))


def at_most(a: Size, b: Size) -> bool:
    """Whether a size is proved to be no more than another, for all values of their variables."""
    rest = combine(Ops.SUB, b, a)
    return (rest if isinstance(rest, int) else int(bounds(_free(rest))[0])) >= 0


def negative_at(size: Size) -> dict[str, int] | None:
    """Values of its free variables for which a size is below 0; None if it never is.

    Bounds answer for sums and products. Where they do not, all values are tried, and where these are too
    many, the answer is {}: it cannot be told.
    """
    size = canonical(size)
    if isinstance(size, int):
        return {} if size < 0 else None
    if bounds(size)[0] >= 0:
        return None
    variables = sorted({n for n in toposort(size, stop=_is_bound) if n.op is Ops.DEFINE_VAR}, key=show_size)
    ranges = [np.arange(low, high + 1) for _, low, high in (v.arg for v in variables)]
    if math.prod(map(len, ranges)) > _MOST_POINTS:
        return {}
    grid = dict(zip(variables, np.meshgrid(*ranges, indexing="ij", sparse=True), strict=True))
    values: dict[UOp, Any] = {}
    for node in toposort(size, stop=_is_bound):
        if node.op is Ops.BIND:
            values[node] = np.int64(node.src[1].arg)
        elif node.op is Ops.CONST:
            values[node] = np.asarray(node.arg)
        elif node in grid:
            values[node] = grid[node]
        elif node.op.is_alu:
            values[node] = evaluate_array(node.op, node.src[-1].dtype, *[values[s] for s in node.src])
        else:
            return {}
    wrong = np.argwhere(np.broadcast_to(values[size], tuple(map(len, ranges))) < 0)
    if not len(wrong):
        return None
    return {v.arg[0]: int(r[i]) for v, r, i in zip(variables, ranges, wrong[-1], strict=True)}


def never_negative(size: Size) -> bool:
    """Whether a size is 0 or more for all values of its variables, also of those that are bound."""
    return size >= 0 if isinstance(size, int) else negative_at(_free(size)) is None


def below_in_loops(x: UOp, y: UOp) -> bool:
    """Whether x < y is proved wherever the loops in them run: a counter is at most one less than its end.

        p < (n - k)//s + 1  gives  p*s + k - 1 < n   by   ((n - k)//s)*s ≤ n - k

    Bounds of numbers do not tell, as they know the largest end alone.
    """
    rest = dict(_terms(alu(Ops.SUB, y, x)))
    for _ in range(_MOST_TERMS):  # each turn replaces one atom by what its own end is made of
        found = next((term for term, count in rest.items() if count < 0 and _has_limit(term)), None)
        if found is None:
            break
        atom, count = found[0], -rest.pop(found)
        if atom.op is Ops.RANGE:
            limit, times = alu(Ops.SUB, atom.src[0], const(index, 1)), count
        elif count % atom.src[1].arg:
            return False
        else:
            limit, times = atom.src[0], count // atom.src[1].arg
        for term, number in _terms(limit).items():
            _add(rest, term, -number * times)
    least = _size(rest)
    return (least if isinstance(least, int) else bounds(_free(least))[0]) > 0


def _has_limit(term: _Term) -> bool:
    """Whether a term is a counter, or a quotient by a number, whose limit is symbolic."""
    if len(term) != 1:
        return False
    op, src = term[0].op, term[0].src
    if op is Ops.RANGE:
        return src[0].op is not Ops.CONST
    return op is Ops.FLOORDIV and src[1].op is Ops.CONST and src[1].arg > 0


def _is_bound(node: UOp) -> bool:
    return node.op is Ops.BIND


def largest(size: Size) -> int:
    """The most that a size can be, whatever its variables are bound to."""
    return size if isinstance(size, int) else int(bounds(_free(size))[1])


def _free(node: UOp) -> UOp:
    """A size for all values of its variables, also if they are bound: kernels are the same for all."""
    if node.op is Ops.BIND:
        return node.src[0]
    return node.replace(tuple([_free(s) for s in node.src])) if node.src else node


def _terms(node: UOp) -> _Sum:
    op = node.op
    if op is Ops.CONST:
        return {(): int(node.arg)} if node.arg else {}
    if op is Ops.ADD or op is Ops.SUB:
        found = dict(_terms(node.src[0]))
        for term, count in _terms(node.src[1]).items():
            _add(found, term, count if op is Ops.ADD else -count)
        return found
    if op is Ops.NEG:
        return {term: -count for term, count in _terms(node.src[0]).items()}
    if op is Ops.MUL:
        left, right = _terms(node.src[0]), _terms(node.src[1])
        if len(left) * len(right) <= _MOST_TERMS:
            found = {}
            for a, m in left.items():
                for b, n in right.items():
                    _add(found, tuple(sorted((*a, *b), key=show_size)), m * n)
            return found
    if op is Ops.MAX or op is Ops.MIN:
        one, other = (canonical(s) for s in node.src)
        if at_most(one, other) or at_most(other, one):
            larger, smaller = (other, one) if at_most(one, other) else (one, other)
            chosen = larger if op is Ops.MAX else smaller
            return ({(): chosen} if chosen else {}) if isinstance(chosen, int) else _terms(chosen)
    if op is Ops.FLOORDIV and node.src[1].op is Ops.CONST and node.src[1].arg > 0:
        divisor, above = int(node.src[1].arg), _terms(node.src[0])
        if not any(count % divisor for term, count in above.items() if term):  # (32*n - 1)//2 = 16*n - 1
            shares = {term: count // divisor for term, count in above.items()}
            return {term: count for term, count in shares.items() if count}
    return {(_rebuilt(node),): 1}


def _rebuilt(node: UOp) -> UOp:
    """A node that is no sum, over sources in their one form."""
    if not node.src or node.op is Ops.BIND:
        return node
    sizes = [canonical(s) if s.dtype.is_index else s for s in node.src]
    return node.replace(tuple([s if isinstance(s, UOp) else const(index, s) for s in sizes]))


def _add(found: _Sum, term: _Term, count: int) -> None:
    total = found.get(term, 0) + count
    if total:
        found[term] = total
    else:
        found.pop(term, None)


def _size(terms: _Sum) -> Size:
    """The terms as a node: by name, negative ones last and subtracted, then the number."""
    number = terms.get((), 0)
    ordered = sorted(
        (term for term in terms if term), key=lambda t: (terms[t] < 0, tuple([show_size(a) for a in t]))
    )
    node: UOp | None = None
    if number > 0 and ordered and terms[ordered[0]] < 0:
        node, number = const(index, number), 0  # 8 - k
    for term in ordered:
        count = terms[term]
        product = term[0]
        for factor in term[1:]:
            product = alu(Ops.MUL, product, factor)
        times = abs(count) if node is not None else count
        if times != 1:
            product = alu(Ops.MUL, product, const(index, times))
        node = product if node is None else alu(Ops.ADD if count > 0 else Ops.SUB, node, product)
    if node is None:
        return number
    return alu(Ops.ADD, node, const(index, number)) if number else node


# --- as people write them

_SIGNS = {Ops.FLOORDIV: "//", Ops.FLOORMOD: "%"}
_CALLS = {Ops.MAX: "max", Ops.MIN: "min"}


def show_size(size: Size) -> str:
    """A size as arithmetic: `k`, `k+2`, `2*k`; values of variables are not part of it."""
    if isinstance(size, int):
        return str(size)
    op = size.op
    if op is Ops.CONST:
        return str(size.arg)
    if op is Ops.BIND:
        return show_size(size.src[0])
    if op is Ops.DEFINE_VAR:
        return str(size.arg[0])
    if op is Ops.ADD or op is Ops.SUB:
        left, right = size.src
        if op is Ops.ADD and right.op is Ops.CONST and right.arg < 0:
            return f"{show_size(left)}-{-right.arg}"
        shown = show_size(right)
        inner = f"({shown})" if op is Ops.SUB and right.op in (Ops.ADD, Ops.SUB) else shown
        return f"{show_size(left)}{'+' if op is Ops.ADD else '-'}{inner}"
    if op is Ops.MUL:
        left, right = size.src
        if right.op is Ops.CONST:
            left, right = right, left
        return "*".join(_factor(s) for s in (left, right))
    if op in _SIGNS:
        left, right = size.src
        divisor = f"({show_size(right)})" if right.op is Ops.MUL else _factor(right)
        return f"{_factor(left)}{_SIGNS[op]}{divisor}"
    if op in _CALLS:
        return f"{_CALLS[op]}({', '.join(show_size(s) for s in size.src)})"
    if not size.src:
        return op.name.lower()
    return f"{op.name.lower()}({', '.join(show_size(s) for s in size.src)})"


_ARITHMETIC = frozenset((Ops.CONST, Ops.DEFINE_VAR, Ops.ADD, Ops.SUB, Ops.MUL, *_SIGNS, *_CALLS))


_MOST_SHOWN = 64  # nodes of a size that can be read as arithmetic


def _arithmetic(node: UOp) -> str | None:
    """A node of variables and numbers alone, if it is not too long to read."""
    nodes = toposort(node, stop=_is_bound)
    if len(nodes) > _MOST_SHOWN or any(n.op is not Ops.BIND and n.op not in _ARITHMETIC for n in nodes):
        return None
    return show_size(node)


sizes_shown_by(_arithmetic)


def show_values(values: dict[str, int]) -> str:
    """The values for which something is wrong, to be put behind what is; nothing if it always is."""
    return f" for {', '.join(f'{name} = {value}' for name, value in values.items())}" if values else ""


def _factor(node: UOp) -> str:
    shown = show_size(node)
    return f"({shown})" if node.op in (Ops.ADD, Ops.SUB, Ops.FLOORDIV, Ops.FLOORMOD) else shown
