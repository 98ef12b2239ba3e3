"""Small windows: convolutions of few channels, or of each channel for itself."""

from __future__ import annotations

import pytest

from morok.ir import movement
from morok.ir.infer import closed_ranges
from morok.ir.node import UOp, toposort
from morok.ir.ops import AxisKind, Ops
from morok.optimize.heuristics.apply import optimize
from morok.optimize.loops import loops_of, size
from morok.optimize.record import applied
from tests.optimize.kernels import AVX512, NEON, interpret, kernel_of, native, same
from tests.schedule import graphs as g


def depthwise(channels: int, height: int, width: int, k: int, stride: int = 1) -> UOp:
    """(1, c, h, w) * (c, k, k): each channel for itself."""
    view = g.windows(g.tensor(1, channels, height, width), k, stride)
    weights = movement.reshape(g.tensor(channels, k, k), (1, channels, 1, 1, k, k))
    return kernel_of(g.total(g.mul(view, weights), 4, 5))


@pytest.mark.parametrize("k", [5, 7])
def test_a_window_is_summed_along_its_outputs(k: int) -> None:
    """Five elements fill a vector and one more, but then every output ends with a sum across lanes."""
    ast = optimize(depthwise(6, 12, 48 + k - 1, k), NEON)
    (reduce,) = (n for n in toposort(ast) if n.op is Ops.REDUCE)
    kinds = {r.arg[1]: size(r) for r in loops_of(ast).by_number.values()}
    assert (kinds[AxisKind.UPCAST] or 0) % 4 == 0 and kinds[AxisKind.UNROLL] == k
    assert len(closed_ranges(reduce)) >= 1


@pytest.mark.parametrize(
    ("height", "width", "k", "stride"), [(9, 13, 5, 1), (8, 21, 7, 1), (11, 23, 5, 2), (5, 9, 5, 1)]
)
def test_windows_keep_the_answer(height: int, width: int, k: int, stride: int) -> None:
    ast = depthwise(3, height, width, k, stride)
    for machine in (NEON, AVX512):
        same(interpret(optimize(ast, machine)), interpret(ast))
    same(native(optimize(ast, NEON)), interpret(ast))


@pytest.mark.parametrize(("channels", "outputs"), [(3, 8), (3, 12), (8, 4), (2, 3)])
def test_few_channels_of_a_strided_convolution_are_packed(channels: int, outputs: int) -> None:
    """Columns that lie apart are gathered once, not for each of the rows."""
    ast = kernel_of(g.conv(g.tensor(1, channels, 25, 35), g.tensor(outputs, channels, 3, 3), 2))
    cut = optimize(ast, NEON)
    assert "PACK" in [opt.name for opt in applied(cut)]
    for machine in (NEON, AVX512):
        same(interpret(optimize(ast, machine)), interpret(ast))
    same(native(cut), interpret(ast))
