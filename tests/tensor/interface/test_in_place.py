"""Methods that overwrite their tensor go by the rules of assignment: views see it, other values do not."""

from typing import Any

import numpy as np
import pytest

from morok import Tensor, jit
from morok.errors import AssignError, DTypeError, ShapeError
from tests.tensor.interface.table_in_place import IN_PLACE, as_tensors


@pytest.mark.parametrize("realized", [False, True])
@pytest.mark.parametrize("name, data, args, oracle", IN_PLACE, ids=[row[0] for row in IN_PLACE])
def test_a_part_of_a_tensor(name: str, data: Any, args: Any, oracle: Any, realized: bool) -> None:
    whole = np.stack([data, data + 1, data * 2])
    x = Tensor(whole.copy())
    if realized:
        x.realize()
    before, part = x * 1.0, x[1:2].reshape(*data.shape) if realized else x[1]
    part.copy_(Tensor(data))
    found = getattr(part, name)(*as_tensors(args))
    assert found is part
    wanted = oracle(data)
    np.testing.assert_allclose(x[1].numpy(), wanted, rtol=2e-6, atol=1e-6)
    np.testing.assert_array_equal(x.numpy()[[0, 2]], whole[[0, 2]])
    np.testing.assert_array_equal(before.numpy(), whole)


def test_in_functions_that_are_compiled() -> None:
    @jit
    def step(total: Tensor, x: Tensor) -> Tensor:
        total.mul_(0.5).add_(x)
        total[0].zero_()
        return total.sum()

    total, wanted = Tensor([4.0, 8.0, 16.0]).realize(), np.array([4.0, 8.0, 16.0])
    for k in range(4):
        found = step(total, Tensor([1.0, 2.0, k]))
        wanted = wanted * 0.5 + [1.0, 2.0, k]
        wanted[0] = 0.0
        assert found.item() == wanted.sum() and total.tolist() == wanted.tolist()


def test_what_does_not_fit_is_refused() -> None:
    n, x = Tensor([1, 2, 3]), Tensor([1.0, 2.0])
    with pytest.raises(DTypeError, match="add_ gives float32 here, which does not fit into int64"):
        n.add_(0.5)
    with pytest.raises(ShapeError, match=r"mul_ gives shape \(3, 2\) here, and the tensor has \(2,\)"):
        x.mul_(Tensor.ones(3, 2))
    with pytest.raises(AssignError):
        x[[0, 1]].zero_()
    assert n.tolist() == [1, 2, 3] and x.tolist() == [1.0, 2.0]


def test_gradients_go_through() -> None:
    w = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = w * 2.0
    y.mul_(w).add_(1.0)
    y.sum().backward()
    assert w.grad is not None and w.grad.tolist() == [4.0, 8.0, 12.0]
    w.grad.zero_()
    assert w.grad.tolist() == [0.0, 0.0, 0.0]


def test_facts_by_the_names_of_pytorch() -> None:
    x = Tensor(np.arange(24, dtype=np.float16).reshape(2, 3, 4))
    assert (x.dim(), x.nelement(), x.element_size(), x.is_floating_point()) == (3, 24, 2, True)
    assert x.stride() == (12, 4, 1) and x.stride(-2) == 4 and Tensor(1.0).stride() == ()
    assert Tensor.ones(2, 0, 3).stride() == (3, 3, 1) and x.mT.is_contiguous()
    assert x[0].t().shape == (4, 3) and x[0, 0].t().shape == (4,)
    with pytest.raises(ShapeError, match="at most two axes"):
        x.t()
    assert x.type_as(Tensor([1])).dtype.name == "int64" and x.cpu().device == "CPU"
    own = x.copy()
    own.zero_()
    assert x.sum().item() == 276.0 and x.new_tensor([1, 2]).dtype is x.dtype
