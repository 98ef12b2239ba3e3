"""Attention as torch has it on GPUs, by rows of the table: results and gradients beside the CPU's."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from morok import Tensor, knobs  # noqa: E402
from morok.torch import operators as _operators  # noqa: E402, F401 - enters all rows
from morok.torch.table import Call, lookup  # noqa: E402

KIND = torch.empty((), dtype=torch.int64)
# the sums as each keeps them, what the backward pass gets besides, and what the forward pass gives besides
WAYS: dict[str, tuple[tuple[int, ...], tuple[Any, ...], tuple[Any, ...]]] = {
    "efficient": ((2, 3, 32), (None, True, 0.0, True), (KIND, KIND)),
    "cudnn": ((2, 3, 5, 1), (None, True, 0.0, True, False), (None, None, 5, 5, KIND, KIND, torch.empty(0))),
    "flash": ((2, 3, 5), (0.0, True, False), (None, None, 5, 5, KIND, KIND, torch.empty(0))),
}


class Node:
    """A node of a graph whose results are all wanted."""

    op, args, kwargs = "call_function", (), {}  # type: ignore[var-annotated]

    def __init__(self, target: Any, val: Any) -> None:
        self.target, self.meta, self.users = target, {"val": val}, [self]


def backward(name: str, *given: Any) -> tuple[Any, ...]:
    grad, q, k, v, out, sums = given
    if name == "efficient":
        return grad, q, k, v, None, out, sums, None, None, 0.0, [True, True, True, False], True
    if name == "cudnn":
        return grad, q, k, v, out, sums, None, None, None, None, None, 5, 5, 0.0, True
    return grad, q, k, v, out, sums, None, None, 5, 5, 0.0, True, None, None


@pytest.mark.parametrize("name", WAYS)
def test_causal_attention(name: str) -> None:
    q, k, v = (torch.randn(2, 3, 5, 8, requires_grad=True) for _ in range(3))
    right = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    grad = torch.randn_like(right)
    slopes = torch.autograd.grad(right, (q, k, v), grad)
    sums, options, rest = WAYS[name]
    target = getattr(torch.ops.aten, f"_scaled_dot_product_{name}_attention")
    back = getattr(torch.ops.aten, f"_scaled_dot_product_{name}_attention_backward")
    row, row_back = lookup(target.default), lookup(back.default)
    assert row is not None and row_back is not None
    node = Node(target.default, (right, torch.empty(sums), *rest))
    with knobs.override(DEVICE="PYTHON"):
        a, b, c, g = (Tensor(t.detach().numpy()) for t in (q, k, v, grad))
        made = row.function(a, b, c, *options, call=Call(node, lambda n: n))
        assert made[1].shape == sums and len(made) == len(node.meta["val"])
        found = row_back.function(*backward(name, g, a, b, c, made[0], made[1]))
        for own, expected in zip((made[0], *found[:3]), (right, *slopes), strict=True):
            torch.testing.assert_close(torch.from_numpy(own.numpy()), expected.detach(), rtol=1e-5, atol=1e-5)
