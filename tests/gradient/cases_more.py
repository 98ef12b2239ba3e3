"""How gradients are checked of the functions that few programs have: see `cases.py`."""

from typing import Any

import numpy as np

from morok import Tensor
from tests.gradient.check import sample
from tests.tensor.interface.table_in_place import FACTS, IN_PLACE

X, Y = sample(2, 3), sample(2, 3, seed=1)
POSITIVE = sample(2, 3, signs=False)
SMALL = sample(2, 3, low=0.1, high=0.9)
VECTOR, MATRIX = sample(3, seed=2), sample(3, 4, seed=3)
CUBE, OTHER = sample(2, 3, 4, seed=4), sample(2, 4, 3, seed=6)
IMAGE = sample(1, 4, 4, 4, seed=5)
SOLID = sample(1, 2, 4, 4, 4, seed=7)
SQUARE = sample(3, 3, seed=10) + 3.0 * np.eye(3)
LOWER = np.tril(SQUARE)
GRID = sample(1, 3, 3, 2, low=0.05, high=0.8, seed=11)
THETA = sample(1, 2, 3, seed=12)
ROWS = np.array([1, 0])


def _of(name: str, *args: Any, **kwargs: Any) -> Any:
    return lambda x: getattr(x, name)(*args, **kwargs)


def _with(name: str, **kwargs: Any) -> Any:
    return lambda x, *others: getattr(x, name)(*others, **kwargs)


def _joined(name: str, *args: Any) -> Any:
    """All results of a function that has several."""
    return lambda x: Tensor.cat(
        *[part.flatten() * (n + 1.5) for n, part in enumerate(getattr(x, name)(*args))]
    )


def _unpool(name: str) -> Any:
    axes = int(name[-2])

    def function(x: Tensor) -> Tensor:
        values, places = getattr(x, f"max_pool{axes}d")(2, return_indices=True)
        return getattr(values, name)(places, 2)

    return function


