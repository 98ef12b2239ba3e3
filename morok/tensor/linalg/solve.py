"""Systems of equations and factorisations, as sequences of tensor operations.

A matrix of size n takes a number of steps in the order of n, each of which is a few kernels over whole
matrices (a batch of matrices costs as many kernels as one). Gradients have closed forms, which are in
`tensor/gradient/linalg.py`. Floats narrower than 32 bits are computed in float32 and rounded once.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from morok import dtype as dt
from morok.errors import MorokError, ShapeError
from morok.ir.infer import show_shape
from morok.tensor.dtypes import accumulator, float_of
from morok.tensor.gradient.linalg import FREE, enter_gradients, marked
from morok.tensor.linalg.windows import Windows
from morok.tensor.record import recorded
from morok.tensor.sizes import broadcast_shapes
from morok.tensor.tracing import is_tracing

_SWEEPS = 12  # of Jacobi's method; each squares what is left off the diagonal


class QR(NamedTuple):
    """Orthonormal columns times an upper triangle."""

    Q: Any
    R: Any


class SVD(NamedTuple):
    """U · diag(S) · Vh with orthonormal U and V and the largest S first."""

    U: Any
    S: Any
    Vh: Any


@recorded
class Solve(Windows):
    """Linear algebra beyond products. Leading axes are a batch."""

    def _matrix(self, what: str, square: bool = True) -> tuple[int, int]:
        rows, columns = self.shape[-2:] if self.ndim >= 2 else (None, None)
        if not isinstance(rows, int) or not isinstance(columns, int) or (square and rows != columns):
            kind = "square matrices" if square else "matrices"
            raise ShapeError(f"{what} takes {kind} of known size, not shape {show_shape(self.shape)}")
        return rows, columns

    def _precise(self) -> Self:
        """Floats in which long sequences of operations make sense."""
        return self.cast(accumulator(float_of(self.dtype)))

    def _unit(self, rows: int, columns: int | None = None) -> Self:
        return self._new(self.eye(rows, columns, dtype=self.dtype, device=self.device).uop)

    # --- systems of equations

    def _right_side(self, b: Any, what: str) -> tuple[Self, bool]:
        """(b as columns, whether it was one vector): NumPy 2's rule, by the number of axes of b alone."""
        y = self._operand(b)
        size, vector = self.shape[-1], y.ndim == 1
        y = y.unsqueeze(-1) if vector else y
        if y.ndim < 2 or y.shape[-2] != size:
            raise ShapeError(
                f"{what} with a matrix of shape {show_shape(self.shape)} needs a right side of shape "
                f"({size},) or (…, {size}, k), not {show_shape(self._operand(b).shape)}"
            )
        broadcast_shapes(self.shape[:-2], y.shape[:-2])
        return y._precise(), vector

    def solve_triangular(
        self, b: Any, upper: bool = False, left: bool = True, unitriangular: bool = False
    ) -> Self:
        """X with A · X = b for a triangular A, of which the other half is not looked at; or X · A = b.

        >>> Tensor([[2.0, 0.0], [1.0, 1.0]]).solve_triangular(Tensor([[2.0], [3.0]])).tolist()
        [[1.0], [2.0]]
        """
        self._matrix("solve_triangular")
        if not left:
            y = self._operand(b)
            return self.mT.solve_triangular(y if y.ndim == 1 else y.mT, not upper, True, unitriangular).mT
        y, vector = self._right_side(b, "solve_triangular")
        found = self._precise()._solved_triangular(y, upper, unitriangular)
        return self._as_given(found.squeeze(-1) if vector else found, b)

    def _as_given(self, found: Any, *others: Any) -> Self:
        """A result in the type that its operands promote to."""
        own = float_of(self.dtype)
        for other in others:
            own = dt.promote(own, float_of(self._operand(other).dtype))
        result: Self = found.cast(own)
        return result

    def _solved_triangular(self, y: Any, upper: bool, unit: bool) -> Any:
        """The solution under its name; both sides are as precise as they get."""
        size = self._matrix("solve_triangular")[0]
        x, wide = self.detach(), y.detach()
        batch = broadcast_shapes(x.shape[:-2], wide.shape[:-2])
        found = x._substitute(wide.expand([*batch, *wide.shape[-2:]]), 0, size, upper, unit)
        return marked("solve_triangular", found, self, y, how=(upper, unit))

    def _block(self, row: int, rows: int, column: int, columns: int) -> Self:
        return self.narrow(-2, row, rows).narrow(-1, column, columns)

    def _substitute(self, y: Any, start: int, size: int, upper: bool, unit: bool) -> Any:
        """One half of the unknowns, then the other with the first taken out; `y` holds their right sides."""
        if size <= 1:
            return y if unit or not size else y / self._block(start, 1, start, 1)
        half = size // 2
        if upper:
            below = self._substitute(y.narrow(-2, half, size - half), start + half, size - half, True, unit)
            coupling = self._block(start, half, start + half, size - half)
            rest = (y.narrow(-2, 0, half) - coupling @ below).contiguous()
            return self._substitute(rest, start, half, True, unit).cat(below, dim=-2)
        above = self._substitute(y.narrow(-2, 0, half), start, half, False, unit)
        coupling = self._block(start + half, size - half, start, half)
        rest = (y.narrow(-2, half, size - half) - coupling @ above).contiguous()
        return above.cat(self._substitute(rest, start + half, size - half, False, unit), dim=-2)

    def solve(self, b: Any) -> Self:
        """X with A · X = b, by way of QR; b of one axis is a vector, else its last two axes are a matrix.

        >>> [round(x, 4) for x in Tensor([[2.0, 1.0], [1.0, 3.0]]).solve(Tensor([3.0, 5.0])).tolist()]
        [0.8, 1.4]
        """
        self._matrix("solve")
        y, vector = self._right_side(b, "solve")
        found = self._precise()._solved(y)
        return self._as_given(found.squeeze(-1) if vector else found, b)

    def _solved(self, y: Any, transposed: bool = False) -> Any:
        """The solution of A · X = y, or of Aᵀ · X = y, under its name."""
        q, r, _ = self.detach()._reflected()
        if transposed:
            found = q @ r.mT._solved_triangular(y.detach(), False, False)
        else:
            found = r._solved_triangular(q.mT @ y.detach(), True, False)
        return marked("solve", found, self, y, how=(transposed,))

    def inv(self) -> Self:
        """The matrix whose product with x is the unit matrix, by way of QR.

        >>> [round(x, 4) for x in Tensor([[2.0, 1.0], [1.0, 1.0]]).inv().flatten().tolist()]
        [1.0, -1.0, -1.0, 2.0]
        """
        size, _ = self._matrix("inv")
        x = self._precise()
        found = x.detach()._solved(x._unit(size))
        return self._as_given(marked("inv", found, x))

    inverse = inv

    def det(self) -> Self:
        """The determinant, by way of QR.

        >>> round(Tensor([[2.0, 1.0], [1.0, 3.0]]).det().item(), 4)
        5.0
        """
        size, _ = self._matrix("det")
        if size == 0:
            return self._floating().sum((-2, -1)) + 1.0
        x = self._precise()
        _, r, sign = x.detach()._reflected()
        found = r.diagonal(0, -2, -1).prod(-1) * sign
        return self._as_given(marked("det", found, x))

    # --- factorisations

    def cholesky(self, upper: bool = False) -> Self:
        """The lower triangle L with L · Lᵀ = A, of a symmetric positive definite A; or the upper one.

        Only A's lower triangle is looked at; its gradient is the symmetric one.

        >>> Tensor([[4.0, 2.0], [2.0, 5.0]]).cholesky().tolist()
        [[2.0, 0.0], [1.0, 2.0]]
        """
        size, _ = self._matrix("cholesky")
        x = self._precise()
        found = self._as_given(marked("cholesky", x.detach()._cholesky(size), x))
        return found.mT if upper else found

    def _cholesky(self, size: int) -> Any:
        if size <= 1:
            return self.sqrt()
        half = size // 2
        a = self._block(0, half, 0, half)._cholesky(half)
        # L₂₁ · L₁₁ᵀ = A₂₁
        low = a._substitute(self._block(half, size - half, 0, half).mT, 0, half, False, False).mT.contiguous()
        rest = (self._block(half, size - half, half, size - half) - low @ low.mT).contiguous()
        b = rest._cholesky(size - half)
        none: list[Any] = [None] * (self.ndim - 1)
        top = a.pad([*none, (0, size - half)])
        return top.cat(low.cat(b, dim=-1), dim=-2)

    def qr(self, mode: str = "reduced") -> QR:
        """(Q, R): orthonormal columns times an upper triangle, by Householder's reflections.

        "complete" makes Q square; "r" leaves it out: (an empty Q, R), as PyTorch.

        >>> q, r = Tensor([[3.0, 1.0], [4.0, 2.0]]).qr()
        >>> [round(x, 3) for x in (q @ r).flatten().tolist()]
        [3.0, 1.0, 4.0, 2.0]
        """
        if mode not in ("reduced", "complete", "r"):
            raise MorokError(f'mode is "reduced", "complete" or "r", not {mode!r}')
        rows, columns = self._matrix("qr", square=False)
        x, count = self._precise(), min(rows, columns)
        q, r, _ = x.detach()._reflected(complete=mode == "complete")
        both = q.narrow(-1, 0, count).cat(r.mT, dim=-2)
        both = self._as_given(marked("qr", both, x))
        first, triangle = both.narrow(-2, 0, rows), both.narrow(-2, rows, columns).mT
        none: list[Any] = [None] * (self.ndim - 2)
        if mode == "complete" and rows > count:
            rest = self._as_given(marked(FREE, q.narrow(-1, count, rows - count), x, how=("qr",)))
            return QR(first.cat(rest, dim=-1), triangle.pad([*none, (0, rows - count), None]))
        return QR(self._new(self.zeros(0, dtype=both.dtype).uop) if mode == "r" else first, triangle)

    def _reflected(self, complete: bool = False) -> tuple[Any, Any, Any]:
        """(Q, R, det Q of a square A). A column that is zero below its head is left alone, as in LAPACK."""
        rows, columns = self.shape[-2:]
        assert isinstance(rows, int) and isinstance(columns, int)
        a, count = self, min(rows, columns)
        none: list[Any] = [None] * (a.ndim - 2)
        reflections = []
        sign = self._new(self.ones(*a.shape[:-2], dtype=a.dtype).uop)
        for i in range(min(columns, rows - 1)):
            head, tail = a._block(i, 1, i, 1), a._block(i + 1, rows - i - 1, i, 1)
            below = (tail * tail).sum(-2, keepdim=True)
            flat = below.eq(0.0)
            length = (head * head + below).sqrt()
            # Away from the axis on the side where nothing cancels.
            tip = head + (head < 0.0).where(-length, length)
            scale = flat.where(0.0, (flat.where(1.0, tip * tip + below) * 0.5).rsqrt())
            v = (tip.cat(tail, dim=-2) * scale).contiguous().pad([*none, (i, 0), None])
            a = (a - v @ (v.mT @ a).contiguous()).contiguous()
            sign = flat.squeeze(-1).squeeze(-1).where(sign, -sign)
            reflections.append(v)
        width = rows if complete else count
        q = self._unit(rows, width).expand([*a.shape[:-2], rows, width])
        for v in reversed(reflections):
            q = (q - v @ (v.mT @ q).contiguous()).contiguous()
        return q, a.narrow(-2, 0, count).triu(), sign

    def svd(self, full_matrices: bool = False) -> SVD:
        """(U, S, Vh) with U · diag(S) · Vh = A, by Jacobi's rotations of pairs of columns.

        Columns of U and V beyond the number of values are computed with `full_matrices` only. It runs at
        once: how often columns are turned does not depend on the values, but the number of steps is large.

        >>> [round(x, 4) for x in Tensor([[3.0, 0.0], [0.0, -2.0]]).svd().S.tolist()]
        [3.0, 2.0]
        """
        rows, columns = self._matrix("svd", square=False)
        if rows < columns:
            u, s, vh = self.mT.svd(full_matrices)
            return SVD(vh.mT, s, u.mT)
        x = self._precise()
        u, s, v = x.detach()._jacobi_svd(full_matrices)
        both = marked("svd", u.narrow(-1, 0, columns).cat(s.unsqueeze(-2), v, dim=-2), x)
        both = self._as_given(both)
        first, value = both.narrow(-2, 0, rows), both.narrow(-2, rows, 1).squeeze(-2)
        if full_matrices and rows > columns:
            free = marked(FREE, u.narrow(-1, columns, rows - columns), x, how=("svd",))
            first = first.cat(self._as_given(free), dim=-1)
        return SVD(first, value, both.narrow(-2, rows + 1, columns).mT)

    def _jacobi_svd(self, full: bool) -> tuple[Any, Any, Any]:
        """(U, S, V) of a matrix with at least as many rows as columns."""
        rows, columns = self.shape[-2:]
        assert isinstance(rows, int) and isinstance(columns, int)
        a, odd = self, columns % 2
        none: list[Any] = [None] * (a.ndim - 2)
        width = columns + odd
        work = a.pad([*none, None, (0, odd)])
        turns = self._unit(width).expand([*a.shape[:-2], width, width])
        both: Any = work.cat(turns, dim=-2).realize()  # type: ignore[attr-defined]
        for _ in range(_SWEEPS * max(1, width - 1) if a.numel() else 0):
            both = both._rotated(rows, width).realize()
        work, turns = both.narrow(-2, 0, rows), both.narrow(-2, rows, width)
        lengths = (work * work).sum(-2).sqrt()
        order = lengths.argsort(-1, descending=True)
        order = order.narrow(-1, 0, columns)
        s = lengths.gather(-1, order).realize()
        spread = order.unsqueeze(-2)
        v = turns.take_along_dim(spread, -1).narrow(-2, 0, columns)
        found = ~(s <= s.narrow(-1, 0, min(1, columns)) * (self.dtype.eps * rows))  # NaN stays
        u = found.unsqueeze(-2).where(work.take_along_dim(spread, -1) / s.unsqueeze(-2), 0.0)
        if full or is_tracing() or not found.all().item():
            u = u._completed(found, rows if full else columns)
        return u, s, v

    def _completed(self, known: Any, width: int) -> Any:
        """Orthonormal columns, those that are known as they are, the others at right angles to them."""
        columns = self.shape[-1]
        q = self._reflected(complete=True)[0]
        # A reflection puts an orthonormal column on its axis, up to the sign; one of zeros leaves it free.
        none: list[Any] = [None] * (self.ndim - 1)
        fixed = known.unsqueeze(-2).pad([*none, (0, width - columns)])
        own = self.pad([*none, (0, width - columns)])
        return fixed.where(own, q.narrow(-1, 0, width))

    def _rotated(self, rows: int, width: int) -> Any:
        """Columns turned in pairs until each pair is at right angles, then dealt out anew."""
        half = width // 2
        # Pairs of a round robin: the first stays, the others move on by one.
        left, right = self.narrow(-1, 0, half), self.narrow(-1, half, half)
        p, q = left.narrow(-2, 0, rows), right.narrow(-2, 0, rows)
        a, b, c = ((x * y).sum(-2, keepdim=True) for x, y in ((p, p), (q, q), (p, q)))
        flat = c.eq(0.0)
        zeta = (b - a) / flat.where(1.0, c * 2.0)
        t = (zeta < 0.0).where(-1.0, 1.0) / (zeta.abs() + (zeta * zeta + 1.0).sqrt())
        t = flat.where(0.0, t)
        cos = (t * t + 1.0).rsqrt()
        sin = cos * t
        new_left, new_right = left * cos - right * sin, left * sin + right * cos
        if half == 1:
            return new_left.cat(new_right, dim=-1)
        top = new_left.narrow(-1, 0, 1).cat(
            new_right.narrow(-1, 0, 1), new_left.narrow(-1, 1, half - 2), dim=-1
        )
        bottom = new_right.narrow(-1, 1, half - 1).cat(new_left.narrow(-1, half - 1, 1), dim=-1)
        return top.cat(bottom, dim=-1)


enter_gradients(Solve._new)
