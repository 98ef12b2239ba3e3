"""Sums of products over any axes: einsum and what it spells out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from typing import Any

from morok.dtype import promote
from morok.errors import ArgumentError, ShapeError
from morok.ir.infer import show_shape
from morok.ir.ops import Ops
from morok.tensor.arrays import reduce
from morok.tensor.arrays.arrange import diagonal, ravel
from morok.tensor.arrays.joining import roll
from morok.tensor.arrays.movement import expand, permute, reshape
from morok.tensor.arrays.reduce import reduce_axes
from morok.tensor.creation.constructors import as_operand
from morok.tensor.dtypes import accumulator
from morok.tensor.elementwise.conversion import cast
from morok.tensor.elementwise.once import rounded_once
from morok.tensor.elementwise.operators import T
from morok.tensor.linalg.products import matmul, outer
from morok.tensor.sizes import as_axes

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def einsum(t: T, formula: Any, *others: Any) -> T:
    """Einstein's sum: `Tensor.einsum("ij,jk->ik", a, b)` or `a.einsum("ij,jk->ik", b)`.

    Letters on the left that are missing on the right are summed over. Without a right side it has the
    letters that occur once, in alphabetical order; "..." stands for axes that broadcast.

    >>> Tensor.einsum("ij,j->i", Tensor([[1, 2], [3, 4]]), Tensor([1, 1])).tolist()
    [3, 7]
    """
    called_on: Any = t
    if isinstance(called_on, str):  # Tensor.einsum("…", a, b)
        swapped: T = formula.einsum(called_on, *others)
        return swapped
    operands = [t, *(as_operand(t, other) for other in others)]
    terms, result = _letters(formula, [x.ndim for x in operands])
    sizes: dict[str, Any] = {}
    parts: list[tuple[T, str]] = []
    for x, letters in zip(operands, terms, strict=True):
        x, letters = _without_repeats(x, letters, formula)
        for letter, size in zip(letters, x.shape, strict=True):
            known = sizes.setdefault(letter, size)
            if known != size and 1 not in (known, size):
                raise ShapeError(
                    f"einsum {formula!r}: axis {letter} has sizes {show_shape((known,))[1:-2]} and "
                    f"{show_shape((size,))[1:-2]}, which must be equal"
                )
            sizes[letter] = size if known == 1 else known
        parts.append((x, letters))
    dtype = promote(*(x.dtype for x in operands)) if len(operands) > 1 else t.dtype
    wide = accumulator(dtype) if dtype.is_float else dtype
    x, letters = cast(parts[0][0], wide), parts[0][1]
    for number in range(1, len(parts)):
        y, more = parts[number]
        later = set(result).union(*(other for _, other in parts[number + 1 :]))
        x, letters = _product(x, (letters, sizes), (cast(y, wide), more), later)
    summed = tuple(i for i, letter in enumerate(letters) if letter not in result)
    x = reduce_axes(x, Ops.ADD, summed, False) if summed else x
    left = [letter for letter in letters if letter in result]
    x = permute(x, [left.index(letter) for letter in result])
    return cast(expand(x, [sizes[letter] for letter in result]), dtype)


def _without_repeats(x: T, letters: str, formula: str) -> tuple[T, str]:
    """A letter twice in one operand is its diagonal."""
    for letter in dict.fromkeys(letters):
        while letters.count(letter) > 1:
            a = letters.index(letter)
            b = letters.index(letter, a + 1)
            if x.shape[a] != x.shape[b]:
                raise ShapeError(
                    f"einsum {formula!r}: the diagonal {letter} of shape {show_shape(x.shape)} "
                    "needs equal sizes"
                )
            x = diagonal(x, 0, a, b)
            letters = letters[:a] + letters[a + 1 : b] + letters[b + 1 :] + letter
    return x, letters


def _product(x: T, mine: tuple[str, dict[str, Any]], other: tuple[T, str], later: set[str]) -> tuple[T, str]:
    """Two operands multiplied, and summed over what nobody needs later."""
    letters, sizes = mine
    y, more = other
    everything = list(dict.fromkeys(chain(letters, more)))
    kept = [letter for letter in everything if letter in later]
    gone = [letter for letter in everything if letter not in later]
    order = kept + gone
    a, b = (
        reshape(
            permute(t, [own.index(letter) for letter in order if letter in own]),
            [t.shape[own.index(letter)] if letter in own else 1 for letter in order],
        )
        for t, own in ((x, letters), (y, more))
    )
    full = [sizes[letter] for letter in order]
    product = expand(a, full) * expand(b, full)
    summed = tuple(range(len(kept), len(order)))
    return (reduce_axes(product, Ops.ADD, summed, False) if summed else product), "".join(kept)


def tensordot(t: T, other: Any, axes: Any = 2, *, dims: Any = None) -> T:
    """The sum over products of axes: the last n of x and the first n of y, or two lists of axes.

    >>> Tensor([[1, 2], [3, 4]]).tensordot(Tensor([[1, 0], [0, 1]])).item()
    5
    """
    y = as_operand(t, other)
    axes = axes if dims is None else dims  # PyTorch's name
    if isinstance(axes, int):
        mine, its = range(t.ndim - axes, t.ndim), range(axes)
    else:
        first, second = axes
        mine, its = as_axes(first, t.shape), as_axes(second, y.shape)  # type: ignore[assignment]
    for a, b in zip(mine, its, strict=False):  # PyTorch: an axis of one element is repeated
        t = reduce.sum(t, a, keepdim=True) if y.shape[b] == 1 != t.shape[a] else t
        y = reduce.sum(y, b, keepdim=True) if t.shape[a] == 1 != y.shape[b] else y
    if len(mine) != len(its) or any(t.shape[a] != y.shape[b] for a, b in zip(mine, its, strict=True)):
        raise ShapeError(
            f"tensordot of {show_shape(t.shape)} and {show_shape(y.shape)} over axes {tuple(mine)} "
            f"and {tuple(its)} needs equal sizes there"
        )
    own = list(_LETTERS[: t.ndim])
    fresh = iter(_LETTERS[t.ndim :])
    theirs = [own[mine[list(its).index(i)]] if i in its else next(fresh) for i in range(y.ndim)]
    left = [x for i, x in enumerate(own) if i not in mine] + [x for i, x in enumerate(theirs) if i not in its]
    return einsum(t, f"{''.join(own)},{''.join(theirs)}->{''.join(left)}", y)


def dot(x: T, other: Any) -> T:
    """NumPy's dot: the inner product of vectors, the product of matrices; else over x's last axis.

    >>> Tensor([1, 2]).dot(Tensor([3, 4])).item()
    11
    """
    y = as_operand(x, other)
    if not x.ndim or not y.ndim:
        return x * y
    if x.ndim <= 2 and y.ndim <= 2:
        return matmul(x, y)
    return tensordot(x, y, ((-1,), (-2 if y.ndim > 1 else -1,)))


def vdot(x: T, other: Any) -> T:
    """The sum of all products of two tensors of one size, flattened.

    >>> Tensor([1, 2]).vdot(Tensor([3, 4])).item()
    11
    """
    return matmul(ravel(x), ravel(as_operand(x, other)))


def inner(x: T, other: Any) -> T:
    """The sums of products over the last axes of both.

    >>> Tensor([[1, 2], [3, 4]]).inner(Tensor([1, 1])).tolist()
    [3, 7]
    """
    y = as_operand(x, other)
    return tensordot(x, y, ((-1,), (-1,))) if x.ndim and y.ndim else x * y


def kron(x: T, other: Any) -> T:
    """Kronecker's product: each element of x times all of y.

    >>> Tensor([1, 2]).kron(Tensor([1, 10])).tolist()
    [1, 10, 2, 20]
    """
    y = as_operand(x, other)
    count = max(x.ndim, y.ndim)
    a, b = (reshape(t, [*(1,) * (count - t.ndim), *t.shape]) for t in (x, y))
    left = reshape(a, [n for size in a.shape for n in (size, 1)])
    right = reshape(b, [n for size in b.shape for n in (1, size)])
    return reshape(left * right, [n * m for n, m in zip(a.shape, b.shape, strict=True)])


@rounded_once
def cross(x: T, other: Any, dim: int = -1, *, axis: int | None = None) -> T:
    """The vector product along an axis of size 3.

    >>> Tensor([1, 0, 0]).cross(Tensor([0, 1, 0])).tolist()
    [0, 0, 1]
    """
    y = as_operand(x, other)
    at = dim if axis is None else axis
    if x.shape[at] != 3 or y.shape[at] != 3:
        raise ShapeError(f"cross needs axes of size 3, not {show_shape(x.shape)} and {show_shape(y.shape)}")
    return roll(x, -1, at) * roll(y, -2, at) - roll(x, -2, at) * roll(y, -1, at)


def _ranked(x: T, other: Any, mine: int, its: int, what: str) -> T:
    y = as_operand(x, other)
    if x.ndim != mine or y.ndim != its:
        raise ShapeError(
            f"{what} takes {mine} and {its} axes, not {show_shape(x.shape)} and {show_shape(y.shape)}"
            "; use matmul"
        )
    return matmul(x, y)


def mm(x: T, other: Any) -> T:
    """The product of two matrices.

    >>> Tensor([[1, 2]]).mm(Tensor([[3], [4]])).tolist()
    [[11]]
    """
    return _ranked(x, other, 2, 2, "mm")


def mv(x: T, other: Any) -> T:
    """A matrix times a vector.

    >>> Tensor([[1, 2]]).mv(Tensor([3, 4])).tolist()
    [11]
    """
    return _ranked(x, other, 2, 1, "mv")


def bmm(x: T, other: Any) -> T:
    """The products of matrices of two batches.

    >>> Tensor([[[1, 2]]]).bmm(Tensor([[[3], [4]]])).tolist()
    [[[11]]]
    """
    return _ranked(x, other, 3, 3, "bmm")


@rounded_once
def addmm(x: T, first: Any, second: Any, beta: float = 1, alpha: float = 1) -> T:
    """beta · x + alpha · first @ second.

    >>> Tensor([[1.0]]).addmm(Tensor([[2.0]]), Tensor([[3.0]])).tolist()
    [[7.0]]
    """
    return _added(x, matmul(as_operand(x, first), second), beta, alpha)


@rounded_once
def baddbmm(x: T, first: Any, second: Any, beta: float = 1, alpha: float = 1) -> T:
    """beta · x + alpha · first @ second, for batches of matrices.

    >>> Tensor([[[1.0]]]).baddbmm(Tensor([[[2.0]]]), Tensor([[[3.0]]])).tolist()
    [[[7.0]]]
    """
    return _added(x, _ranked(as_operand(x, first), second, 3, 3, "baddbmm"), beta, alpha)


@rounded_once
def addbmm(x: T, first: Any, second: Any, beta: float = 1, alpha: float = 1) -> T:
    """beta · x + alpha · the sum of first @ second over a batch of matrices.

    >>> Tensor([[1.0]]).addbmm(Tensor([[[2.0]]]), Tensor([[[3.0]]])).tolist()
    [[7.0]]
    """
    product = _ranked(as_operand(x, first), second, 3, 3, "addbmm")
    return _added(x, reduce.sum(product, 0), beta, alpha)


@rounded_once
def addmv(x: T, first: Any, second: Any, beta: float = 1, alpha: float = 1) -> T:
    """beta · x + alpha · first @ second, of a matrix and a vector.

    >>> Tensor([1.0]).addmv(Tensor([[2.0]]), Tensor([3.0])).tolist()
    [7.0]
    """
    return _added(x, _ranked(as_operand(x, first), second, 2, 1, "addmv"), beta, alpha)


@rounded_once
def addr(x: T, first: Any, second: Any, beta: float = 1, alpha: float = 1) -> T:
    """beta · x + alpha · the products of all elements of two vectors.

    >>> Tensor([[1.0]]).addr(Tensor([2.0]), Tensor([3.0])).tolist()
    [[7.0]]
    """
    return _added(x, outer(as_operand(x, first), second), beta, alpha)


def _added(x: T, product: T, beta: float, alpha: float) -> T:
    """A product beside what was there; with a beta of 0 nothing of that, be it NaN."""
    scaled = product if alpha == 1 else product * alpha
    if beta == 0:
        return scaled
    return (x if beta == 1 else x * beta) + scaled


def _letters(formula: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The letters of every operand and of the result, with "..." spelled out in letters of its own."""
    text = re.sub(r"\s", "", formula)
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if re.sub(r"[a-zA-Z,]|\.\.\.", "", left) or re.sub(r"[a-zA-Z]|\.\.\.", "", right):
        raise ArgumentError(f"einsum is made of letters, commas and ..., so {formula!r} cannot be read")
    if len(terms) != len(ranks):
        raise ShapeError(f"einsum {formula!r} names {len(terms)} operands, got {len(ranks)}")
    free = [letter for letter in _LETTERS if letter not in text]
    extra = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    for term, rank, more in zip(terms, ranks, extra, strict=True):
        if more < 0 or (more and "..." not in term):
            raise ShapeError(f"einsum {formula!r}: {term!r} does not name the {rank} axes of its operand")
    widest = max((more for term, more in zip(terms, extra, strict=True) if "..." in term), default=0)
    dots = "".join(free[:widest])
    spelled = [term.replace("...", dots[len(dots) - more :]) for term, more in zip(terms, extra, strict=True)]
    joined = "".join(spelled)
    if arrow:
        result = right.replace("...", dots)
    else:
        once = sorted(x for x in set(joined) if joined.count(x) == 1 and x not in dots)
        result = dots + "".join(once)
    if len(set(result)) != len(result) or not set(result) <= set(joined):
        raise ShapeError(f"einsum {formula!r}: each letter of the result occurs once there, and on the left")
    return spelled, result
