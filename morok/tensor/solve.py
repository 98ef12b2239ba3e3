"""Systems of equations and factorisations, as sequences of tensor operations.

A matrix of size n takes a number of steps in the order of n, each of which is a few kernels over whole
matrices (a batch of matrices costs as many kernels as one). All but `svd` is differentiable, because it is
made of operations that are.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

from morok.errors import ShapeError
from morok.ir.infer import show_shape
from morok.tensor.record import recorded
from morok.tensor.windows import Windows

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

    def solve_triangular(
        self, b: Any, upper: bool = False, left: bool = True, unitriangular: bool = False
    ) -> Self:
        """X with A · X = b for a triangular A, of which the other half is not looked at; or X · A = b.

        >>> Tensor([[2.0, 0.0], [1.0, 1.0]]).solve_triangular(Tensor([[2.0], [3.0]])).tolist()
        [[1.0], [2.0]]
        """
        size, _ = self._matrix("solve_triangular")
        y = self._operand(b)
        if not left:
            return self.mT.solve_triangular(y.mT, not upper, True, unitriangular).mT
        if y.ndim < 2 or y.shape[-2] != size:
            raise ShapeError(
                f"solve_triangular with a matrix of shape {show_shape(self.shape)} needs a right side of "
                f"shape (…, {size}, k), not {show_shape(y.shape)}"
            )
        x, y = self._floating(), y._floating()
        found: Self = x._substitute(y, 0, size, upper, unitriangular)
        return found

    def _block(self, row: int, rows: int, column: int, columns: int) -> Self:
        return self.narrow(-2, row, rows).narrow(-1, column, columns)

    def _substitute(self, y: Any, start: int, size: int, upper: bool, unit: bool) -> Any:
        """One half of the unknowns, then the other with the first taken out; `y` holds their right sides."""
        if size == 1:
            return y if unit else y / self._block(start, 1, start, 1)
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

    def cholesky(self, upper: bool = False) -> Self:
        """The lower triangle L with L · Lᵀ = A, of a symmetric positive definite A; or the upper one.

        >>> Tensor([[4.0, 2.0], [2.0, 5.0]]).cholesky().tolist()
        [[2.0, 0.0], [1.0, 2.0]]
        """
        size, _ = self._matrix("cholesky")
        found: Self = self._floating()._cholesky(size)
        return found.mT if upper else found

    def _cholesky(self, size: int) -> Any:
        if size == 1:
            return self.sqrt()
        half = size // 2
        a = self._block(0, half, 0, half)._cholesky(half)
        # L₂₁ · L₁₁ᵀ = A₂₁
        low = a.solve_triangular(self._block(half, size - half, 0, half).mT).mT.contiguous()
        rest = (self._block(half, size - half, half, size - half) - low @ low.mT).contiguous()
        b = rest._cholesky(size - half)
        none: list[Any] = [None] * (self.ndim - 1)
        top = a.pad([*none, (0, size - half)])
        return top.cat(low.cat(b, dim=-1), dim=-2)

    def qr(self) -> QR:
        """(Q, R): orthonormal columns times an upper triangle, by Householder's reflections.

        >>> q, r = Tensor([[3.0, 1.0], [4.0, 2.0]]).qr()
        >>> [round(x, 3) for x in (q @ r).flatten().tolist()]
        [3.0, 1.0, 4.0, 2.0]
        """
        rows, columns = self._matrix("qr", square=False)
        a = self._floating()
        count = min(rows, columns)
        reflections = []
        for i in range(count if rows > columns else count - 1 if count else 0):
            column = a._block(i, rows - i, i, 1)
            length = (column * column).sum(-2, keepdim=True).sqrt()
            head = column.narrow(-2, 0, 1)
            # Away from the axis on the side where nothing cancels.
            beta = (head < 0.0).where(length, -length)
            none: list[Any] = [None] * (a.ndim - 2)
            tip = (head - beta).pad([*none, (0, rows - i - 1), None])
            v = tip if rows - i == 1 else tip + column.narrow(-2, 1, rows - i - 1).pad([*none, (1, 0), None])
            square = (v * v).sum(-2, keepdim=True)
            v = (v / square.eq(0.0).where(1.0, square).sqrt() * 2.0**0.5).contiguous()
            v = v.pad([*none, (i, 0), None])
            a = (a - v @ (v.mT @ a).contiguous()).contiguous()
            reflections.append(v)
        q = self._new(self.eye(rows, count, dtype=a.dtype).uop).expand([*a.shape[:-2], rows, count])
        for v in reversed(reflections):
            q = (q - v @ (v.mT @ q).contiguous()).contiguous()
        return QR(q, a.narrow(-2, 0, count).triu())

    def svd(self, full_matrices: bool = False) -> SVD:
        """(U, S, Vh) with U · diag(S) · Vh = A, by Jacobi's rotations of pairs of columns.

        Only the part of U and V that belongs to values is computed. It runs at once: how often columns are
        turned does not depend on the values, but the number of steps is large.

        >>> [round(x, 4) for x in Tensor([[3.0, 0.0], [0.0, -2.0]]).svd().S.tolist()]
        [3.0, 2.0]
        """
        if full_matrices:
            raise ShapeError("svd computes the columns that belong to values; full_matrices is not supported")
        rows, columns = self._matrix("svd", square=False)
        if rows < columns:
            u, s, vh = self.mT.svd()
            return SVD(vh.mT, s, u.mT)
        a = self._floating()
        odd = columns % 2
        none: list[Any] = [None] * (a.ndim - 2)
        width = columns + odd
        work = a.pad([*none, None, (0, odd)])
        turns = self._new(self.eye(width, dtype=a.dtype).uop).expand([*a.shape[:-2], width, width])
        both = work.cat(turns, dim=-2).realize()  # type: ignore[attr-defined]
        for _ in range(_SWEEPS * max(1, width - 1)):
            both = both._rotated(rows, width).realize()
        work, turns = both.narrow(-2, 0, rows), both.narrow(-2, rows, width)
        lengths = (work * work).sum(-2).sqrt()
        order = lengths.argsort(-1, descending=True)
        order = order.narrow(-1, 0, columns)
        s = lengths.gather(-1, order)
        spread = order.unsqueeze(-2)
        u = work.take_along_dim(spread, -1) / s.eq(0.0).where(1.0, s).unsqueeze(-2)
        vh = turns.take_along_dim(spread, -1).narrow(-2, 0, columns).mT
        return SVD(u, s, vh)

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

    def solve(self, b: Any) -> Self:
        """X with A · X = b, by way of QR; b may be a vector.

        >>> [round(x, 4) for x in Tensor([[2.0, 1.0], [1.0, 3.0]]).solve(Tensor([3.0, 5.0])).tolist()]
        [0.8, 1.4]
        """
        self._matrix("solve")
        y = self._operand(b)
        vector = y.ndim == 1 or y.ndim == self.ndim - 1
        q, r = self.qr()
        right = q.mT @ (y.unsqueeze(-1) if vector else y)
        found = r.solve_triangular(right, upper=True)
        return found.squeeze(-1) if vector else found  # type: ignore[no-any-return]

    def inv(self) -> Self:
        """The matrix whose product with x is the unit matrix, by way of QR.

        >>> [round(x, 4) for x in Tensor([[2.0, 1.0], [1.0, 1.0]]).inv().flatten().tolist()]
        [1.0, -1.0, -1.0, 2.0]
        """
        size, _ = self._matrix("inv")
        x = self._floating()
        eye = self._new(self.eye(size, dtype=x.dtype).uop)
        return x.solve(eye.expand([*x.shape[:-2], size, size]))

    inverse = inv

    def det(self) -> Self:
        """The determinant, by way of QR.

        >>> round(Tensor([[2.0, 1.0], [1.0, 3.0]]).det().item(), 4)
        5.0
        """
        size, _ = self._matrix("det")
        if size == 0:
            return self._floating().sum((-2, -1)) + 1.0
        # Each of the size - 1 reflections turns the sign once.
        sign = -1.0 if size % 2 == 0 else 1.0
        return self.qr().R.diagonal(0, -2, -1).prod(-1) * sign  # type: ignore[no-any-return]
