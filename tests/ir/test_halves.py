"""Products of words that hold two float16 each, as arrays and as numbers."""

import math

import numpy as np

from morok.dtype import float32
from morok.ir.arithmetic.alu import evaluate, evaluate_array
from morok.ir.ops import Ops


def test_words_of_two_float16() -> None:
    """Subnormal ones count, and arrays agree with numbers."""
    words = np.array([[1.5, -2.0], [2.0**-24, 3.0], [65504.0, 2.0**-24]], np.float16).view(np.float32)[:, 0]
    x, y = words[:, None], words[None, :]
    halves = words.view(np.float16).reshape(-1, 2).astype(np.float64)
    want = (halves @ halves.T).astype(np.float32)
    assert (evaluate_array(Ops.DOT2, float32, x, y) == want).all()
    found = [[evaluate(Ops.DOT2, float32, float(a), float(b)) for b in words] for a in words]
    assert (np.array(found, np.float32) == want).all()


def test_words_of_two_float16_keep_the_sign_of_zeros() -> None:
    zeros, ones = (np.array(w, np.float16).view(np.float32)[0] for w in ([-0.0, -0.0], [1.0, 1.0]))
    assert np.signbit(evaluate_array(Ops.DOT2, float32, zeros, ones))
    assert math.copysign(1.0, evaluate(Ops.DOT2, float32, float(zeros), float(ones))) == -1.0
