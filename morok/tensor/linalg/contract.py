"""Sums of products over any axes: einsum and what it spells out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from typing import Any, Self

from morok.dtype import promote
from morok.errors import ArgumentError, ShapeError
from morok.ir.infer import show_shape
from morok.ir.ops import Ops
from morok.tensor.arrays.arrange import Arrange
from morok.tensor.dtypes import accumulator
from morok.tensor.elementwise.once import rounded_once
from morok.tensor.linalg.products import Linalg
from morok.tensor.record import pure
from morok.tensor.sizes import as_axes

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@pure
class Contract(Linalg, Arrange):
    """Products of tensors."""

    def einsum(self, formula: Any, *others: Any) -> Self:
        """Einstein's sum: `Tensor.einsum("ij,jk->ik", a, b)` or `a.einsum("ij,jk->ik", b)`.

        Letters on the left that are missing on the right are summed over. Without a right side it has the
        letters that occur once, in alphabetical order; "..." stands for axes that broadcast.

        >>> Tensor.einsum("ij,j->i", Tensor([[1, 2], [3, 4]]), Tensor([1, 1])).tolist()
        [3, 7]
        """
        called_on: Any = self
        if isinstance(called_on, str):  # Tensor.einsum("…", a, b)
            swapped: Self = formula.einsum(called_on, *others)
            return swapped
        operands = [self, *(self._operand(other) for other in others)]
        terms, result = _letters(formula, [x.ndim for x in operands])
        sizes: dict[str, Any] = {}
        parts: list[tuple[Self, str]] = []
        for x, letters in zip(operands, terms, strict=True):
            x, letters = x._without_repeats(letters, formula)
            for letter, size in zip(letters, x.shape, strict=True):
                known = sizes.setdefault(letter, size)
                if known != size and 1 not in (known, size):
                    raise ShapeError(
                        f"einsum {formula!r}: axis {letter} has sizes {show_shape((known,))[1:-2]} and "
                        f"{show_shape((size,))[1:-2]}, which must be equal"
                    )
                sizes[letter] = size if known == 1 else known
            parts.append((x, letters))
        dtype = promote(*(x.dtype for x in operands)) if len(operands) > 1 else self.dtype
        wide = accumulator(dtype) if dtype.is_float else dtype
        x, letters = parts[0][0].cast(wide), parts[0][1]
        for number in range(1, len(parts)):
            y, more = parts[number]
            later = set(result).union(*(other for _, other in parts[number + 1 :]))
            x, letters = x._product((letters, sizes), (y.cast(wide), more), later)
        summed = tuple(i for i, letter in enumerate(letters) if letter not in result)
        x = x._reduce(Ops.ADD, summed, False) if summed else x
        left = [letter for letter in letters if letter in result]
        x = x.permute([left.index(letter) for letter in result])
        return x.expand([sizes[letter] for letter in result]).cast(dtype)

    def _without_repeats(self, letters: str, formula: str) -> tuple[Self, str]:
        """A letter twice in one operand is its diagonal."""
        x = self
        for letter in dict.fromkeys(letters):
            while letters.count(letter) > 1:
                a = letters.index(letter)
                b = letters.index(letter, a + 1)
                if x.shape[a] != x.shape[b]:
                    raise ShapeError(
                        f"einsum {formula!r}: the diagonal {letter} of shape {show_shape(x.shape)} "
                        "needs equal sizes"
                    )
                x = x.diagonal(0, a, b)
                letters = letters[:a] + letters[a + 1 : b] + letters[b + 1 :] + letter
        return x, letters

    def _product(
        self, mine: tuple[str, dict[str, Any]], other: tuple[Any, str], later: set[str]
    ) -> tuple[Self, str]:
        """Two operands multiplied, and summed over what nobody needs later."""
        letters, sizes = mine
        y, more = other
        everything = list(dict.fromkeys(chain(letters, more)))
        kept = [letter for letter in everything if letter in later]
        gone = [letter for letter in everything if letter not in later]
        order = kept + gone
        a, b = (
            t.permute([own.index(letter) for letter in order if letter in own]).reshape(
                [t.shape[own.index(letter)] if letter in own else 1 for letter in order]
            )
            for t, own in ((self, letters), (y, more))
        )
        full = [sizes[letter] for letter in order]
        product = a.expand(full) * b.expand(full)
        summed = tuple(range(len(kept), len(order)))
        return (product._reduce(Ops.ADD, summed, False) if summed else product), "".join(kept)

    def tensordot(self, other: Any, axes: Any = 2) -> Self:
        """The sum over products of axes: the last n of x and the first n of y, or two lists of axes.

        >>> Tensor([[1, 2], [3, 4]]).tensordot(Tensor([[1, 0], [0, 1]])).item()
        5
        """
        y = self._operand(other)
        if isinstance(axes, int):
            mine, its = range(self.ndim - axes, self.ndim), range(axes)
        else:
            first, second = axes
            mine, its = as_axes(first, self.shape), as_axes(second, y.shape)  # type: ignore[assignment]
        if len(mine) != len(its) or any(self.shape[a] != y.shape[b] for a, b in zip(mine, its, strict=True)):
            raise ShapeError(
                f"tensordot of {show_shape(self.shape)} and {show_shape(y.shape)} over axes {tuple(mine)} "
                f"and {tuple(its)} needs equal sizes there"
            )
        own = list(_LETTERS[: self.ndim])
        fresh = iter(_LETTERS[self.ndim :])
        theirs = [own[mine[list(its).index(i)]] if i in its else next(fresh) for i in range(y.ndim)]
        left = [x for i, x in enumerate(own) if i not in mine] + [
            x for i, x in enumerate(theirs) if i not in its
        ]
        return self.einsum(f"{''.join(own)},{''.join(theirs)}->{''.join(left)}", y)

    def dot(self, other: Any) -> Self:
        """NumPy's dot: the inner product of vectors, the product of matrices; else over x's last axis.

        >>> Tensor([1, 2]).dot(Tensor([3, 4])).item()
        11
        """
        y = self._operand(other)
        if not self.ndim or not y.ndim:
            return self * y
        if self.ndim <= 2 and y.ndim <= 2:
            return self.matmul(y)
        return self.tensordot(y, ((-1,), (-2 if y.ndim > 1 else -1,)))

    def vdot(self, other: Any) -> Self:
        """The sum of all products of two tensors of one size, flattened.

        >>> Tensor([1, 2]).vdot(Tensor([3, 4])).item()
        11
        """
        return self.ravel().matmul(self._operand(other).ravel())

    def inner(self, other: Any) -> Self:
        """The sums of products over the last axes of both.

        >>> Tensor([[1, 2], [3, 4]]).inner(Tensor([1, 1])).tolist()
        [3, 7]
        """
        y = self._operand(other)
        return self.tensordot(y, ((-1,), (-1,))) if self.ndim and y.ndim else self * y

    def kron(self, other: Any) -> Self:
        """Kronecker's product: each element of x times all of y.

        >>> Tensor([1, 2]).kron(Tensor([1, 10])).tolist()
        [1, 10, 2, 20]
        """
        y = self._operand(other)
        count = max(self.ndim, y.ndim)
        a, b = (t.reshape([*(1,) * (count - t.ndim), *t.shape]) for t in (self, y))
        left = a.reshape([n for size in a.shape for n in (size, 1)])
        right = b.reshape([n for size in b.shape for n in (1, size)])
        return (left * right).reshape([n * m for n, m in zip(a.shape, b.shape, strict=True)])

    @rounded_once
    def cross(self, other: Any, dim: int = -1, *, axis: int | None = None) -> Self:
        """The vector product along an axis of size 3.

        >>> Tensor([1, 0, 0]).cross(Tensor([0, 1, 0])).tolist()
        [0, 0, 1]
        """
        y = self._operand(other)
        at = dim if axis is None else axis
        if self.shape[at] != 3 or y.shape[at] != 3:
            raise ShapeError(
                f"cross needs axes of size 3, not {show_shape(self.shape)} and {show_shape(y.shape)}"
            )
        return self.roll(-1, at) * y.roll(-2, at) - self.roll(-2, at) * y.roll(-1, at)

    def _ranked(self, other: Any, mine: int, its: int, what: str) -> Self:
        y = self._operand(other)
        if self.ndim != mine or y.ndim != its:
            raise ShapeError(
                f"{what} takes {mine} and {its} axes, not {show_shape(self.shape)} and {show_shape(y.shape)}"
                "; use matmul"
            )
        return self.matmul(y)

    def mm(self, other: Any) -> Self:
        """The product of two matrices.

        >>> Tensor([[1, 2]]).mm(Tensor([[3], [4]])).tolist()
        [[11]]
        """
        return self._ranked(other, 2, 2, "mm")

    def mv(self, other: Any) -> Self:
        """A matrix times a vector.

        >>> Tensor([[1, 2]]).mv(Tensor([3, 4])).tolist()
        [11]
        """
        return self._ranked(other, 2, 1, "mv")

    def bmm(self, other: Any) -> Self:
        """The products of matrices of two batches.

        >>> Tensor([[[1, 2]]]).bmm(Tensor([[[3], [4]]])).tolist()
        [[[11]]]
        """
        return self._ranked(other, 3, 3, "bmm")

    @rounded_once
    def addmm(self, first: Any, second: Any, beta: float = 1, alpha: float = 1) -> Self:
        """beta · x + alpha · first @ second.

        >>> Tensor([[1.0]]).addmm(Tensor([[2.0]]), Tensor([[3.0]])).tolist()
        [[7.0]]
        """
        product = self._operand(first).matmul(second)
        return self * beta + product * alpha


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
