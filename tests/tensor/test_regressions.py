"""Programs that once gave a wrong answer."""

import numpy as np

from morok import Tensor


def test_a_padded_lane_does_not_keep_zero_over_zero() -> None:
    """LLVM took the lane 0/0 beyond the end for 0 and dropped the choice that replaces its NaN."""
    x = np.array([3.0, 1.25, 0.0], np.float32)
    t = Tensor(x).realize()
    got = (t + t / t).pad(((0, 1),)).numpy()
    np.testing.assert_array_equal(got, np.array([4.0, 2.25, np.nan, 0.0], np.float32))
