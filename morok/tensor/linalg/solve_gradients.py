"""Gradients of factorisations and of systems of equations, in closed form.

With g the gradient of the result:

    X = A⁻¹      A gets  -Xᵀ g Xᵀ
    A X = B      B gets  λ where Aᵀ λ = g, and A gets  -λ Xᵀ
    d = det A    A gets  g times the matrix of cofactors, which is d · A⁻ᵀ where d is not zero
    A = L Lᵀ     A gets  the symmetric part of L⁻ᵀ Φ(Lᵀ g) L⁻¹; Φ: the lower triangle, half its diagonal
    A = Q R      A gets  (gQ + Q M) R⁻ᵀ, where M has the lower triangle of R gRᵀ - gQᵀ Q, mirrored
    A[p] = L U   A gets  see `_pull_lu`; pseudo-inverses and eigenvectors likewise
    A = U S Vᵀ   A gets  U (K S + S J + gS) Vᵀ and more if it is not square: see `_pull_svd`

A result is marked as a whole, `CALL(result, A, …)`, so nothing is derived through the loops that compute it.
The formulas use results by their marks, and what they solve is marked again: second derivatives take the same
way. Factors of several parts are one tensor, the parts below each other, so that one formula sees the
gradients of all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from morok.errors import MorokError
from morok.ir.call import attributes, call_name
from morok.ir.node import UOp, alu, const
from morok.ir.ops import Ops
from morok.ir.provenance import place
from morok.tensor.core import require_shape
from morok.tensor.gradient.walk import CALLS
from morok.tensor.linalg.solve import FREE, reflected, solved, solved_triangular, unit_matrix

Rule = Callable[[Any, Any, tuple[Any, ...], int], Any]  # result, its gradient, inputs, which of them


def summed_to(x: Any, shape: tuple[Any, ...]) -> Any:
    """The sum over the axes along which something of that shape was repeated."""
    extra = x.ndim - len(shape)
    x = x.sum(tuple(range(extra))) if extra else x
    axes = tuple(i for i, (n, m) in enumerate(zip(x.shape, shape, strict=True)) if n != m)
    return x.sum(axes, keepdim=True) if axes else x


def _quotient(x: Any, y: Any) -> Any:
    """x / y, and 0 where x is 0: what nobody asked about does not become 0 / 0."""
    nothing = x.eq(0.0)
    return nothing.where(0.0, x / nothing.where(1.0, y))


# --- systems of equations


def _pull_inverse(x: Any, g: Any, inputs: tuple[Any, ...], which: int) -> Any:
    return -(x.mT @ g @ x.mT)


def _pull_solve(x: Any, g: Any, inputs: tuple[Any, ...], which: int, transposed: bool) -> Any:
    a, b = inputs  # Aᵀ X = B if it was transposed
    slope = solved(a, g, not transposed)
    if which == 1:
        return summed_to(slope, b.shape)
    return summed_to(-(x @ slope.mT if transposed else slope @ x.mT), a.shape)


def _pull_triangular(x: Any, g: Any, inputs: tuple[Any, ...], which: int, upper: bool, unit: bool) -> Any:
    a, b = inputs
    slope = solved_triangular(a.mT, g, not upper, unit)
    if which == 1:
        return summed_to(slope, b.shape)
    full = summed_to(-(slope @ x.mT), a.shape)
    return full.triu(int(unit)) if upper else full.tril(-int(unit))


def _pull_determinant(d: Any, g: Any, inputs: tuple[Any, ...], which: int) -> Any:
    """The cofactors of Q R are those of Q, which is ±Q itself, times those of R, which are det R · R⁻ᵀ.

    They are continuous, so a zero on R's diagonal may be replaced by something that rounding hides.
    """
    (a,) = inputs
    q, r = a.qr()
    diagonal = r.diagonal(0, -2, -1)
    largest = diagonal.detach().abs().max(-1, keepdim=True)
    least = largest.eq(0.0).where(1.0, largest) * a.dtype.eps
    gone = diagonal.detach().abs() < a.dtype.smallest_normal
    r = r + gone.where(least, 0.0).diag_embed()
    eye = unit_matrix(a, a.shape[-1])
    cofactors = solved_triangular(r.mT, eye, False, False) * r.diagonal(0, -2, -1).prod(-1)[..., None, None]
    sign = reflected(a.detach())[2]
    return q @ cofactors * (g * sign)[..., None, None]


# --- factorisations


def _pull_cholesky(x: Any, g: Any, inputs: tuple[Any, ...], which: int) -> Any:
    middle = x.mT @ g
    middle = (middle.tril() + middle.tril(-1)) * 0.5
    left = solved_triangular(x.mT, middle, True, False)
    both = solved_triangular(x.mT, left.mT, True, False)
    return (both + both.mT) * 0.5


def _pull_qr(p: Any, g: Any, inputs: tuple[Any, ...], which: int) -> Any:
    """A = Q R. Of more columns than rows, A = (X Y) with X = Q R₁ and R₂ = Qᵀ Y."""
    (a,) = inputs
    rows, columns = a.shape[-2:]
    q, r, gq, gr = (part for t in (p, g) for part in (t.narrow(-2, 0, rows), t.narrow(-2, rows, columns).mT))
    if columns > rows:
        rest = columns - rows
        y, gy = a.narrow(-1, rows, rest), gr.narrow(-1, rows, rest)
        first = _pull_square_qr(q, r.narrow(-1, 0, rows), gq + y @ gy.mT, gr.narrow(-1, 0, rows))
        return first.cat(q @ gy, dim=-1)
    return _pull_square_qr(q, r, gq, gr)


def _pull_square_qr(q: Any, r: Any, gq: Any, gr: Any) -> Any:
    m = r @ gr.mT - gq.mT @ q
    m = m.tril() + m.tril(-1).mT
    return solved_triangular(r, (gq + q @ m).mT, True, False).mT


def _pull_svd(p: Any, g: Any, inputs: tuple[Any, ...], which: int) -> Any:
    """With E_ij = s_j² - s_i², K = (Uᵀ gU - gUᵀ U) / E, J = (Vᵀ gV - gVᵀ V) / E:

    U (K S + S J + gS) Vᵀ + (1 - U Uᵀ) gU S⁻¹ Vᵀ + U S⁻¹ gVᵀ (1 - V Vᵀ).

    Vectors of equal values are not unique: then K and J are infinite, unless nothing depends on them.
    """
    (a,) = inputs
    rows, columns = a.shape[-2:]
    count = min(rows, columns)
    cuts = ((0, rows), (rows, 1), (rows + 1, columns))
    (u, s, v), (gu, gs, gv) = ([t.narrow(-2, start, size) for start, size in cuts] for t in (p, g))
    gaps = s * s - (s * s).mT
    gaps = gaps + unit_matrix(a, count)  # what is divided by the diagonal is zero
    turns = []
    for x, gx in ((u, gu), (v, gv)):
        product = x.mT @ gx
        turns.append(_quotient(product - product.mT, gaps))
    inner = turns[0] * s + s.mT * turns[1] + gs.squeeze(-2).diag_embed()
    left = u @ inner
    if rows > count:
        left = left + _quotient(gu - u @ (u.mT @ gu), s)
    total = left @ v.mT
    if columns > count:
        total = total + u @ _quotient(gv - v @ (v.mT @ gv), s).mT
    return total


def _pull_lu(packed: Any, g: Any, inputs: tuple[Any, ...], which: int) -> Any:
    """A[order] = L U: its rows get L⁻ᵀ (tril(Lᵀ gL) + triu(gU Uᵀ)) U⁻ᵀ, what is beside the square first."""
    a, order = inputs
    rows, columns = a.shape[-2:]
    count = min(rows, columns)
    square = packed.narrow(-2, 0, count).narrow(-1, 0, count)
    gs = g.narrow(-2, 0, count).narrow(-1, 0, count)
    lower, upper = square.tril(-1) + unit_matrix(a, count), square.triu()
    gl, gu = gs.tril(-1), gs.triu()
    rest = None
    if rows > columns:  # L₂ = A₂ U⁻¹
        below, gb = packed.narrow(-2, count, rows - count), g.narrow(-2, count, rows - count)
        rest = solved_triangular(upper, gb.mT, True, False).mT
        gu = gu - (below.mT @ rest).triu()
    elif columns > rows:  # U₂ = L⁻¹ A₂
        beside, gb = packed.narrow(-1, count, columns - count), g.narrow(-1, count, columns - count)
        rest = solved_triangular(lower.mT, gb, True, True)
        gl = gl - (rest @ beside.mT).tril(-1)
    middle = (lower.mT @ gl).tril(-1) + (gu @ upper.mT).triu()
    middle = solved_triangular(lower.mT, middle, True, True)
    found = solved_triangular(upper, middle.mT, True, False).mT
    if rest is not None:
        found = found.cat(rest, dim=-2 if rows > columns else -1)
    return found.take_along_dim(order.argsort(-1).unsqueeze(-1), -2)


def _pull_logabsdet(d: Any, g: Any, inputs: tuple[Any, ...], which: int) -> Any:
    (a,) = inputs
    return g[..., None, None] * solved(a, unit_matrix(a, a.shape[-1]), True)


def _pull_pinv(x: Any, g: Any, inputs: tuple[Any, ...], which: int) -> Any:
    """With X = A⁺: as of an inverse, and two parts for what lies outside of A's range."""
    (a,) = inputs
    xt, gt = x.mT, g.mT
    first = -(xt @ g @ xt)
    left = (gt - a @ (x @ gt)) @ x @ xt  # (1 - A X) gᵀ X Xᵀ
    right = xt @ x @ (gt - (gt @ x) @ a)  # Xᵀ X gᵀ (1 - X A)
    return first + left + right


