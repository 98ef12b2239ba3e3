"""Where a reshape reads: axes that it does not touch keep their index, also those of sizes known later."""

from morok.dtype import index
from morok.ir.build import rng, variable
from morok.ir.node import UOp, const
from morok.schedule.indexing import reshape_indices, simplified


def five() -> UOp:
    return const(index, 5)


def test_axes_of_symbolic_sizes_stay_apart() -> None:
    h, w = (variable("m", 8, 64) + 1) // 2, (variable("n", 8, 128) + 3) // 4
    loops = [rng(size, i) for i, size in enumerate((h, w, const(index, 25)))]
    r, c, k = loops
    assert reshape_indices((r, c, k), (h, w, 25), (h, w, 5, 5)) == (r, c, k // five(), k % five())
    a, b = rng(five(), 3), rng(five(), 4)
    assert reshape_indices((r, c, a, b), (h, w, 5, 5), (h, w, 25))[:2] == (r, c)
    assert reshape_indices((a, r, b, c), (5, h, 5, w), (5, h, 1, 5, w)) == (a, r, const(index, 0), b, c)


def test_symbolic_sizes_that_are_put_together_are_a_group_of_their_own() -> None:
    h, w = variable("m", 2, 64), variable("n", 2, 128)
    r, c, a = rng(h, 0), rng(w, 1), rng(five(), 2)
    first, joined = reshape_indices((a, r, c), (5, h, w), (5, h * w))
    assert first is a and joined is simplified(r * w + c)
