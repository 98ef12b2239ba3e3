"""Programs that NumPy or PyTorch run and morok refuses on purpose: the last section of the API's page.

Each is an expression that raises a MorokError, which a test looks at, and what to do instead.
"""

from __future__ import annotations

from typing import NamedTuple


class Limit(NamedTuple):
    """One refusal. `program` is an expression; x is a tensor of floats (2, 3), n one of three integers."""

    what: str
    program: str
    instead: str


LIMITS: tuple[Limit, ...] = (
    Limit("complex numbers, text, dates", "Tensor([1j])", "two tensors, or NumPy"),
    Limit(
        "an integer that its type does not hold, where NumPy or PyTorch let it wrap around",
        'Tensor.arange(250, 300, dtype="uint8")',
        "compute in a wider type and cast it",
    ),
    Limit("averages as integers", 'n.mean(dtype="int32")', "cast the average"),
    Limit("the raw mode of `qr`", 'x.qr("raw")', 'the modes "reduced", "complete" and "r"'),
    Limit("norms of matrices by name, except for `fro`", 'x.norm("nuc")', "`svd().S.sum()`"),
    Limit(
        "sizes that depend on values inside of `jit`",
        "jit(lambda t: t.nonzero())(n)",
        "`size=` of `nonzero`, `masked_select`, `unique`, `bincount`; `where` for a mask as an index",
    ),
    Limit(
        "NumPy's functions that write into their argument",
        "np.copyto(x, np.zeros((2, 3)))",
        "`x[…] = y`, `x.assign(y)`",
    ),
    Limit(
        "gradients through what NumPy itself computes",
        "np.cbrt(Tensor([1.0], requires_grad=True))",
        "methods of tensors, or `detach()`",
    ),
    Limit(
        "gradients of the columns that `qr` and `svd` complete a basis with",
        'x.T.qr("complete").Q.sum().gradient(x)',
        "the reduced factors",
    ),
    Limit(
        "a scatter of values of another type",
        "x.scatter(0, Tensor([[0, 1, 0]]), Tensor([[1, 2, 3]]))",
        "cast the values",
    ),
)


def limits_section() -> str:
    """The section as text."""
    rows = "\n".join(f"| {what} | `{program}` | {instead} |" for what, program, instead in LIMITS)
    return f"""## Limits

What NumPy or PyTorch run and morok refuses, with one program each that raises a `MorokError` (x is a tensor
of floats, n one of integers); the tests run them.

| what | for example | instead |
|---|---|---|
{rows}

One thing differs without an error: the sign of a zero that a sum gives. NumPy and PyTorch begin at +0; here a
sum of nothing but -0 may be -0.
"""
