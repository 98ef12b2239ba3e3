"""Gradients against finite differences in double precision."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from morok import Tensor

Array = Any
STEP = 1e-5


def sample(*shape: int, low: float = 0.2, high: float = 1.7, seed: int = 0, signs: bool = True) -> Array:
    """Numbers away from zero and from each other, so that no kink is within a step."""
    rng = np.random.default_rng(seed)
    count = int(np.prod(shape))
    sizes = np.linspace(low, high, count + 2)[1:-1]
    values = rng.permutation(sizes)
    if signs:
        values = values * rng.choice([-1.0, 1.0], count)
    return values.reshape(shape)


def check(
    function: Callable[..., Tensor], *arrays: Array, rtol: float = 2e-6, which: Sequence[int] | None = None
) -> None:
    """The gradient of `function` along random directions is the slope of its values."""
    rng = np.random.default_rng(7)
    chosen = range(len(arrays)) if which is None else which
    tensors = [Tensor(np.array(a, dtype=np.float64)) for a in arrays]
    result = function(*tensors)
    assert result.dtype.name == "float64", result.dtype
    weights = rng.standard_normal(result.shape)
    gradients = result.gradient(*(tensors[i] for i in chosen), gradient=Tensor(weights))
    Tensor.realize(*gradients)
    for gradient, i in zip(gradients, chosen, strict=True):
        assert gradient.shape == arrays[i].shape and gradient.dtype.name == "float64"
    for _ in range(2):
        directions = {i: rng.standard_normal(arrays[i].shape) for i in chosen}
        sides = []
        for sign in (1.0, -1.0):
            moved = [
                Tensor(
                    np.asarray(a + sign * STEP * directions[i] if i in directions else a, dtype=np.float64)
                )
                for i, a in enumerate(arrays)
            ]
            sides.append(float((function(*moved).numpy() * weights).sum()))
        slope = (sides[0] - sides[1]) / (2 * STEP)
        mine = sum(float((g.numpy() * directions[i]).sum()) for g, i in zip(gradients, chosen, strict=True))
        scale = max(1.0, abs(slope), *(float(np.abs(g.numpy()).max(initial=0)) for g in gradients))
        assert abs(slope - mine) <= rtol * scale + 1e-9, (slope, mine)
