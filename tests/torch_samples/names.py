"""Which function of morok is meant by a name of torch, and where its arguments come in another order.

Most are methods of a tensor, functions of `morok.linalg`, `special`, `fft`, `signal`, or of
`morok.nn.functional`, under the same name and with the same arguments. Where NumPy and torch differ, morok
goes with NumPy; the differences are spelled out here, one function each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import morok
from morok import Tensor

Function = Callable[..., Any]

# Values are drawn: only shapes and types can be compared.
RANDOM = frozenset((
    "bernoulli", "empty", "empty_like", "new_empty", "multinomial", "normal", "normal.number_mean",
    "rand_like", "randint", "randint_like", "randn", "randn_like", "nn.functional.alpha_dropout",
    "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
    "nn.functional.feature_alpha_dropout.with_train", "nn.functional.feature_alpha_dropout.without_train",
    "nn.functional.rrelu", "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
))  # fmt: skip
# Gradients of ties and of the ends of intervals are a matter of choice.
UNDEFINED = frozenset((
    "linalg.pinv.hermitian",  # the samples are not symmetric
    "quantile",  # which part of the elements is wanted is a number here, and has no gradient
    "nextafter",  # a step from float to float
    "nn.functional.max_unpool1d", "nn.functional.max_unpool2d", "nn.functional.max_unpool3d",  # equal places
))  # fmt: skip
# Random where a probability is given.
DROPS = frozenset(
    ("nn.functional.multi_head_attention_forward", "nn.functional.scaled_dot_product_attention")
)
# torch's slopes hold for logarithms that are normalised: they are compared as slopes of what these came from.
NORMALISED = frozenset(("nn.functional.ctc_loss",))
# One triangle is looked at: torch gives a gradient to the other one, too.
TRIANGULAR = frozenset(("cholesky_inverse", "cholesky_solve"))
# The matrix is symmetric: what of the gradient goes to which half is a matter of choice.
SYMMETRIC = frozenset(("linalg.eigh", "linalg.eigvalsh", "linalg.pinv.hermitian", "linalg.cholesky"))


def _lookup(root: Any, path: str) -> Function | None:
    for part in path.split("."):
        root = getattr(root, part, None)
        if root is None:
            return None
    return root if callable(root) else None


def function_of(name: str) -> Function | None:
    """morok's function for an operator of torch; None if there is none."""
    if name in ADAPTED:
        return ADAPTED[name]
    for plain in (name, name.rpartition(".")[0]):
        if not plain:
            continue
        if plain in ADAPTED:
            return ADAPTED[plain]
        space, _, last = plain.rpartition(".")
        if space == "nn.functional":
            from morok.nn import functional

            found = getattr(functional, last, None)
        elif space in ("linalg", "special", "fft", "signal.windows"):
            found = _lookup(
                getattr(morok, space.split(".")[0], None), ".".join([*space.split(".")[1:], last])
            )
        elif not space:
            found = _lookup(Tensor, last)
        else:
            found = None
        if found is not None:
            return found
    return None


ADAPTED: dict[str, Function] = {}


def adapted(*names: str) -> Callable[[Function], Function]:
    def enter(function: Function) -> Function:
        for name in names:
            ADAPTED[name] = function
        return function

    return enter


# --- attributes and operators

ADAPTED["T"] = lambda x: x.T
ADAPTED["mT"] = lambda x: x.mT
ADAPTED["t"] = lambda x: x.T
for _name in ("add", "and", "mul", "or", "sub", "xor", "mod", "pow", "matmul"):
    ADAPTED[f"__r{_name}__"] = partial(lambda n, x, y: getattr(x, f"__r{n}__")(y), _name)
ADAPTED["__rdiv__"] = lambda x, y: y / x
ADAPTED["__getitem__"] = lambda x, key: x[key]
ADAPTED["where"] = lambda x, condition, other: condition.where(x, other)
for _name in ("var", "std", "var_mean", "std_mean"):  # a truth as first argument is no axis here
    ADAPTED[f"{_name}.unbiased"] = partial(lambda n, x, u: getattr(x, n)(unbiased=u), _name)
