"""The limits that the page of the API states are there."""

import numpy as np
import pytest

from morok import MorokError, Tensor, jit
from morok.cli.limits import LIMITS, Limit


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.program)
def test_a_limit_is_one_sentence(limit: Limit) -> None:
    names = {"np": np, "Tensor": Tensor, "jit": jit, "n": Tensor([1, 2, 3])}
    names["x"] = Tensor(np.arange(6.0).reshape(2, 3))
    with pytest.raises(MorokError) as caught:
        eval(limit.program, names)
    assert "\n" not in caught.value.message
