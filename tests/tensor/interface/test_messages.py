"""What goes wrong is said in one sentence: the shapes, what would fit, and the user's line."""

from typing import Any

import pytest

from morok import Tensor, jit
from morok.errors import MorokError

T = Tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
N = Tensor([1, 2, 3])

BAD: dict[str, list[tuple[Any, str]]] = {
    "gather": [
        (lambda: T.gather(1, N), "needs an index of 2 axes"),
        (lambda: T.gather(1, T), "made of integers"),
    ],
    "index_select": [(lambda: T.index_select(5, N), "axis 5 does not exist")],
    "take": [(lambda: T.take([9]), r"index 9 is outside of axis 0 of shape \(6,\); use -6 … 5")],
    "take_along_dim": [(lambda: T.take_along_dim(N, 1), "needs an index of 2 axes")],
    "scatter": [(lambda: T.scatter(0, N, T), "needs an index of 2 axes")],
    "index_put": [(lambda: T.index_put((), 1), r"needs 1 … 2 indices")],
    "bincount": [(lambda: T.bincount(3), "counts whole numbers, not float32")],
    "sort": [(lambda: T.sort(3), "axis 3 does not exist")],
    "topk": [(lambda: T.topk(4), r"has k in 0 … 3, not 4")],
    "searchsorted": [(lambda: T.searchsorted(N), r"needs values of shape \(2,")],
    "quantile": [(lambda: Tensor.zeros(0).quantile(0.5), "has nothing to choose from")],
    "masked_select": [(lambda: T.masked_select(N, 3), "a mask is made of truths, not of int64")],
    "__setitem__": [
        (lambda: T.contiguous().__setitem__(Tensor([True]), 0), r"a mask of shape \(1,\) does not fit")
    ],
    "pad": [(lambda: T.pad((3, 3), mode="reflect"), "has 2 to give")],
    "movedim": [(lambda: T.movedim((0, 1), 0), "moves 2 axes to 1 positions")],
    "select": [(lambda: T.select(1, 3), "index 3 is outside of axis 1")],
    "roll": [(lambda: T.roll((1, 2), 0), "needs a shift per axis, got 2 for 1 axes")],
    "tensor_split": [(lambda: T.tensor_split(0), "needs 1 part or more")],
    "diag": [(lambda: Tensor.ones(1, 1, 1).diag(), "takes a vector or a matrix")],
    "rearrange": [
        (lambda: T.rearrange("a b c -> a"), "has 3 axes on the left"),
        (lambda: T.rearrange("a b -> a"), "the same names on both sides"),
        (lambda: T.rearrange("a (b c) -> a b c", b=2), "which does not fit"),
    ],
    "einsum": [
        (lambda: T.einsum("ij,jk", T), "axis j has sizes 3 and 2"),
        (lambda: T.einsum("ijk"), "does not name the 2 axes"),
        (lambda: T.einsum("ij,ij"), "names 2 operands, got 1"),
        (lambda: T.einsum("ij->ik"), "each letter of the result occurs once there, and on the left"),
        (lambda: T.einsum("ii"), "needs equal sizes"),
    ],
    "tensordot": [(lambda: T.tensordot(T, 1), "needs equal sizes there")],
    "cross": [(lambda: T.cross(T, 0), "needs axes of size 3")],
    "mm": [(lambda: T.mm(N), r"takes 2 and 2 axes, not \(2, 3\) and \(3,\); use matmul")],
    "conv1d": [(lambda: T.conv1d(T), "takes \\(N, C, …\\)")],
    "conv_transpose": [(lambda: T.conv_transpose(T), "transposed convolution of")],
    "unfold": [(lambda: T.unfold(1, 4), "takes windows of 1 … 3")],
    "interpolate": [(lambda: T.interpolate(2), r"needs \(N, C, …\) and a size or a factor")],
    "solve_triangular": [
        (lambda: T.solve_triangular(T), "takes square matrices of known size"),
        (lambda: (T @ T.T).solve_triangular(N), r"needs a right side of shape \(2,\) or \(…, 2, k\)"),
    ],
    "cholesky": [(lambda: T.cholesky(), "takes square matrices")],
    "inv": [(lambda: T.inv(), "solve takes square|inv takes square")],
    "__getitem__": [
        (lambda: T[0, 1, 2], "has 2 axes, but the index has 3"),
        (lambda: T[..., ...], r"only one \.\.\."),
        (lambda: jit(lambda t: t[t > 1])(T), "use masked_select with a size"),
        (lambda: T["a"], "an index is a number"),
        (lambda: T[[[0, 1], [2]]], "index|equal lengths|inhomogeneous"),
    ],
    "reshape": [(lambda: T.reshape(4), "which has 4; the numbers must be equal")],
    "cat": [(lambda: T.cat(N), "do not join")],
    "matmul": [(lambda: T @ T, "do not multiply: 3 columns on the left need 3 rows on the right")],
    "sum": [(lambda: T.sum(axis=0, dim=1), "are the same argument; give one of them")],
    "cast": [(lambda: T.cast("float128"), "is not a type of elements")],
}
FLAT = [
    pytest.param(call, message, id=f"{name}-{i}")
    for name, all_ in BAD.items()
    for i, (call, message) in enumerate(all_)
]


@pytest.mark.parametrize(("call", "message"), FLAT)
def test_message(call: Any, message: str) -> None:
    with pytest.raises((MorokError, ValueError), match=message) as info:
        call()
    if isinstance(info.value, MorokError):
        assert "test_messages.py:" in str(info.value)
        text = str(info.value)
        assert "\n" not in text and len(text) < 300