ADAPTED["flip"] = lambda x, dims: x.flip(tuple(dims))
ADAPTED["arange"] = lambda start, end=None, step=1, **how: Tensor.arange(start, end, step, **how)
ADAPTED["scalar_tensor"] = lambda value, dtype=None: Tensor(value, dtype=dtype or "float32")
ADAPTED["item"] = lambda x: x.item()


# --- lists of tensors come as one argument


def _listed(name: str) -> Function:
    return lambda parts, *args, **kwargs: getattr(Tensor, name)(*parts, *args, **kwargs)


for _name in (
    "hstack",
    "vstack",
    "dstack",
    "column_stack",
    "block_diag",
    "broadcast_tensors",
    "cartesian_prod",
):
    if hasattr(Tensor, _name):
        ADAPTED[_name] = lambda *p, _n=_name: getattr(Tensor, _n)(
            *(p[0] if isinstance(p[0], list | tuple) else p)
        )


@adapted("cat", "stack")
def _joined(parts: Any, dim: int = 0) -> Any:
    """torch leaves out tensors of one axis without elements, whatever the others' axes are."""
    joined = [p for p in parts if p.shape != (0,)] or parts[:1]
    return joined[0].cat(*joined[1:], dim=dim)


ADAPTED["stack"] = lambda parts, dim=0: parts[0].stack(*parts[1:], dim=dim)
ADAPTED["einsum"] = lambda operands, equation: Tensor.einsum(equation, *operands)


# --- extremes: torch's max along an axis has the positions with it


