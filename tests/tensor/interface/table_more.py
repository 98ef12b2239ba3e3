"""Further cases: what NumPy has under the same name or in a line, empty and 0-d tensors among them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from morok import Tensor

Array = Any
Case = tuple[Callable[[], Any], Callable[[], Any]]

RNG = np.random.default_rng(11)
A, B = RNG.standard_normal((3, 4)), RNG.standard_normal((3, 4))
C = RNG.standard_normal((2, 3, 4))
V, W = RNG.standard_normal(5), RNG.standard_normal(5)
I = np.array([[3, -4, 12], [0, 5, -18]])
HOLES = np.array([[1.0, np.nan, 3.0, 7.0], [np.nan] * 4, [4.0, 2.0, np.nan, 0.5]])
SQUARE = RNG.standard_normal((4, 4)) + 4 * np.eye(4)
IMAGE = RNG.standard_normal((2, 4, 5, 6))
EMPTY = np.zeros((0, 3))
NUMBERS = np.array([0.0, -0.0, 1.5, -2.25, 1e-310, np.inf, -np.inf, np.nan, 5e300])


def t(x: Array) -> Tensor:
    return Tensor(x)


def same(name: str, *arrays: Array, oracle: Any = None, **kwargs: Any) -> Case:
    """A method beside NumPy's function of that name."""
    function = oracle or getattr(np, name)
    return (
        lambda: getattr(t(arrays[0]), name)(*map(t, arrays[1:]), **kwargs),
        lambda: function(*arrays, **kwargs),
    )


def part(case: Case, number: int) -> Case:
    """One of several results."""
    return lambda: case[0]()[number], lambda: case[1]()[number]


def put(x: Array, place: Any, value: Any) -> Array:
    y = np.array(x)
    y[place] = value
    return y


def slices_of(x: Array, axis: int) -> Array:
    return np.unique(x, axis=axis)


def folded(
    columns: Array, size: tuple[int, int], kernel: tuple[int, int], stride: int, padding: int
) -> Array:
    n, rows, _ = columns.shape
    channels = rows // math.prod(kernel)
    image = np.zeros((n, channels, size[0] + 2 * padding, size[1] + 2 * padding))
    places = itertools.product(*(range(0, image.shape[2 + i] - kernel[i] + 1, stride) for i in range(2)))
    for number, (y, x) in enumerate(places):
        patch = columns[:, :, number].reshape(n, channels, *kernel)
        image[:, :, y : y + kernel[0], x : x + kernel[1]] += patch
    return image[:, :, padding : padding + size[0], padding : padding + size[1]]


def unfolded(image: Array, kernel: tuple[int, int]) -> Array:
    n, _, h, w = image.shape
    columns = [
        image[:, :, y : y + kernel[0], x : x + kernel[1]].reshape(n, -1)
        for y in range(h - kernel[0] + 1)
        for x in range(w - kernel[1] + 1)
    ]
    return np.stack(columns, -1)


