"""Systems of equations and factorisations."""

from __future__ import annotations

from morok.torch.table import Call, T, op


@op("linalg_cross.default")
def cross(x: T, y: T, *, dim: int = -1, call: Call) -> T:
    return x.expand(*call.shape).cross(y.expand(*call.shape), dim)


@op("trace.default")
def trace(x: T) -> T:
    return x.trace()