MORE: dict[str, Any] = {
    # arithmetic
    "rsub": (_with("rsub", alpha=0.5), (X, Y)),
    "clamp_max": (_of("clamp_max", 0.3), (X,)),
    "clamp_min": (_of("clamp_min", 0.3), (X,)),
    "xlog1py": (_with("xlog1py"), (X, POSITIVE)),
    "dist": [(_with("dist"), (X, Y)), (_with("dist", p=3), (X, Y))],
    "cdist": [(_with("cdist"), (X, sample(4, 3, seed=9))), (_with("cdist", p=1), (X, sample(4, 3, seed=9)))],
    "glu": (_of("glu"), (CUBE,)),
    "renorm": (_of("renorm", 2, 0, 0.7), (X,)),
    "frexp": ((lambda x: x.frexp()[0]), (X,)),
    # functions
    **{n: (_of(n), (X,)) for n in ("erfc", "expit", "i0", "i0e", "i1", "i1e", "ndtr", "log_ndtr")},
    **{n: (_of(n), (POSITIVE,)) for n in ("digamma", "lgamma", "entr")},
    "erfinv": (_of("erfinv"), (SMALL,)),
    "ndtri": (_of("ndtri"), (np.abs(SMALL),)),
    "polygamma": (_of("polygamma", 2), (POSITIVE,)),
    "mvlgamma": (_of("mvlgamma", 2), (POSITIVE + 1.0,)),
    "gammainc": ((lambda x: Tensor(POSITIVE).gammainc(x)), (POSITIVE + 0.3,)),
    "gammaincc": ((lambda x: Tensor(POSITIVE).gammaincc(x)), (POSITIVE + 0.3,)),
    # shapes
    "as_strided": (_of("as_strided", (2, 2), (1, 2), 1), (X,)),
    **{n: (_of(n), (VECTOR,)) for n in ("atleast_1d", "atleast_2d", "atleast_3d")},
    "block_diag": (_with("block_diag"), (X, MATRIX)),
    "broadcast_tensors": ((lambda x, y: x.broadcast_tensors(y)[0] * x.broadcast_tensors(y)[1]), (X, VECTOR)),
    "cartesian_prod": (_with("cartesian_prod"), (VECTOR, VECTOR + 1)),
    "combinations": (_of("combinations"), (VECTOR,)),
    "channel_shuffle": (_of("channel_shuffle", 2), (IMAGE,)),
    "column_stack": (_with("column_stack"), (X, Y)),
    "dstack": (_with("dstack"), (X, Y)),
    "diagflat": (_of("diagflat", 1), (VECTOR,)),
    "dsplit": (_joined("dsplit", 2), (CUBE,)),
    "hsplit": (_joined("hsplit", 3), (X,)),
    "vsplit": (_joined("vsplit", 2), (X,)),
    "split_with_sizes": (_joined("split_with_sizes", [1, 2], 1), (X,)),
    "pixel_shuffle": (_of("pixel_shuffle", 2), (IMAGE,)),
    "pixel_unshuffle": (_of("pixel_unshuffle", 2), (IMAGE,)),
    "im2col": (_of("im2col", 2, padding=1, stride=2), (IMAGE,)),
    "col2im": (_of("col2im", (3, 3), 2), (sample(1, 8, 4, seed=13),)),
    "vander": (_of("vander", 4), (VECTOR,)),
    "sum_to_size": (_of("sum_to_size", 1, 3), (X,)),
    # parts
    "diagonal_scatter": (_with("diagonal_scatter"), (SQUARE, VECTOR)),
    "select_scatter": ((lambda x, y: x.select_scatter(y, 0, 1)), (X, VECTOR)),
    "slice_scatter": ((lambda x, y: x.slice_scatter(y, 1, 0, 3, 2)), (X, sample(2, 2, seed=14))),
    "index_fill": ((lambda x: x.index_fill(1, Tensor(ROWS), 2.0)), (X,)),
    "index_reduce": ((lambda x, y: x.index_reduce(0, Tensor(ROWS), y, "mean")), (X, Y)),
    "put": ((lambda x, y: x.put(Tensor(np.array([4, 1])), y, accumulate=True)), (X, VECTOR[:2])),
    # statistics
    "corrcoef": (_of("corrcoef"), (CUBE[0],)),
    "cov": (_of("cov"), (CUBE[0],)),
    "diff": (_of("diff", 2), (CUBE,)),
    "trapezoid": (_of("trapezoid", dx=0.5), (X,)),
    "cumulative_trapezoid": (_of("cumulative_trapezoid"), (X,)),
    "slopes": (_joined("slopes"), (CUBE[0],)),
    "std_mean": (_joined("std_mean", 1), (X,)),
    "kthvalue": ((lambda x: x.kthvalue(2).values), (X,)),
    "mode": ((lambda x: x.mode().values), (X,)),
    "msort": (_of("msort"), (X,)),
    "nanmedian": (_of("nanmedian", 1), (X,)),
    "nanquantile": (_of("nanquantile", 0.4, 1), (X,)),
    # products and systems of equations
    "addbmm": (_with("addbmm", beta=0.5), (sample(3, 3, seed=15), CUBE, OTHER)),
    "baddbmm": (_with("baddbmm", alpha=2), (sample(2, 3, 3, seed=15), CUBE, OTHER)),
    "addmv": (_with("addmv"), (VECTOR, SQUARE, VECTOR + 1)),
    "addr": (_with("addr"), (SQUARE, VECTOR, VECTOR + 1)),
    "cholesky_inverse": (_of("cholesky_inverse"), (LOWER,)),
    "cholesky_solve": (_with("cholesky_solve"), (MATRIX, LOWER)),
    "logdet": ((lambda x: (x @ x.mT).logdet()), (SQUARE,)),
    "slogdet": ((lambda x: x.slogdet()[1]), (SQUARE,)),
    "matrix_exp": (_of("matrix_exp"), (SQUARE / 4,)),
    "matrix_power": [(_of("matrix_power", 3), (SQUARE,)), (_of("matrix_power", -2), (SQUARE,))],
    "pinverse": (_of("pinverse"), (sample(4, 2, seed=16),)),
    # images
    "affine_grid": (_of("affine_grid", (1, 2, 3, 4)), (THETA,)),
    "grid_sample": [
        (_with("grid_sample", mode=mode, align_corners=True), (IMAGE, GRID))
        for mode in ("bilinear", "bicubic")
    ],
    "adaptive_avg_pool3d": (_of("adaptive_avg_pool3d", (2, 3, 2)), (SOLID,)),
    "adaptive_max_pool3d": (_of("adaptive_max_pool3d", 2), (SOLID,)),
    "max_unpool1d": (_unpool("max_unpool1d"), (CUBE,)),
    "max_unpool2d": (_unpool("max_unpool2d"), (IMAGE,)),
    "max_unpool3d": (_unpool("max_unpool3d"), (SOLID,)),
}  # fmt: skip

MORE_ALIASES = {"gammaln", "igamma", "igammac", "multigammaln"}

MORE_WITHOUT: dict[str, set[str]] = {
    "assignments, by way of what they assign": {row[0] for row in IN_PLACE},
    "facts, and methods under a second name": set(FACTS),
    "truths of two tensors": {"allclose", "array_equal", "isin"},
    "counts and places": {
        "histc", "histogram", "histogramdd", "nonzero_static", "unique_consecutive", "unravel_index",
    },
    "whole numbers": {"gcd", "lcm", "nextafter"},
    "new tensors": {"new_empty", "new_full", "new_ones", "new_zeros", "tril_indices", "triu_indices"},
    "whole types, by way of cast": {"byte", "char", "short"},
}  # fmt: skip