def _extreme(name: str) -> Function:
    def both(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if dim is None:
            return getattr(x, name)()
        if isinstance(dim, Tensor):
            return getattr(x, f"{name}imum")(dim)
        at = getattr(x, f"arg{name}")(dim, keepdim=True)
        values = x.gather(dim, at) if x.ndim else x
        return (values, at) if keepdim or not x.ndim else (values.squeeze(dim), at.squeeze(dim))

    return both


ADAPTED["max"], ADAPTED["min"] = _extreme("max"), _extreme("min")


def _running(name: str, **how: Any) -> Function:
    """torch keeps a scalar a scalar, NumPy makes one element of it."""

    def run(x: Any, dim: Any = 0, **kwargs: Any) -> Any:
        found = getattr(x, name)(dim, **how, **kwargs)
        if x.ndim:
            return found
        return tuple(part.reshape(()) for part in found) if isinstance(found, tuple) else found.reshape(())

    return run


for _name in ("cumsum", "cumprod", "logcumsumexp"):
    ADAPTED[_name] = _running(_name)
for _name in ("cummax", "cummin"):
    ADAPTED[_name] = _running(_name, return_indices=True)
ADAPTED["equal"] = lambda x, y: x.array_equal(y)
ADAPTED["gradient"] = lambda x, **how: x.slopes(**how)
ADAPTED["slice"] = lambda x, dim=0, start=None, end=None, step=1: x[
    (slice(None),) * dim + (slice(start, end, step),)
]
ADAPTED["constant_pad_nd"] = lambda x, pad, value=0: x.pad(list(pad), value)
ADAPTED["linspace"] = lambda start, end, steps, **how: Tensor.linspace(
    _number(start), _number(end), steps, **how
)
ADAPTED["logspace"] = lambda start, end, steps, base=10.0, **how: Tensor.logspace(
    _number(start), _number(end), steps, _number(base), **how
)


def _number(x: Any) -> Any:
    return x.item() if isinstance(x, Tensor) else x


@adapted("to")
def _to(x: Any, *args: Any, **kwargs: Any) -> Any:
    """torch's `to` takes a device, a type, or a tensor to be like."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            return x.cast(value.dtype)
        if not isinstance(value, bool | str | None.__class__):
            return x.cast(value)
    return x


def _lower_middle(x: Any, dim: Any, keepdim: bool, count: Any) -> Any:
    """torch's median is the lower one of two in the middle, with its position."""
    at = ((count - 1) // 2).maximum(0)
    values, order = x.sort(dim)
    return values.take_along_dim(at, dim), order.take_along_dim(at, dim)


@adapted("median", "nanmedian")
def _median(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return _median_of(x, dim, keepdim, False)


@adapted("nanmedian")
def _nanmedian(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return _median_of(x, dim, keepdim, True)


def _median_of(x: Any, dim: Any, keepdim: bool, without: bool) -> Any:
    if dim is None:
        return _median_of(x.reshape(-1), 0, False, without)[0] if x.numel() else x.mean()
    if not x.ndim:
        return x, x.zeros_like("int64")
    whole = x.isfinite() | x.isinf()
    counted = whole if without else x.isnan().any(dim, keepdim=True).where(False, whole)
    count = counted.sum(dim, keepdim=True)
    values, order = _lower_middle(x, dim, True, count)
    if not without:  # the first NaN, if there is one
        nan = x.isnan().any(dim, keepdim=True)
        first = x.isnan().argmax(dim, keepdim=True)
        values, order = nan.where(float("nan"), values), nan.where(first, order)
    return (values, order) if keepdim else (values.squeeze(dim), order.squeeze(dim))


# --- linear algebra


@adapted("linalg.solve")
def _solve(a: Any, b: Any, left: bool = True) -> Any:
    """torch takes b of A's shape without its last size for vectors; NumPy only one axis."""
    vector = b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])
    if not left:
        return _solve(a.mT, b if vector else b.mT) if vector else _solve(a.mT, b.mT).mT
    return a.solve(b.unsqueeze(-1)).squeeze(-1) if vector and b.ndim > 1 else a.solve(b)


ADAPTED["linalg.pinv.singular"] = lambda a, b: morok.linalg.pinv(a @ b.mT)
ADAPTED["linalg.vander"] = lambda x, N=None: (x if x.ndim else x.reshape(1)).vander(N, increasing=True)
ADAPTED["linalg.qr"] = lambda x, mode="reduced": x.qr(mode)


@adapted("linalg.svd")
def _svd(x: Any, full_matrices: bool = True, driver: Any = None) -> Any:
    """torch ignores gradients of columns that complete a basis, morok refuses them."""
    u, s, vh = x.svd(full_matrices)
    k = s.shape[-1]
    u = u[..., :k].cat(u[..., k:].detach(), dim=-1) if u.shape[-1] > k else u
    return u, s, vh[..., :k, :].cat(vh[..., k:, :].detach(), dim=-2) if vh.shape[-2] > k else vh


# --- other orders of arguments


def _functional(name: str) -> Function:
    from morok.nn import functional

    found: Function = getattr(functional, name)
    return found


ADAPTED["nn.functional.embedding"] = lambda weight, index, **how: _functional("embedding")(
    index, weight, **how
)
ADAPTED["nn.functional.embedding_bag"] = lambda weight, index, **how: _functional("embedding_bag")(
    index, weight, **how
)
ADAPTED["nn.functional.linear"] = lambda x, w, b=None: (
    x.linear(w, b) if w.ndim > 1 else (x * w).sum(-1) if b is None else (x * w).sum(-1) + b
)
ADAPTED["nn.functional.prelu"] = lambda x, weight: (
    x.prelu(weight) if x.ndim else x.reshape(1).prelu(weight).reshape(())
)
ADAPTED["norm.nuc"] = lambda x, p, dim=(-2, -1), keepdim=False, dtype=None: morok.linalg.matrix_norm(
    x, p, dim, keepdim
)


@adapted("normal", "normal.number_mean")
def _normal(mean: Any, std: Any = 1.0, size: Any = None, dtype: Any = None) -> Any:
    if size is not None:
        return Tensor.normal(*size, mean=mean, std=std)
    like = mean if isinstance(mean, Tensor) else std
    return like.randn_like() * std + mean


@adapted("randint")
def _randint(*args: Any, dtype: Any = None, **how: Any) -> Any:
    *bounds, size = args
    return Tensor.randint(*bounds, shape=tuple(size)).cast(dtype or "int64")


ADAPTED["randint_like"] = lambda x, *bounds, **how: Tensor.randint(*bounds, shape=x.shape).cast(x.dtype)
ADAPTED["repeat_interleave"] = lambda x, repeats, dim=None, output_size=None: x.repeat_interleave(
    repeats, dim
)