def _pull_eigh(p: Any, g: Any, inputs: tuple[Any, ...], which: int) -> Any:
    """V (diag(gw) + (Vᵀ gV) / E) Vᵀ with E_ij = w_j - w_i; infinite where equal values' vectors matter."""
    (a,) = inputs
    size = a.shape[-1]
    w, v = p.narrow(-2, 0, 1), p.narrow(-2, 1, size)
    gw, gv = g.narrow(-2, 0, 1), g.narrow(-2, 1, size)
    eye = unit_matrix(a, size)
    gaps = w - w.mT + eye
    turned = _quotient((v.mT @ gv) * (1.0 - eye), gaps)
    return v @ (turned + eye * gw) @ v.mT


_RULES: dict[str, Any] = {
    "lu": _pull_lu,
    "logabsdet": _pull_logabsdet,
    "pinv": _pull_pinv,
    "eigh": _pull_eigh,
    "inv": _pull_inverse,
    "solve": _pull_solve,
    "solve_triangular": _pull_triangular,
    "det": _pull_determinant,
    "cholesky": _pull_cholesky,
    "qr": _pull_qr,
    "svd": _pull_svd,
}


def _is_nothing(g: UOp, box: list[tuple[int, int]] | None = None) -> bool:
    """Whether a gradient, or a box of it, is certainly zero: what somebody has cut off, given back padded."""
    if g.op is Ops.CONST:
        return bool(g.arg == 0)
    own = require_shape(g)
    if not all(isinstance(n, int) for n in own):
        return False
    box = [(0, int(n)) for n in own] if box is None else box  # type: ignore[arg-type]
    if g.op is Ops.PERMUTE:
        return _is_nothing(g.src[0], [box[g.arg.index(i)] for i in range(len(box))])
    if g.op in (Ops.CAST, Ops.NEG):
        return _is_nothing(g.src[0], box)
    if g.op in (Ops.ADD, Ops.MUL):
        parts = (_is_nothing(x, box) for x in g.src)
        return all(parts) if g.op is Ops.ADD else any(parts)
    if g.op is Ops.WHERE:
        return all(_is_nothing(x, box) for x in g.src[1:])
    if g.op not in (Ops.SHRINK, Ops.PAD) or any(n.op is not Ops.CONST for n in g.src[1:]):
        return False
    firsts = [n.arg for n in g.src[1::2]]
    if g.op is Ops.SHRINK:
        return _is_nothing(g.src[0], [(lo + n, hi + n) for (lo, hi), n in zip(box, firsts, strict=True)])
    inner = [(lo - n, hi - n) for (lo, hi), n in zip(box, firsts, strict=True)]
    sizes = require_shape(g.src[0])
    cut = [(max(lo, 0), min(hi, n)) for (lo, hi), n in zip(inner, sizes, strict=True)]
    return any(lo >= hi for lo, hi in cut) or _is_nothing(g.src[0], cut)


def _pull(new: Callable[[UOp], Any], node: UOp, g: UOp, source: int) -> UOp:
    name, how = call_name(node), attributes(node)
    if name == FREE:
        if _is_nothing(g):  # nobody has looked at them
            return alu(Ops.MUL, node.src[source], const(node.dtype, 0.0))
        raise MorokError(
            f"{how['of']} completes a basis with columns of its own choice, which have no gradient; "
            "take the reduced factors",
            place=place(node),
        )
    inputs = tuple(new(x) for x in node.src[1:])
    found: UOp = _RULES[name](new(node), new(g), inputs, source - 1, **how).uop
    return found


def enter_gradients(new: Callable[[UOp], Any]) -> None:
    """The rules above become known to the walk; `new` makes a tensor of a node."""
    for name in (*_RULES, FREE):
        CALLS[name] = partial(_pull, new)
