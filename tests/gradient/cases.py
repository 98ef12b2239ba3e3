"""Every method of a tensor: how its gradient is checked, or why it has none.

A new method has to be entered here; `test_methods.py` looks.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from morok import Tensor, manual_seed
from tests.gradient.cases_more import MORE, MORE_ALIASES, MORE_WITHOUT
from tests.gradient.check import sample

Case = tuple[Callable[..., Tensor], tuple[Any, ...]]

X = sample(2, 3)
Y = sample(2, 3, seed=1)
POSITIVE = sample(2, 3, signs=False)
SMALL = sample(2, 3, low=0.1, high=0.9)
VECTOR, MATRIX = sample(3, seed=2), sample(3, 4, seed=3)
LONG = sample(41, 2, seed=8)  # a table too long for its gradient to look at every row
CUBE = sample(2, 3, 4, seed=4)
IMAGE = sample(1, 2, 5, 5, seed=5)
SQUARE = sample(3, 3, seed=10) + 3.0 * np.eye(3)
MASK = np.array([[True, False, True], [False, False, True]])
PLACES = np.array([[2, 0, 1], [1, 1, 0]])


def unary(name: str, data: Any = X, *args: Any, **kwargs: Any) -> Case:
    return (lambda x: getattr(x, name)(*args, **kwargs)), (data,)


def holes(name: str) -> Case:
    """A reduction over rows with NaN in them."""
    return (lambda x: getattr(Tensor(MASK).where(float("nan"), x), name)(1)), (X,)


def binary(name: str, a: Any = X, b: Any = Y) -> Case:
    return (lambda x, y: getattr(x, name)(y)), (a, b)


CASES: dict[str, Case | list[Case]] = {
    # arithmetic
    **{name: binary(name) for name in ("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__")},
    **{name: binary(name) for name in ("__truediv__", "__rtruediv__", "add", "sub", "mul", "div")},
    **{name: binary(name) for name in ("__mod__", "__rmod__", "remainder")},
    "__divmod__": ((lambda x, y: divmod(x, y)[1] + divmod(x, y)[0] * 0.0), (X, Y)),  # the first are steps
    **{name: binary(name, POSITIVE) for name in ("__pow__", "pow")},
    "__rpow__": binary("__rpow__", X, POSITIVE),
    **{name: binary(name) for name in ("maximum", "minimum", "atan2")},
    "copysign": ((lambda x: x.copysign(Tensor(Y))), (X,)),
    **{name: unary(name) for name in ("__neg__", "__pos__", "__abs__", "neg", "abs", "square")},
    "clamp": [unary("clamp", X, -0.9, 1.1), unary("clamp", X, max=0.3)],
    "lerp": ((lambda x, y, w: x.lerp(y, w)), (X, Y, SMALL)),
    "where": ((lambda x, y: Tensor(MASK).where(x, y)), (X, Y)),
    "masked_fill": ((lambda x: x.masked_fill(Tensor(MASK), 2.0)), (X,)),
    **{name: unary(name, X, "float64") for name in ("cast",)},
    "double": unary("double"),
    # functions
    **{n: unary(n) for n in ("exp", "exp2", "expm1", "sin", "cos", "tan", "atan", "sinh", "cosh", "tanh")},
    **{n: unary(n) for n in ("asinh", "erf")},
    **{n: unary(n, POSITIVE) for n in ("log", "log2", "log10", "log1p", "sqrt", "rsqrt")},
    **{n: unary(n, SMALL) for n in ("asin", "acos", "atanh")},
    "acosh": unary("acosh", POSITIVE + 1.5),
    "reciprocal": unary("reciprocal"),
    **{n: unary(n) for n in ("relu", "relu6", "leaky_relu", "sigmoid", "logsigmoid", "softplus", "silu")},
    **{n: unary(n) for n in ("quick_gelu", "elu", "mish", "hardsigmoid", "hardswish", "softsign")},
    "gelu": [unary("gelu"), unary("gelu", X, "tanh")],
    # movement
    "reshape": unary("reshape", X, 3, 2),
    "flatten": unary("flatten", CUBE, 1),
    "unflatten": unary("unflatten", X, 1, (3, 1)),
    "squeeze": ((lambda x: x.reshape(2, 1, 3).squeeze(1)), (X,)),
    "unsqueeze": unary("unsqueeze", X, 1),
    "permute": unary("permute", CUBE, 2, 0, 1),
    "transpose": unary("transpose", CUBE, 0, 2),
    "T": ((lambda x: x.T), (X,)),
    "flip": unary("flip", X, 1),
    "expand": unary("expand", X, 4, 2, 3),
    "broadcast_to": ((lambda x: x.reshape(2, 1, 3).broadcast_to(2, 4, 3)), (X,)),
    "repeat": unary("repeat", X, 2, 3),
    "repeat_interleave": unary("repeat_interleave", X, 2, 1),
    "shrink": unary("shrink", X, [(0, 1), (1, 3)]),
    "narrow": unary("narrow", X, 1, 1, 2),
    "pad": [unary("pad", X, [(1, 0), (0, 2)]), unary("pad", X, [(1, 0), (0, 2)], 3.0)],
    "cat": ((lambda x, y: x.cat(y, dim=1)), (X, Y)),
    "stack": ((lambda x, y: x.stack(y, dim=1)), (X, Y)),
    "split": ((lambda x: x.split(2, 1)[0] * x.split(2, 1)[0]), (X,)),
    "chunk": ((lambda x: x.chunk(2, 0)[1] * 2), (X,)),
    "unbind": ((lambda x: x.unbind(1)[2] * 2), (X,)),
    "roll": unary("roll", X, 1, 1),
    "contiguous": unary("contiguous"),
    # reduction
    **{n: [unary(n), unary(n, CUBE, 1), unary(n, CUBE, (0, 2), True)] for n in ("sum", "mean", "max", "min")},
    "prod": [unary("prod"), unary("prod", CUBE, 1)],
    **{n: [unary(n), unary(n, CUBE, 1), unary(n, X, 1, correction=0)] for n in ("var", "std")},
    "norm": [unary("norm"), unary("norm", X, 1, 1), unary("norm", X, 3, 0), unary("norm", X, float("inf"))],
    **{n: unary(n, X, 1) for n in ("cumsum", "cumprod", "cummax", "cummin")},
    **{n: unary(n, X, 1) for n in ("softmax", "log_softmax", "logsumexp")},
    # normalisation and losses
    "layer_norm": ((lambda x, w, b: x.layer_norm(-1, w, b)), (X, VECTOR, VECTOR + 1)),
    "rms_norm": ((lambda x, w: x.rms_norm(-1, w)), (X, VECTOR)),
    "batch_norm": ((lambda x, m, v, w: x.batch_norm(m, v, w, m)), (CUBE, VECTOR, abs(VECTOR), VECTOR)),
    "cross_entropy": [
        ((lambda x: x.cross_entropy(Tensor([2, 0]))), (X,)),
        ((lambda x: x.cross_entropy(Tensor([2, 0]), "sum", label_smoothing=0.1)), (X,)),
        ((lambda x: x.cross_entropy(Tensor([2, 0]), ignore_index=0)), (X,)),
    ],
    "nll_loss": [
        ((lambda x: x.nll_loss(Tensor([2, 0]))), (X,)),
        ((lambda x: x.nll_loss(Tensor([2, -100]), "sum")), (X,)),
    ],
    "mse_loss": binary("mse_loss"),
    "binary_cross_entropy_with_logits": (
        (lambda x: x.binary_cross_entropy_with_logits(Tensor(MASK * 1.0))),
        (X,),
    ),
    "tril": unary("tril"),
    "triu": unary("triu", X, 1),
    "dropout": ((lambda x: _seeded(x).dropout(0.5)), (CUBE,)),
    # index
    "__getitem__": [
        ((lambda x: x[1]), (CUBE,)),
        ((lambda x: x[:, ::2, 3:0:-2]), (CUBE,)),
        ((lambda x: x[..., None, 1]), (CUBE,)),
        ((lambda x: x[PLACES[0], 1]), (MATRIX,)),
    ],
    "__setitem__": ((lambda x, y: _with_row(x, y)), (X, VECTOR)),
    "assign": ((lambda x, y: Tensor.empty(2, 3, dtype="float64").assign(x * y)), (X, Y)),
    "gather": ((lambda x: x.gather(1, Tensor(PLACES))), (X,)),
    "index_select": ((lambda x: x.index_select(1, Tensor([2, 0, 2]))), (X,)),
    "take": ((lambda x: x.take(Tensor([5, 0, 5]))), (X,)),
    "take_along_dim": ((lambda x: x.take_along_dim(Tensor(PLACES), 1)), (X,)),
    "embedding": [
        ((lambda x: x.embedding(Tensor(PLACES))), (MATRIX,)),
        ((lambda x: x.embedding(Tensor(PLACES) * 20)), (LONG,)),
        ((lambda x: x[Tensor(PLACES) * 20, 1]), (LONG,)),
    ],
    "scatter": [
        ((lambda x, y: x.scatter(1, Tensor(PLACES), y)), (X, Y)),
        ((lambda x, y: x.scatter(1, Tensor(PLACES), y, "multiply")), (X, Y)),
    ],
    "scatter_add": ((lambda x, y: x.scatter_add(0, Tensor(PLACES[:, :2] % 2), y)), (X, Y)),
    "scatter_reduce": [
        ((lambda x, y, how=how, own=own: x.scatter_reduce(1, Tensor(PLACES), y, how, own)), (X, Y))
        for how in ("sum", "prod", "mean", "amax", "amin")
        for own in (True, False)
    ],
    "index_add": ((lambda x, y: x.index_add(1, Tensor([2, 0, 2]), y, 0.5)), (X, Y)),
    "index_copy": ((lambda x, y: x.index_copy(1, Tensor([2, 0, 2]), y)), (X, Y)),
    "index_put": ((lambda x, y: x.index_put((Tensor(PLACES[0]),), y, True)), (MATRIX, MATRIX * 2)),
    "sort": ((lambda x: x.sort(1).values), (CUBE,)),
    "topk": ((lambda x: x.topk(2, 0).values), (MATRIX,)),
    "median": [unary("median"), unary("median", CUBE, (0, 2))],
    "quantile": [unary("quantile", X, 0.3), unary("quantile", CUBE, [0.1, 0.9], 1, True)],
    "masked_select": [
        ((lambda x: x.masked_select(Tensor(MASK), 4)), (X,)),
        ((lambda x: x.masked_select(Tensor(MASK)) * x[Tensor(MASK)]), (X,)),
    ],
    "unique": unary("unique", X),
    "masked_scatter": ((lambda x, y: x.masked_scatter(Tensor(MASK), y)), (X, Y)),
    # operators by name and functions of two numbers
    **{name: binary(name) for name in ("fmod", "fmax", "fmin", "hypot", "logaddexp", "logaddexp2")},
    "xlogy": binary("xlogy", X, POSITIVE),
    "ldexp": binary("ldexp"),
    "float_power": binary("float_power", POSITIVE),
    "addcmul": ((lambda x, y, z: x.addcmul(y, z, 0.5)), (X, Y, POSITIVE)),
    "addcdiv": ((lambda x, y, z: x.addcdiv(y, z, 0.5)), (X, Y, POSITIVE)),
    **{n: unary(n) for n in ("frac", "nan_to_num", "deg2rad", "rad2deg", "sinc", "positive")},
    "logit": [unary("logit", abs(SMALL)), unary("logit", abs(SMALL), 0.2)],
    # activation functions
    **{n: unary(n) for n in ("hardtanh", "celu", "selu", "softshrink", "hardshrink", "tanhshrink")},
    "prelu": ((lambda x, w: x.prelu(w)), (X, VECTOR)),
    "threshold": unary("threshold", X, 0.3, 2.0),
    # reductions without NaN
    **{n: [unary(n), holes(n)] for n in ("nansum", "nanprod", "nanmean", "nanvar", "nanmax", "nanmin")},
    "logcumsumexp": unary("logcumsumexp", X, 1),
    "aminmax": ((lambda x: x.aminmax(1)[0] * x.aminmax(1)[1]), (X,)),
    "var_mean": ((lambda x: x.var_mean(1)[0] * x.var_mean(1)[1]), (X,)),
    # arrangement
    **{n: unary(n, CUBE) for n in ("ravel", "fliplr", "flipud", "rot90", "diagonal", "trace", "clone")},
    "swapaxes": unary("swapaxes", CUBE, 0, 2),
    "movedim": unary("movedim", CUBE, (0, 1), (2, 0)),
    "mT": ((lambda x: x.mT), (CUBE,)),
    "expand_as": ((lambda x: x.expand_as(Tensor.ones(4, 2, 3))), (X,)),
    "reshape_as": ((lambda x: x.reshape_as(Tensor.ones(3, 2))), (X,)),
    "select": unary("select", X, 1, -1),
    "tensor_split": ((lambda x: x.tensor_split(2, 1)[1] * 2), (X,)),
    "hstack": binary("hstack"),
    "vstack": binary("vstack"),
    "meshgrid": ((lambda x, y: Tensor.meshgrid(x, y)[0] * Tensor.meshgrid(x, y)[1]), (VECTOR, VECTOR + 1)),
    "diag_embed": unary("diag_embed", X, 1),
    "diag": [unary("diag", VECTOR), unary("diag", MATRIX)],
    "rearrange": unary("rearrange", CUBE, "a b (c d) -> (a d) c b", c=2),
    # contractions
    "einsum": [
        ((lambda x, y: x.einsum("ij,jk->ki", y)), (X, MATRIX)),
        ((lambda x, y, z: Tensor.einsum("...i,ij,...i->...j", x, y, z)), (X, MATRIX, Y)),
        ((lambda x: x.einsum("iij->j")), (sample(3, 3, 2),)),
    ],
    "tensordot": ((lambda x, y: x.tensordot(y, ((2, 0), (1, 0)))), (CUBE, sample(2, 4, 2, seed=9))),
    "dot": binary("dot", CUBE, CUBE.transpose(0, 2, 1)),
    "vdot": binary("vdot"),
    "inner": binary("inner"),
    "kron": binary("kron", X, MATRIX),
    "cross": binary("cross"),
    "mm": binary("mm", X, MATRIX),
    "mv": binary("mv", X, VECTOR),
    "bmm": binary("bmm", CUBE, CUBE.transpose(0, 2, 1)),
    "addmm": ((lambda x, y, z: x.addmm(y, z, 0.5, 2.0)), (sample(2, 4), X, MATRIX)),
    # windows
    "unfold": unary("unfold", IMAGE, 2, 3, 1),
    "conv1d": ((lambda x, w: x.conv1d(w, stride=2)), (CUBE, sample(2, 3, 2, seed=6))),
    "conv3d": ((lambda x, w: x.conv3d(w)), (sample(1, 1, 2, 3, 3), sample(2, 1, 2, 2, 2, seed=6))),
    "conv_transpose": ((lambda x, w: x.conv_transpose(w, None, 2, 1)), (CUBE, sample(3, 2, 3, seed=6))),
    "conv_transpose1d": ((lambda x, w: x.conv_transpose1d(w, stride=2)), (CUBE, sample(3, 2, 2, seed=6))),
    "conv_transpose2d": ((lambda x, w: x.conv_transpose2d(w)), (IMAGE, sample(2, 1, 2, 2, seed=6))),
    "conv_transpose3d": (
        (lambda x, w: x.conv_transpose3d(w)), (sample(1, 1, 2, 2, 2), sample(1, 1, 2, 1, 2, seed=6))
    ),
    **{n: unary(n, CUBE, 2) for n in ("max_pool1d", "avg_pool1d")},
    **{n: unary(n, CUBE, 3) for n in ("adaptive_avg_pool1d", "adaptive_max_pool1d")},
    **{n: unary(n, sample(1, 1, 2, 4, 4), 2) for n in ("max_pool3d", "avg_pool3d")},
    **{n: unary(n, IMAGE, (2, 3)) for n in ("adaptive_avg_pool2d", "adaptive_max_pool2d")},
    "interpolate": [unary("interpolate", CUBE, 7), unary("interpolate", IMAGE, (3, 8), None, "bilinear")],
    # systems of equations
    "solve_triangular": [
        ((lambda x, y: x.solve_triangular(y)), (SQUARE, MATRIX)),
        ((lambda x, y: x.solve_triangular(y, upper=True, left=False)), (SQUARE, MATRIX.T)),
    ],
    "cholesky": ((lambda x: (x @ x.mT).cholesky()), (SQUARE,)),
    "qr": [
        ((lambda x: x.qr().Q @ x.qr().R * x + x.qr().R), (SQUARE,)),
        ((lambda x: x.qr().Q.cat(x.qr().R, dim=0)), (sample(4, 2),)),
        ((lambda x: x.qr().Q.cat(x.qr().R, dim=1)), (sample(2, 4),)),
    ],
    "svd": ((lambda x: (lambda u, s, vh: u * u @ s + vh.abs().sum())(*x.svd())), (sample(3, 2),)),
    "solve": [binary("solve", SQUARE, MATRIX), binary("solve", SQUARE, MATRIX[:, 0])],
    "inv": unary("inv", SQUARE),
    "det": unary("det", SQUARE),
    **{n: binary(n, X, MATRIX) for n in ("matmul", "__matmul__")},
    "__rmatmul__": binary("__rmatmul__", MATRIX, X),
    "outer": binary("outer", VECTOR, VECTOR + 1),
    "linear": ((lambda x, w, b: x.linear(w, b)), (X, MATRIX.T, MATRIX[0])),
    "scaled_dot_product_attention": (
        (lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=True)),
        (CUBE, CUBE[::-1] + 0.1, CUBE * 0.7),
    ),
    "conv2d": [
        ((lambda x, w, b: x.conv2d(w, b, padding=1)), (IMAGE, sample(3, 2, 3, 3, seed=6), VECTOR)),
        ((lambda x, w: x.conv2d(w, stride=2, dilation=2, groups=2)), (IMAGE, sample(4, 1, 2, 2, seed=6))),
    ],
    "max_pool2d": [unary("max_pool2d", IMAGE), unary("max_pool2d", IMAGE, 3, 1, 1)],
    "avg_pool2d": [unary("avg_pool2d", IMAGE), unary("avg_pool2d", IMAGE, 3, 2, 1, False)],
    **MORE,
}  # fmt: skip


def _seeded(x: Tensor) -> Tensor:
    manual_seed(1)
    return x


def _with_row(x: Tensor, row: Tensor) -> Tensor:
    y = x * 2
    y[1] = row * row
    y[0, 1:] = row[:2]
    return y * x


# The same function under another name.
ALIASES = {
    "view", "tile", "concat", "amax", "amin", "clip", "astype", "swish", "plan", "take_along_axis",
    "subtract", "multiply", "divide", "true_divide", "negative", "absolute", "power", "not_equal", "equal",
    "less",
    "less_equal", "greater", "greater_equal", "arcsin", "arccos", "arctan", "arctan2", "arcsinh", "arccosh",
    "arctanh", "fix", "rint", "sgn", "mod", "invert", "left_shift", "right_shift", "degrees", "radians",
    "log_sigmoid", "moveaxis", "swapdims", "view_as", "inverse", *MORE_ALIASES,
}  # fmt: skip

# Results that are whole numbers, truths, positions or text; creation; bookkeeping.
NO_GRADIENT = {
    **MORE_WITHOUT,
    "steps": {"floor", "ceil", "trunc", "round", "__round__", "sign", "floor_divide",
              "__floordiv__", "__rfloordiv__", "heaviside"},
    "meshes": {"shard", "unshard", "placement"},  # the first two have one: tests/mesh
    "truths": {"__eq__", "__ne__", "__lt__", "__gt__", "__le__", "__ge__", "eq", "ne", "isnan", "isinf",
               "isfinite", "signbit", "any", "all", "logical_not", "__bool__", "lt", "le", "gt", "ge",
               "isclose",                "logical_and", "logical_or", "logical_xor", "isposinf", "isneginf"},
    "bits": {"__and__", "__rand__", "__or__", "__ror__", "__xor__", "__rxor__", "__lshift__", "__rlshift__",
             "__rshift__", "__rrshift__", "__invert__", "bitcast", "bitwise_and", "bitwise_or", "bitwise_xor",
             "bitwise_not", "bitwise_left_shift", "bitwise_right_shift"},
    "positions": {"argmax", "argmin", "count_nonzero", "one_hot", "__index__", "__int__", "argsort",
                  "searchsorted", "bucketize", "nonzero", "bincount", "argwhere"},
    "creation": {"from_numpy", "from_dlpack", "from_file", "empty", "full", "zeros", "ones", "full_like",
                 "zeros_like", "ones_like", "empty_like", "from_buffer", "from_url", "logspace", "arange",
                 "linspace", "eye", "tri", "__init__"},
    "random": {"manual_seed", "get_rng_state", "set_rng_state",
               "rand", "randn", "rand_like", "randn_like", "uniform", "normal", "randint",
               "bernoulli", "permutation", "randperm", "multinomial", "randint_like",
               # scales and shifts have gradients (tests/nn/test_random.py); the draws themselves have none
               "exponential", "gumbel", "truncated_normal", "standard_gamma", "dirichlet", "poisson",
               "binomial", "categorical"},
    "in place, by way of assign": {
        "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__",
        "__imatmul__", "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__",
    },
    "narrower types, by way of cast": {"float", "half", "bfloat16", "int", "long", "bool", "to"},
    "values": {"realize", "prepare", "numpy", "item", "tolist", "__array__", "__dlpack__", "__float__",
               "__iter__", "is_realized"},
    "bookkeeping": {"numel", "size", "nbytes", "shape", "dtype", "ndim", "device", "uop", "grad",
                    "requires_grad", "is_leaf",
                    "requires_grad_", "zero_grad", "backward", "gradient", "detach"},
}  # fmt: skip
