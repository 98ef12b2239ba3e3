"""Places along axes of sizes that are known later: what a reshape reads, and what loops say about ends."""

from morok.dtype import index
from morok.ir.build import rng, variable
from morok.ir.node import UOp, const
from morok.ir.sizes import below_in_loops
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


def test_the_last_window_ends_inside() -> None:
    n = variable("n", 8, 64)
    for step in (1, 2, 3):
        place = rng((n - 5) // step + 1, 0)
        for offset in (4, rng(five(), 1)):
            assert below_in_loops(place * step + offset, n)
        assert not below_in_loops(place * step + 5, n)
        assert not below_in_loops(place * (step + 1), n)
    assert not below_in_loops(rng(n, 0) + rng(n, 1), n)