def windows(n: int, count: int) -> list[slice]:
    return [slice(i * n // count, -(-(i + 1) * n // count)) for i in range(count)]


def adapted(x: Array, sizes: tuple[int, ...], function: Any) -> Array:
    for i, count in enumerate(sizes):
        axis = x.ndim - len(sizes) + i
        x = np.stack(
            [function(x[(slice(None),) * axis + (w,)], axis) for w in windows(x.shape[axis], count)], axis
        )
    return x


def sampled(image: Array, grid: Array) -> Array:
    """Bilinear samples with zeros outside, corners at -1 and 1."""
    n, c, h, w = image.shape
    found = np.zeros((n, c, *grid.shape[1:3]))
    for b, y, x in itertools.product(range(n), range(grid.shape[1]), range(grid.shape[2])):
        px, py = (grid[b, y, x] + 1) / 2 * [w - 1, h - 1]
        for dy, dx in itertools.product((0, 1), repeat=2):
            qy, qx = math.floor(py) + dy, math.floor(px) + dx
            if 0 <= qy < h and 0 <= qx < w:
                found[b, :, y, x] += image[b, :, qy, qx] * (1 - abs(py - qy)) * (1 - abs(px - qx))
    return found


GRID = RNG.uniform(-1.2, 1.2, (2, 3, 4, 2))
THETA = RNG.standard_normal((2, 2, 3))


def affine(theta: Array, h: int, w: int) -> Array:
    y, x = np.meshgrid(np.linspace(-1, 1, h), np.linspace(-1, 1, w), indexing="ij")
    return np.einsum("hwk,nck->nhwc", np.stack([x, y, np.ones_like(x)], -1), theta)


def histogram_of(x: Array, bins: int, low: float, high: float) -> Array:
    return np.histogram(x, bins, (low, high))[0].astype(x.dtype)


def mode_of(x: Array) -> Array:
    return np.array([max(sorted(set(row)), key=list(row).count) for row in x])


COUNTS = np.array([[3, 1, 3, 2], [2, 2, 5, 5], [7, 7, 7, 0]])
RUNS = np.array([1, 1, 2, 2, 2, 1, 5])
SHUFFLED = np.arange(2 * 8 * 2 * 3).reshape(2, 8, 2, 3)

MORE: dict[str, list[Case]] = {
    "allclose": [(lambda: t(V).allclose(V + 1e-9), lambda: True), (lambda: t(V).allclose(W), lambda: False)],
    "array_equal": [
        (lambda: t(V).array_equal(V), lambda: True),
        (lambda: t(V).array_equal(V[1:]), lambda: False),
    ],
    "isin": [
        (lambda: t(I).isin([5, 3]), lambda: np.isin(I, [5, 3])),
        (lambda: t(I).isin(np.arange(40)), lambda: np.isin(I, np.arange(40))),
        (lambda: t(I).isin([3], invert=True), lambda: np.isin(I, [3], invert=True)),
    ],
    "diff": [
        same("diff", A),
        (lambda: t(A).diff(2, 0), lambda: np.diff(A, 2, 0)),
        (lambda: t(A).diff(dim=1, prepend=t(A)), lambda: np.diff(A, axis=1, prepend=A)),
        same("diff", EMPTY),
    ],
    "trapezoid": [
        same("trapezoid", A),
        (lambda: t(V).trapezoid(t(np.sort(W))), lambda: np.trapezoid(V, np.sort(W))),
    ],
    "cumulative_trapezoid": [(lambda: t(V).cumulative_trapezoid(dx=2.0), lambda: np.cumsum(V[1:] + V[:-1]))],
    "slopes": [
        part((lambda: t(A).slopes(), lambda: np.gradient(A)), 0),
        part((lambda: t(A).slopes(), lambda: np.gradient(A)), 1),
        (lambda: t(V).slopes(edge_order=2)[0], lambda: np.gradient(V, edge_order=2)),
        (
            lambda: t(V).slopes([t(np.sort(W))], edge_order=2)[0],
            lambda: np.gradient(V, np.sort(W), edge_order=2),
        ),
    ],
    "std_mean": [
        (lambda: t(A).std_mean(1)[0], lambda: A.std(1, ddof=1)),
        (lambda: t(A).std_mean(1)[1], lambda: A.mean(1)),
    ],
    "cov": [
        same("cov", A),
        same("cov", V),
        (
            lambda: t(A).cov(0, fweights=t(np.array([1, 2, 1, 3])), aweights=t(np.abs(V[:4]))),
            lambda: np.cov(A, ddof=0, fweights=[1, 2, 1, 3], aweights=np.abs(V[:4])),
        ),
    ],
    "corrcoef": [same("corrcoef", A)],
    "dist": [
        (lambda: t(A).dist(t(B)), lambda: np.linalg.norm(A - B)),
        (lambda: t(A).dist(t(B), 1), lambda: np.abs(A - B).sum()),
    ],
    "cdist": [
        (lambda: t(A).cdist(t(B)), lambda: np.linalg.norm(A[:, None] - B, axis=-1)),
        (lambda: t(A).cdist(t(B), 1.0), lambda: np.abs(A[:, None] - B).sum(-1)),
    ],
    "kthvalue": [
        part((lambda: t(A).kthvalue(2), lambda: (np.sort(A)[:, 1], 0)), 0),
        part((lambda: t(A).kthvalue(2, 0, True), lambda: (0, np.argsort(A, 0)[1:2])), 1),
    ],
    "mode": [(lambda: t(COUNTS).mode().values, lambda: mode_of(COUNTS))],
    "msort": [(lambda: t(A).msort(), lambda: np.sort(A, 0))],
    "nanmedian": [
        (lambda: t(HOLES).nanmedian(1), lambda: np.array([3.0, np.nan, 2.0])),
        (lambda: t(HOLES).nanmedian(), lambda: np.nanmedian(HOLES)),
    ],
    "nanquantile": [
        (lambda: t(HOLES).nanquantile(0.3), lambda: np.nanquantile(HOLES, 0.3)),
        (lambda: t(HOLES[::2]).nanquantile([0.1, 0.8], 1), lambda: np.nanquantile(HOLES[::2], [0.1, 0.8], 1)),
    ],
    "renorm": [
        (
            lambda: t(A).renorm(2, 0, 1.0),
            lambda: (
                A
                / np.maximum(
                    np.linalg.norm(A, axis=1, keepdims=True)
                    + 1e-7 * (np.linalg.norm(A, axis=1, keepdims=True) > 1),
                    1.0,
                )
            ),
        )
    ],
    "histc": [
        (lambda: t(V).histc(4, -2, 2), lambda: histogram_of(V, 4, -2, 2)),
        (lambda: t(V).histc(3), lambda: histogram_of(V, 3, V.min(), V.max())),
    ],
    "histogram": [
        part((lambda: t(V).histogram(4, (-2.0, 2.0)), lambda: (histogram_of(V, 4, -2, 2), 0)), 0),
        (
            lambda: t(V).histogram(t(np.array([-1.0, 0.0, 2.0])), density=True)[0],
            lambda: np.histogram(V, [-1.0, 0.0, 2.0], density=True)[0],
        ),
    ],
    "histogramdd": [
        (
            lambda: t(A[:, :2]).histogramdd([2, 3], range=(-2.0, 2.0, -2.0, 2.0))[0],
            lambda: np.histogramdd(A[:, :2], [2, 3], [(-2, 2), (-2, 2)])[0],
        )
    ],
    "unique_consecutive": [
        (lambda: t(RUNS).unique_consecutive(), lambda: np.array([1, 2, 1, 5])),
        (lambda: t(RUNS).unique_consecutive(return_counts=True).counts, lambda: np.array([2, 3, 1, 1])),
        (
            lambda: t(RUNS).unique_consecutive(return_inverse=True).inverse,
            lambda: np.array([0, 0, 1, 1, 1, 2, 3]),
        ),
        (lambda: t(RUNS[:0]).unique_consecutive(), lambda: RUNS[:0]),
    ],
    "nonzero_static": [
        (lambda: t(np.array([0, 4, 0, 5])).nonzero_static(3), lambda: np.array([[1], [3], [-1]]))
    ],
    "atleast_1d": [same("atleast_1d", np.float64(2.0)), same("atleast_1d", A)],
    "atleast_2d": [same("atleast_2d", np.float64(2.0)), same("atleast_2d", V)],
    "atleast_3d": [same("atleast_3d", np.float64(2.0)), same("atleast_3d", V), same("atleast_3d", A)],
    "broadcast_tensors": [
        part((lambda: t(V[:4]).broadcast_tensors(t(A)), lambda: np.broadcast_arrays(V[:4], A)), 0)
    ],
    "sum_to_size": [(lambda: t(C).sum_to_size(1, 4), lambda: C.sum((0, 1))[None])],
    "column_stack": [(lambda: t(V).column_stack(t(W)), lambda: np.column_stack((V, W)))],
    "dstack": [(lambda: t(A).dstack(t(B)), lambda: np.dstack((A, B)))],
    "block_diag": [
        (
            lambda: t(A[:1, :2]).block_diag(t(B[:2, :1])),
            lambda: np.array([[A[0, 0], A[0, 1], 0], [0, 0, B[0, 0]], [0, 0, B[1, 0]]]),
        )
    ],
    "hsplit": [part((lambda: t(A).hsplit(2), lambda: np.hsplit(A, 2)), 1)],
    "vsplit": [part((lambda: t(A).vsplit([1]), lambda: np.vsplit(A, [1])), 1)],
    "dsplit": [part((lambda: t(C).dsplit(2), lambda: np.dsplit(C, 2)), 0)],
    "split_with_sizes": [part((lambda: t(A).split_with_sizes([1, 3], 1), lambda: np.split(A, [1], 1)), 1)],
    "as_strided": [
        (
            lambda: t(V).as_strided((3, 2), (1, 2), 0),
            lambda: np.lib.stride_tricks.as_strided(V, (3, 2), (8, 16)),
        )
    ],
    "vander": [
        (lambda: t(V).vander(), lambda: np.vander(V)),
        (lambda: t(V).vander(3, increasing=True), lambda: np.vander(V, 3, True)),
    ],
    "slice_scatter": [
        (
            lambda: t(A).slice_scatter(t(B[:, :2]), 1, 0, 4, 2),
            lambda: put(A, (slice(None), slice(0, 4, 2)), B[:, :2]),
        )
    ],
    "select_scatter": [(lambda: t(A).select_scatter(t(V[:4]), 0, -1), lambda: put(A, -1, V[:4]))],
    "diagonal_scatter": [
        (lambda: t(A).diagonal_scatter(t(V[:3]), 1), lambda: put(A, (np.arange(3), np.arange(3) + 1), V[:3]))
    ],
    "diagflat": [(lambda: t(V).diagflat(-1), lambda: np.diagflat(V, -1))],
    "unravel_index": [
        part((lambda: t(np.array([3, 7])).unravel_index((2, 4)), lambda: np.unravel_index([3, 7], (2, 4))), 1)
    ],
    "cartesian_prod": [
        (lambda: t(V[:2]).cartesian_prod(t(W[:3])), lambda: np.array(list(itertools.product(V[:2], W[:3]))))
    ],
    "combinations": [
        (lambda: t(V).combinations(3), lambda: np.array(list(itertools.combinations(V, 3)))),
        (
            lambda: t(V).combinations(2, True),
            lambda: np.array(list(itertools.combinations_with_replacement(V, 2))),
        ),
    ],
    "tril_indices": [(lambda: Tensor.tril_indices(3, 4, 1), lambda: np.stack(np.tril_indices(3, 1, 4)))],
    "triu_indices": [(lambda: Tensor.triu_indices(3, 4, -1), lambda: np.stack(np.triu_indices(3, -1, 4)))],
    "new_empty": [(lambda: t(A).new_empty(2, 3).zeros_like(), lambda: np.zeros((2, 3)))],
    "new_full": [(lambda: t(I).new_full((2,), 7), lambda: np.full(2, 7))],
    "new_zeros": [(lambda: t(I).new_zeros(2, 3), lambda: np.zeros((2, 3), int))],
    "new_ones": [(lambda: t(A).new_ones((2,)), lambda: np.ones(2))],
    "gcd": [(lambda: t(I).gcd(18), lambda: np.gcd(I, 18))],
    "lcm": [(lambda: t(I).lcm(t(I[::-1].copy())), lambda: np.lcm(I, I[::-1]))],
    "nextafter": [
        (lambda: t(NUMBERS).nextafter(t(NUMBERS[::-1].copy())), lambda: np.nextafter(NUMBERS, NUMBERS[::-1])),
        (
            lambda: t(np.float32([1, -1, 0])).nextafter(np.float32(3)),
            lambda: np.nextafter(np.float32([1, -1, 0]), np.float32(3)),
        ),
    ],
    "frexp": [
        part((lambda: t(NUMBERS).frexp(), lambda: np.frexp(NUMBERS)), 0),
        part((lambda: t(NUMBERS[:5]).frexp(), lambda: np.frexp(NUMBERS[:5])), 1),
    ],
    "clamp_min": [(lambda: t(A).clamp_min(0.5), lambda: np.maximum(A, 0.5))],
    "clamp_max": [(lambda: t(A).clamp_max(0.5), lambda: np.minimum(A, 0.5))],
    "rsub": [(lambda: t(A).rsub(t(B), alpha=2), lambda: B - 2 * A)],
    "byte": [(lambda: t(np.array([1.5])).byte(), lambda: np.array([1], np.uint8))],
    "char": [(lambda: t(np.array([-1.5])).char(), lambda: np.array([-1], np.int8))],
    "short": [(lambda: t(np.array([-1.5])).short(), lambda: np.array([-1], np.int16))],
    "glu": [(lambda: t(A).glu(1), lambda: A[:, :2] / (1 + np.exp(-A[:, 2:])))],
    "baddbmm": [(lambda: t(C @ C.mT).baddbmm(t(C), t(C.mT.copy()), 0.5, 2), lambda: 2.5 * C @ C.mT)],
    "addbmm": [(lambda: t(np.ones((3, 3))).addbmm(t(C), t(C.mT.copy())), lambda: 1 + (C @ C.mT).sum(0))],
    "addmv": [(lambda: t(np.ones(3)).addmv(t(A), t(V[:4])), lambda: 1 + A @ V[:4])],
    "addr": [(lambda: t(np.ones((5, 5))).addr(t(V), t(W), beta=0), lambda: np.outer(V, W))],
    "index_fill": [
        (lambda: t(A).index_fill(1, t(np.array([0, 2])), 7.0), lambda: put(A, (slice(None), [0, 2]), 7.0))
    ],
    "index_reduce": [
        (
            lambda: t(V).index_reduce(0, t(np.array([1, 1])), t(W[:2]), "amax"),
            lambda: put(V, 1, max(V[1], W[0], W[1])),
        )
    ],
    "put": [
        (lambda: t(A).put(t(np.array([5, 0])), t(V[:2])), lambda: put(A.ravel(), [5, 0], V[:2]).reshape(3, 4))
    ],
    "im2col": [(lambda: t(IMAGE).im2col((2, 3)), lambda: unfolded(IMAGE, (2, 3)))],
    "col2im": [
        (
            lambda: t(unfolded(IMAGE, (2, 3))).col2im((5, 6), (2, 3)),
            lambda: folded(unfolded(IMAGE, (2, 3)), (5, 6), (2, 3), 1, 0),
        )
    ],
    "pixel_shuffle": [
        (
            lambda: t(SHUFFLED).pixel_shuffle(2),
            lambda: SHUFFLED.reshape(2, 2, 2, 2, 2, 3).transpose(0, 1, 4, 2, 5, 3).reshape(2, 2, 4, 6),
        )
    ],
    "pixel_unshuffle": [(lambda: t(SHUFFLED).pixel_shuffle(2).pixel_unshuffle(2), lambda: SHUFFLED)],
    "channel_shuffle": [
        (lambda: t(SHUFFLED).channel_shuffle(2), lambda: SHUFFLED[:, [0, 4, 1, 5, 2, 6, 3, 7]])
    ],
    "grid_sample": [
        (lambda: t(IMAGE).grid_sample(t(GRID), align_corners=True), lambda: sampled(IMAGE, GRID))
    ],
    "affine_grid": [(lambda: t(THETA).affine_grid((2, 1, 3, 4), True), lambda: affine(THETA, 3, 4))],
    "max_unpool1d": [
        (
            lambda: t(np.array([[[4.0, 5.0]]])).max_unpool1d(t(np.array([[[1, 2]]])), 2),
            lambda: np.array([[[0.0, 4, 5, 0]]]),
        )
    ],
    "max_unpool2d": [
        (
            lambda: (
                t(IMAGE)
                .max_pool2d(1, return_indices=True)[0]
                .max_unpool2d(t(IMAGE).max_pool2d(1, return_indices=True)[1], 1)
            ),
            lambda: IMAGE,
        )
    ],
    "max_unpool3d": [
        (
            lambda: t(np.array([[[[[4.0]]]]])).max_unpool3d(t(np.array([[[[[3]]]]])), (1, 2, 2)),
            lambda: np.array([[[[[0.0, 0], [0, 4]]]]]),
        )
    ],
    "adaptive_avg_pool3d": [
        (
            lambda: t(IMAGE).adaptive_avg_pool3d((3, 2, None)),
            lambda: adapted(IMAGE, (3, 2, 6), lambda x, a: x.mean(a)),
        )
    ],
    "adaptive_max_pool3d": [
        (
            lambda: t(IMAGE).adaptive_max_pool3d((3, 2, 4)),
            lambda: adapted(IMAGE, (3, 2, 4), lambda x, a: x.max(a)),
        )
    ],
}
SLICES: list[Case] = [
    (lambda: t(COUNTS[[0, 1, 0, 2, 1]]).unique(dim=0), lambda: slices_of(COUNTS[[0, 1, 0, 2, 1]], 0)),
    (lambda: t(COUNTS[[0, 1, 0]]).unique(dim=0, return_counts=True).counts, lambda: np.array([1, 2])),
    (lambda: t(COUNTS[[0, 1, 0]]).unique(dim=0, return_inverse=True).inverse, lambda: np.array([1, 0, 1])),
]
SPECIAL = (  # tests/tensor/special
    "erfc",
    "erfinv",
    "ndtr",
    "ndtri",
    "log_ndtr",
    "xlog1py",
    "entr",
    "expit",
    "lgamma",
    "digamma",
    "polygamma",
    "mvlgamma",
    "gammainc",
    "gammaincc",
    "i0",
    "i0e",
    "i1",
    "i1e",
)
LINALG = (  # tests/tensor/linalg/test_factors.py
    "logdet",
    "slogdet",
    "matrix_power",
    "matrix_exp",
    "cholesky_solve",
    "cholesky_inverse",
    "pinverse",
)
