"""Products, windows, norms, losses, creation: explicit cases with what NumPy (or a loop over it) computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from morok import Tensor
from tests.tensor.interface.oracles import (
    adapted,
    attention,
    convolved,
    entropy,
    normalised,
    pooled,
    resized,
    softmax,
    transposed,
)

Array = Any
Case = tuple[Callable[[], Any], Callable[[], Any]]


def data(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


A, B, V = data(3, 4), data(4, 5, seed=1), data(4, seed=2)
CUBE, IMAGE = data(2, 3, 4, seed=3), data(2, 4, 7, 6, seed=4)
SQUARE = data(4, 4, seed=5) + 4 * np.eye(4)
LABELS = np.array([2, 0, 3])


def t(x: Any) -> Tensor:
    return Tensor(x)


W1, W2, W3 = data(6, 3, 2, seed=6), data(6, 2, 3, 2, seed=7), data(2, 1, 2, 2, 2, seed=8)
BACK1, BACK2 = data(3, 2, 3, seed=9), data(4, 3, 2, 3, seed=10)
BLOCK = data(1, 1, 3, 4, 3, seed=11)
POSITIVE = SQUARE @ SQUARE.T
MASK = np.tri(3, 3, dtype=bool)

CASES: dict[str, list[Case]] = {
    "matmul": [
        (lambda a=a, b=b: t(a).matmul(t(b)), lambda a=a, b=b: np.matmul(a, b))
        for a, b in (
            (A, B),
            (V, B),
            (A, V),
            (V, V),
            (CUBE, B),
            (CUBE, CUBE.swapaxes(1, 2)),
            (CUBE[:, None], B),
            (np.zeros((0, 4)), B),
            (np.zeros((3, 0)), np.zeros((0, 2))),
            (A[:, :1], B[:1]),
        )
    ],
    "__matmul__": [
        (lambda: t(A) @ t(B), lambda: A @ B),
        (lambda: t(A.T[::2].T) @ t(B[::2]), lambda: A[:, ::2] @ B[::2]),
    ],
    "__rmatmul__": [(lambda: A @ t(B), lambda: A @ B)],
    "dot": [
        (lambda a=a, b=b: t(a).dot(t(b)), lambda a=a, b=b: np.dot(a, b))
        for a, b in ((A, B), (V, V), (CUBE, V), (CUBE, data(2, 4, 3)), (np.array(2.0), V))
    ],
    "vdot": [(lambda: t(A).vdot(t(A)), lambda: np.vdot(A, A))],
    "inner": [(lambda: t(CUBE).inner(t(A)), lambda: np.inner(CUBE, A))],
    "outer": [(lambda: t(V).outer(t(A)), lambda: np.outer(V, A))],
    "kron": [(lambda: t(A).kron(t(CUBE)), lambda: np.kron(A, CUBE))],
    "cross": [(lambda: t(CUBE).cross(t(CUBE * CUBE), 1), lambda: np.cross(CUBE, CUBE * CUBE, axis=1))],
    "mm": [(lambda: t(A).mm(t(B)), lambda: A @ B)],
    "mv": [(lambda: t(A).mv(t(V)), lambda: A @ V)],
    "bmm": [(lambda: t(CUBE).bmm(t(CUBE).mT), lambda: CUBE @ CUBE.swapaxes(1, 2))],
    "addmm": [(lambda: t(A @ B).addmm(t(A), t(B), 2, 3), lambda: 5 * (A @ B))],
    "trace": [
        (lambda: t(A).trace(1), lambda: np.trace(A, 1)),
        (lambda: t(CUBE).trace(0, 0, 2), lambda: np.trace(CUBE, 0, 0, 2)),
    ],
    "tensordot": [
        (lambda: t(CUBE).tensordot(t(CUBE), 3), lambda: np.tensordot(CUBE, CUBE, 3)),
        (lambda: t(A).tensordot(t(B), 0), lambda: np.tensordot(A, B, 0)),
        (lambda: t(CUBE).tensordot(t(A), ((2, 1), (1, 0))), lambda: np.tensordot(CUBE, A, ((2, 1), (1, 0)))),
    ],
    "einsum": [
        (lambda f=f, xs=xs: Tensor.einsum(f, *map(t, xs)), lambda f=f, xs=xs: np.einsum(f, *xs))
        for f, xs in (
            ("ij,jk->ik", (A, B)),
            ("ij,jk", (A, B)),
            ("ij->ji", (A,)),
            ("ij->", (A,)),
            ("ii->i", (SQUARE,)),
            ("ii", (SQUARE,)),
            ("bij,bkj->bik", (CUBE, CUBE)),
            ("...j,jk->...k", (CUBE, B)),
            ("i,j->ji", (V, V)),
            ("ij,jk,k->i", (A, B, data(5))),
            ("...,...->...", (A, V)),
            ("bij,bij->b", (CUBE, CUBE)),
            (" i j , j -> i ", (A, V)),
        )
    ],
    "linear": [(lambda: t(A).linear(t(B.T), t(B[0])), lambda: A @ B + B[0])],
    "scaled_dot_product_attention": [
        (
            lambda c=c: t(CUBE).scaled_dot_product_attention(t(CUBE * 2), t(CUBE + 1), is_causal=c),
            lambda c=c: attention(CUBE, CUBE * 2, CUBE + 1, c),
        )
        for c in (False, True)
    ]
    + [
        (
            lambda: t(CUBE).scaled_dot_product_attention(t(CUBE * 2), t(CUBE + 1), t(MASK)),
            lambda: attention(CUBE, CUBE * 2, CUBE + 1, True),
        )
    ],
    # windows
    "conv1d": [(lambda: t(CUBE).conv1d(t(W1), stride=2, padding=1), lambda: convolved(CUBE, W1, 2, 1))],
    "conv2d": [
        (lambda o=o: t(IMAGE).conv2d(t(W2), None, *o), lambda o=o: convolved(IMAGE, W2, *o))
        for o in ((1, 0, 1, 2), (2, 1, 1, 2), (1, 2, 2, 2))
    ],
    "conv3d": [(lambda: t(BLOCK).conv3d(t(W3), padding=1), lambda: convolved(BLOCK, W3, 1, 1))],
    "conv_transpose": [
        (lambda: t(CUBE).conv_transpose(t(BACK1), stride=2), lambda: transposed(CUBE, BACK1, 2))
    ],
    "conv_transpose1d": [
        (lambda: t(CUBE).conv_transpose1d(t(BACK1), None, 3, 1, 1), lambda: transposed(CUBE, BACK1, 3, 1, 1))
    ],
    "conv_transpose2d": [
        (
            lambda: t(IMAGE).conv_transpose2d(t(BACK2), None, 2, 1, 1, 2, 2),
            lambda: transposed(IMAGE, BACK2, 2, 1, 1, 2, 2),
        )
    ],
    "conv_transpose3d": [
        (
            lambda: t(BLOCK).conv_transpose3d(t(data(1, 2, 2, 1, 2))),
            lambda: transposed(BLOCK, data(1, 2, 2, 1, 2)),
        )
    ],
    "max_pool1d": [(lambda: t(CUBE).max_pool1d(2), lambda: pooled(CUBE, (2,), (2,), np.max))],
    "max_pool2d": [(lambda: t(IMAGE).max_pool2d(3, 2), lambda: pooled(IMAGE, (3, 3), (2, 2), np.max))],
    "max_pool3d": [(lambda: t(BLOCK).max_pool3d(2, 1), lambda: pooled(BLOCK, (2, 2, 2), (1, 1, 1), np.max))],
    "avg_pool1d": [(lambda: t(CUBE).avg_pool1d(3, 1), lambda: pooled(CUBE, (3,), (1,), np.mean))],
    "avg_pool2d": [(lambda: t(IMAGE).avg_pool2d((2, 3)), lambda: pooled(IMAGE, (2, 3), (2, 3), np.mean))],
    "avg_pool3d": [(lambda: t(BLOCK).avg_pool3d(2, 1), lambda: pooled(BLOCK, (2, 2, 2), (1, 1, 1), np.mean))],
    "adaptive_avg_pool1d": [(lambda: t(CUBE).adaptive_avg_pool1d(3), lambda: adapted(CUBE, (3,), np.mean))],
    "adaptive_avg_pool2d": [
        (lambda: t(IMAGE).adaptive_avg_pool2d((3, 4)), lambda: adapted(IMAGE, (3, 4), np.mean))
    ],
    "adaptive_max_pool1d": [(lambda: t(CUBE).adaptive_max_pool1d(3), lambda: adapted(CUBE, (3,), np.max))],
    "adaptive_max_pool2d": [
        (lambda: t(IMAGE).adaptive_max_pool2d(2), lambda: adapted(IMAGE, (2, 2), np.max))
    ],
    "interpolate": [
        (lambda: t(CUBE).interpolate(8), lambda: np.repeat(CUBE, 2, -1)),
        (lambda: t(CUBE).interpolate(3), lambda: CUBE[..., [0, 1, 2]]),
        (lambda: t(CUBE).interpolate(7, mode="linear"), lambda: resized(CUBE, 2, 7)),
        (
            lambda: t(IMAGE).interpolate((5, 9), None, "bilinear", True),
            lambda: resized(resized(IMAGE, 2, 5, True), 3, 9, True),
        ),
        (lambda: t(CUBE).interpolate(scale_factor=2.0, mode="linear"), lambda: resized(CUBE, 2, 8)),
    ],
    # equations
    "solve_triangular": [
        (lambda: t(SQUARE).solve_triangular(t(B)), lambda: np.linalg.solve(np.tril(SQUARE), B)),
        (lambda: t(SQUARE).solve_triangular(t(B), upper=True), lambda: np.linalg.solve(np.triu(SQUARE), B)),
        (
            lambda: t(SQUARE).solve_triangular(t(A), left=False),
            lambda: np.linalg.solve(np.tril(SQUARE).T, A.T).T,
        ),
        (
            lambda: t(SQUARE).solve_triangular(t(B), unitriangular=True),
            lambda: np.linalg.solve(np.tril(SQUARE, -1) + np.eye(4), B),
        ),
    ],
    "cholesky": [(lambda: t(POSITIVE).cholesky(), lambda: np.linalg.cholesky(POSITIVE))],
    "qr": [
        (lambda x=x: t(x).qr().Q @ t(x).qr().R, lambda x=x: x)
        for x in (A, B, SQUARE, CUBE, data(5, 1), data(1, 3))
    ]
    + [
        (lambda: t(B.T).qr().Q.mT @ t(B.T).qr().Q, lambda: np.eye(4)),
        (lambda: t(B).qr().R.abs(), lambda: np.abs(np.linalg.qr(B).R)),
    ],
    "svd": [
        (lambda x=x: t(x).svd().S, lambda x=x: np.linalg.svd(x, compute_uv=False))
        for x in (A, CUBE[:, :, :2], data(5, 1))
    ]
    + [(lambda: _joined(t(A).svd()), lambda: A)],
    "solve": [
        (lambda: t(SQUARE).solve(t(B)), lambda: np.linalg.solve(SQUARE, B)),
        (lambda: t(SQUARE).solve(t(V)), lambda: np.linalg.solve(SQUARE, V)),
    ],
    "inv": [(lambda: t(SQUARE).inv(), lambda: np.linalg.inv(SQUARE))],
    "det": [
        (lambda n=n: t(SQUARE[:n, :n]).det(), lambda n=n: np.linalg.det(SQUARE[:n, :n]))
        for n in (0, 1, 2, 3, 4)
    ],
    # rows
    "softmax": [
        (lambda: t(CUBE).softmax(axis=1), lambda: softmax(CUBE, 1)),
        (lambda: t(np.zeros((2, 0))).softmax(), lambda: np.zeros((2, 0))),
    ],
    "log_softmax": [(lambda: t(CUBE).log_softmax(dim=0), lambda: np.log(softmax(CUBE, 0)))],
    "layer_norm": [
        (lambda: t(CUBE).layer_norm(-1, t(V), t(V)), lambda: normalised(CUBE, -1) * V + V),
        (lambda: t(CUBE).layer_norm((3, 4)), lambda: normalised(CUBE, (1, 2))),
    ],
    "rms_norm": [
        (
            lambda: t(CUBE).rms_norm(-1, t(V)),
            lambda: CUBE / np.sqrt((CUBE**2).mean(-1, keepdims=True) + 1e-6) * V,
        )
    ],
    "batch_norm": [
        (
            lambda: t(CUBE).batch_norm(t(V[:3]), t(V[:3] ** 2)),
            lambda: (CUBE - V[:3, None]) / np.sqrt(V[:3, None] ** 2 + 1e-5),
        )
    ],
    "nll_loss": [
        (lambda: t(A).nll_loss(t(LABELS)), lambda: -A[np.arange(len(A)), LABELS].mean()),
        (lambda: t(A).nll_loss(t(LABELS), "none"), lambda: -A[np.arange(len(A)), LABELS]),
    ],
    "cross_entropy": [
        (lambda: t(A).cross_entropy(t(LABELS)), lambda: entropy(A, LABELS).mean()),
        (lambda: t(A).cross_entropy(t(LABELS), "none"), lambda: entropy(A, LABELS)),
        (
            lambda: t(A).cross_entropy(t(LABELS), "sum", ignore_index=0),
            lambda: entropy(A, LABELS)[[0, 2]].sum(),
        ),
        (
            lambda: t(A).cross_entropy(t(LABELS), label_smoothing=0.1),
            lambda: (0.9 * entropy(A, LABELS) - 0.1 * np.log(softmax(A)).mean(-1)).mean(),
        ),
    ],
    "mse_loss": [(lambda: t(A).mse_loss(t(A * A)), lambda: ((A - A * A) ** 2).mean())],
    "binary_cross_entropy_with_logits": [
        (
            lambda: t(A).binary_cross_entropy_with_logits(t(A * 0 + 0.3)),
            lambda: (np.log1p(np.exp(A)) - A * 0.3).mean(),
        )
    ],
    "one_hot": [(lambda: t(LABELS).one_hot(5), lambda: np.eye(5, dtype=np.int64)[LABELS])],
    "prelu": [(lambda: t(CUBE).prelu(t(V[:3])), lambda: np.where(CUBE > 0, CUBE, CUBE * V[:3, None]))],
    "var_mean": [
        (lambda: t(A).var_mean(0)[0], lambda: A.var(0, ddof=1)),
        (lambda: t(A).var_mean(0)[1], lambda: A.mean(0)),
    ],
    "aminmax": [
        (lambda: t(A).aminmax(dim=1)[0], lambda: A.min(1)),
        (lambda: t(A).aminmax()[1], lambda: A.max()),
    ],
    # places
    "scatter": [(lambda: t(A).scatter(1, t(LABELS[:, None]), 7.0), lambda: _put(A))],
    "scatter_add": [
        (
            lambda: t(np.zeros(4)).scatter_add(0, t(LABELS[[0, 0, 1]]), t(V[:3])),
            lambda: np.array([V[2], 0, V[0] + V[1], 0]),
        )
    ],
    "scatter_reduce": [
        (
            lambda: t(V).scatter_reduce(0, t([1, 1, 1]), t(V[:3]), "amax"),
            lambda: np.array([V[0], V[:3].max(), V[2], V[3]]),
        )
    ],
    "index_add": [(lambda: t(A).index_add(0, t([2, 2]), t(A[:2])), lambda: _added(A))],
    "index_put": [
        (
            lambda: t(V).index_put((t([1, 1]),), t([1.0, 2.0]).double()),
            lambda: np.array([V[0], 2.0, V[2], V[3]]),
        )
    ],
    "bincount": [(lambda: t(LABELS).bincount(5), lambda: np.bincount(LABELS, minlength=5))],
    "searchsorted": [
        (
            lambda s=s, n=n: t(np.sort(data(n))).searchsorted(
                t(np.append(A, np.sort(data(n))[n // 2])), side=s
            ),
            lambda s=s, n=n: np.searchsorted(np.sort(data(n)), np.append(A, np.sort(data(n))[n // 2]), s),
        )
        for s in ("left", "right")
        for n in (1, 10, 100)
    ],
    "bucketize": [(lambda: t(A).bucketize(t(np.sort(V))), lambda: np.searchsorted(np.sort(V), A))],
    "assign": [(lambda: t(np.zeros((3, 4))).assign(t(A) * 2), lambda: A * 2)],
    **{
        name: [(lambda name=name, op=op: _in_place(t(A.copy()), name, 3.0), lambda op=op: op(A, 3.0))]
        for name, op in (
            ("__iadd__", np.add),
            ("__isub__", np.subtract),
            ("__imul__", np.multiply),
            ("__itruediv__", np.divide),
            ("__ifloordiv__", np.floor_divide),
            ("__imod__", np.mod),
        )
    },
    **{
        name: [(lambda name=name, op=op: _in_place(t(LABELS.copy()), name, 3), lambda op=op: op(LABELS, 3))]
        for name, op in (
            ("__ipow__", np.power),
            ("__iand__", np.bitwise_and),
            ("__ior__", np.bitwise_or),
            ("__ixor__", np.bitwise_xor),
            ("__ilshift__", np.left_shift),
            ("__irshift__", np.right_shift),
        )
    },
    "__imatmul__": [
        (lambda: _in_place(t(A[:3, :3].copy()), "__imatmul__", t(A[:3, :3])), lambda: A[:3, :3] @ A[:3, :3])
    ],
    # operators with the tensor on the right
    "__rfloordiv__": [(lambda: 7.0 // t(A), lambda: 7.0 // A)],
    "__rmod__": [(lambda: 7.0 % t(A), lambda: 7.0 % A)],
    "__rlshift__": [(lambda: 1 << t(LABELS), lambda: 1 << LABELS)],
    "__rrshift__": [(lambda: 64 >> t(LABELS), lambda: 64 >> LABELS)],
    "__round__": [(lambda: round(t(A), 2), lambda: np.round(A, 2))],
    "__divmod__": [
        (lambda: divmod(t(A), 0.7)[0], lambda: np.divmod(A, 0.7)[0]),
        (lambda: divmod(t(A), 0.7)[1], lambda: np.divmod(A, 0.7)[1]),
    ],
    # creation
    "full": [
        (lambda: Tensor.full((2, 3), 7), lambda: np.full((2, 3), 7)),
        (lambda: Tensor.full((), 1.5, "float64"), lambda: np.array(1.5)),
    ],
    "zeros": [(lambda: Tensor.zeros(2, 0, 3), lambda: np.zeros((2, 0, 3), np.float32))],
    "ones": [(lambda: Tensor.ones(3, dtype="int8"), lambda: np.ones(3, np.int8))],
    "full_like": [(lambda: t(A).full_like(3), lambda: np.full_like(A, 3))],
    "zeros_like": [(lambda: t(LABELS).zeros_like(), lambda: np.zeros_like(LABELS))],
    "ones_like": [(lambda: t(A).ones_like("int16"), lambda: np.ones_like(A, np.int16))],
    "arange": [
        (
            lambda a=a: Tensor.arange(*a),
            lambda a=a: np.arange(*a).astype(
                np.float32 if any(isinstance(x, float) for x in a) else np.int64
            ),
        )
        for a in ((5,), (2, 9, 3), (9, 2, -2), (0,), (5, 2), (0.0, 1.0, 0.3), (1.5,))
    ],
    "linspace": [
        (lambda a=a: Tensor.linspace(*a), lambda a=a: np.linspace(*a).astype(np.float32))
        for a in ((0, 1, 5), (3, -2, 7), (1, 2, 1), (1, 2, 0))
    ],
    "logspace": [(lambda: Tensor.logspace(0, 3, 4, dtype="float64"), lambda: np.logspace(0, 3, 4))],
    "eye": [
        (lambda: Tensor.eye(3, 5, "int32"), lambda: np.eye(3, 5, dtype=np.int32)),
        (lambda: Tensor.eye(0), lambda: np.eye(0, dtype=np.float32)),
    ],
    "tri": [
        (lambda: Tensor.tri(3, 4, 1), lambda: np.tri(3, 4, 1, dtype=np.float32)),
        (lambda: Tensor.tri(3, diagonal=-1), lambda: np.tri(3, k=-1, dtype=np.float32)),
    ],
    "meshgrid": [
        (
            lambda i=i, k=k: Tensor.meshgrid(t(V), t(LABELS), indexing=i)[k],
            lambda i=i, k=k: np.meshgrid(V, LABELS, indexing=i)[k],
        )
        for i in ("ij", "xy")
        for k in (0, 1)
    ],
    "from_numpy": [
        (lambda: Tensor.from_numpy(A.T), lambda: A.T),
        (lambda: Tensor.from_numpy(A[:, ::-1]), lambda: A[:, ::-1]),
    ],
    "from_dlpack": [(lambda: Tensor.from_dlpack(A), lambda: A)],
    "from_buffer": [
        (
            lambda: Tensor.from_buffer(A.tobytes(), "float64", (4, 2), 32),
            lambda: A.reshape(-1)[4:].reshape(4, 2),
        ),
        (
            lambda: Tensor.from_buffer(bytearray(b"\x01\x02\x03"), offset=1),
            lambda: np.array([2, 3], np.uint8),
        ),
    ],
    # conversion
    **{
        name: [(lambda name=name: getattr(t(A * 3), name)(), lambda kind=kind: (A * 3).astype(kind))]
        for name, kind in (("int", np.int32), ("long", np.int64), ("half", np.float16))
    },
    "bfloat16": [(lambda: t(LABELS).bfloat16().float(), lambda: LABELS.astype(np.float32))],
    "cast": [(lambda: t(A).cast("float16"), lambda: A.astype(np.float16))],
    "to": [
        (lambda: t(A).to("float32"), lambda: A.astype(np.float32)),
        (lambda: t(A).to("PYTHON"), lambda: A),
    ],
    "bitcast": [(lambda: t(A).bitcast("int64"), lambda: A.view(np.int64))],
    # values
    "numpy": [(lambda: t(A).numpy(), lambda: A)],
    "tolist": [(lambda: t(A).tolist(), lambda: A)],
    "item": [(lambda: t(A)[1, 2].item(), lambda: A[1, 2])],
    "__float__": [(lambda: float(t(A)[0, 0]), lambda: A[0, 0])],
    "__int__": [(lambda: int(t(7.9)), lambda: np.array(7))],
    "__bool__": [(lambda: bool(t([3])), lambda: np.array(True))],
    "__index__": [(lambda: V[t(2)], lambda: V[2])],
    "__iter__": [(lambda: [x.numpy() for x in t(A)], lambda: A)],
    "__array__": [(lambda: np.asarray(t(A)), lambda: A)],
    "__dlpack__": [(lambda: np.from_dlpack(t(A)), lambda: A)],
    "numel": [(lambda: t(A).numel(), lambda: np.array(12))],
    "size": [(lambda: t(A).size(1), lambda: np.array(4))],
    "nbytes": [(lambda: t(A).nbytes, lambda: np.array(96))],
    "shape": [(lambda: t(A).shape, lambda: np.array((3, 4)))],
    "ndim": [(lambda: t(A).ndim, lambda: np.array(2))],
    "realize": [(lambda: t(A).realize(), lambda: A)],
}


def _joined(found: Any) -> Tensor:
    return (found.U * found.S.unsqueeze(-2)) @ found.Vh  # type: ignore[no-any-return]


def _put(x: Array) -> Array:
    copy = x.copy()
    np.put_along_axis(copy, LABELS[:, None], 7.0, 1)
    return copy


def _added(x: Array) -> Array:
    copy = x.copy()
    np.add.at(copy, [2, 2], x[:2])
    return copy


def _in_place(x: Tensor, name: str, value: float) -> Tensor:
    return getattr(x, name)(value)  # type: ignore[no-any-return]
