"""Programs that once gave a wrong answer."""

import numpy as np

from morok import Tensor, custom_gradient


def test_a_padded_lane_does_not_keep_zero_over_zero() -> None:
    """LLVM took the lane 0/0 beyond the end for 0 and dropped the choice that replaces its NaN."""
    x = np.array([3.0, 1.25, 0.0], np.float32)
    t = Tensor(x).realize()
    got = (t + t / t).pad(((0, 1),)).numpy()
    np.testing.assert_array_equal(got, np.array([4.0, 2.25, np.nan, 0.0], np.float32))


def test_memory_that_nothing_reads_keeps_its_number() -> None:
    """A function's input that its formula does not read was dropped from the list of memory, so the result
    was written over it, and read from elsewhere."""
    u, v = (Tensor(np.arange(n, dtype=np.float64)).contiguous().realize() for n in (4, 9))
    same = custom_gradient(lambda g, result, x: x)(lambda x: (u * 2).cat(u * 3))
    assert same(v)[1:5].tolist() == [2.0, 4.0, 6.0, 0.0]
    assert same(v)[:4].tolist() == [0.0, 2.0, 4.0, 6.0]
    assert v.tolist() == np.arange(9.0).tolist()


def test_nothing_that_is_read_beside_its_sum() -> None:
    """Two readers at the same places, one of them inside of a sum without loops: an IndexError."""
    nothing = Tensor(np.zeros((0, 3, 0, 0), np.float32)) @ Tensor(np.zeros((0, 1), np.float32))
    x = nothing.permute(0, 2, 3, 1)
    different, larger = x.ne(x), x.maximum(x.sum(3, keepdim=True))
    different.realize(larger)
    assert different.shape == larger.shape == (0, 0, 1, 3) and larger.numpy().size == 0
