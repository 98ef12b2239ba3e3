"""Attention as torch has it on GPUs, by rows of the table: results and gradients beside the CPU's."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from morok import Tensor, knobs  # noqa: E402
from morok.optimize.heuristics.apply import optimize  # noqa: E402
from morok.optimize.record import applied  # noqa: E402
from morok.schedule.graph.attention.chain import chain_of  # noqa: E402
from morok.torch import operators as _operators  # noqa: E402, F401 - enters all rows
from morok.torch.backend import morok  # noqa: E402
from morok.torch.table import Call, lookup  # noqa: E402
from morok.torch.watch import watching  # noqa: E402
from tests.gpu.products import HOST  # noqa: E402

KIND = torch.empty((), dtype=torch.int64)
# the sums as each keeps them, what the backward pass gets besides, and what the forward pass gives besides
WAYS: dict[str, tuple[tuple[int, ...], tuple[Any, ...], tuple[Any, ...]]] = {
    "efficient": ((2, 3, 32), (None, True, 0.0, True), (KIND, KIND)),
    "cudnn": ((2, 3, 5, 1), (None, True, 0.0, True, False), (None, None, 5, 5, KIND, KIND, torch.empty(0))),
    "flash": ((2, 3, 5), (0.0, True, False), (None, None, 5, 5, KIND, KIND, torch.empty(0))),
}


class Node:
    """A node of a graph whose results are all wanted."""

    op = "call_function"
    args: tuple[Any, ...] = ()

    def __init__(self, target: Any, val: Any) -> None:
        self.kwargs: dict[str, Any] = {}
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


@pytest.mark.parametrize("ours", [False, True], ids=["efficient", "ours"])
def test_a_bias_that_learns(ours: bool) -> None:
    """As in Swin and T5: what is added to the scores has a gradient itself."""
    q, k, v = (torch.randn(2, 3, 5, 8, requires_grad=True) for _ in range(3))
    bias = torch.randn(3, 5, 5, requires_grad=True)
    added = bias.expand(2, 3, 5, 5)
    right = torch.nn.functional.scaled_dot_product_attention(q, k, v, added)
    grad = torch.randn_like(right)
    slopes = torch.autograd.grad(right, (q, k, v, added), grad)
    scores = q @ k.transpose(-1, -2) * 8**-0.5 + added
    with knobs.override(DEVICE="PYTHON"):
        a, b, c, g, m, o = (Tensor(t.detach().contiguous().numpy()) for t in (q, k, v, grad, added, right))
        if ours:
            target = torch.ops.morok.attention_backward.default
            given = (g, a, b, c, o, m, False, 8**-0.5, True)
        else:
            target = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default
            sums = Tensor(scores.logsumexp(-1).detach().numpy())
            given = (g, a, b, c, m, o, sums, None, None, 0.0, [True] * 4)
        row = lookup(target)
        assert row is not None
        node = Node(target, slopes)
        node.args = (None,) * 5 + (Node(None, added),)
        found = row.function(*given, **({"call": Call(node, lambda n: n)} if row.takes_call else {}))
        assert len(found) == 4
        for own, expected in zip(found, slopes, strict=True):
            torch.testing.assert_close(torch.from_numpy(own.numpy()), expected, rtol=1e-4, atol=1e-5)
    if ours:  # the operator as torch would run it
        again = target(
            grad, q.detach(), k.detach(), v.detach(), right.detach(), added.detach(), False, 8**-0.5, True
        )
        for own, expected in zip(again, slopes, strict=True):
            torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-5)


def test_a_row_that_looks_at_nothing_is_0() -> None:
    seen = torch.ones(3, 4, dtype=torch.bool)
    seen[0], seen[2, 1:] = False, False
    added = torch.zeros(2, 1, 1, 4)
    added[1] = -torch.inf

    def function(q: Any, k: Any) -> Any:
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(q, k, k, attn_mask=seen), attend(q, k, k, attn_mask=added)

    given = [torch.randn(2, 2, 3, 8), torch.randn(2, 2, 4, 8)]
    found, right = ([v.clone().requires_grad_() for v in given] for _ in range(2))
    compiled = torch.compile(function, backend=morok, fullgraph=True, options={"fallback": False})
    a, b = compiled(*found), function(*right)
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y)
    assert not a[0][:, :, 0].any() and not a[1][1].any()
    for results in (a, b):
        sum((n + 1) * r.square().sum() for n, r in enumerate(results)).backward()
    for x, y in zip(found, right, strict=True):
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "causal", "mask"])
def test_gradients_on_gpus_keep_no_scores(kind: str) -> None:
    """In half precision the scores are computed again: no kernel of the plans stores any."""
    seen = torch.ones(2, 1, 64, 64, dtype=torch.bool).tril()
    seen[1, :, 5], seen[0, :, :, 40:] = False, False

    def function(q: Any, k: Any, v: Any) -> Any:
        mask = seen if kind == "mask" else None
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, is_causal=kind == "causal")

    exact = [torch.randn(2, 2, 64, 32).bfloat16().double().requires_grad_() for _ in range(3)]
    leaves = [v.detach().bfloat16().requires_grad_() for v in exact]
    grad = torch.randn(2, 2, 64, 32).bfloat16()
    with knobs.override(DEVICE="EMULATOR"), watching() as graphs:
        torch._dynamo.reset()
        found = torch.compile(function, backend=morok, fullgraph=True, options={"fallback": False})(*leaves)
        found.backward(grad)
    right = function(*exact)
    right.backward(grad.double())
    for a, b in zip(
        (found.detach(), *(v.grad for v in leaves)), (right.detach(), *(v.grad for v in exact)), strict=True
    ):
        assert float((a.double() - b).norm()) <= 1.5e-2 * float(b.norm())
    assert sum(plan.memory.arena_bytes for g in graphs for plan in g.plans) < 2 * 2 * 64 * 64 * 2


@pytest.mark.slow
def test_gradients_leave_out_what_a_mask_of_positions_hides() -> None:
    """torch would keep such a mask from the forward pass; made again, it is known what it hides."""

    def function(q: Any, k: Any, v: Any) -> Any:
        place = torch.arange(q.shape[-2])
        text = (place[1:] - place[:-1] != 1).cumsum(0)  # one, as nothing is packed: transformers looks for it
        seen = (place[None] <= place[:, None]) & (torch.cat([text[:1], text])[place[:, None]] == 0)
        mask = torch.where(seen, 0.0, -torch.inf).to(q.dtype)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)

    exact = [torch.randn(1, 1, 256, 32).bfloat16().double().requires_grad_() for _ in range(3)]
    leaves = [v.detach().bfloat16().requires_grad_() for v in exact]
    grad = torch.randn(1, 1, 256, 32).bfloat16()
    with knobs.override(DEVICE="EMULATOR"), watching() as graphs:
        torch._dynamo.reset()
        torch.compile(function, backend=morok, options={"fallback": False})(*leaves).backward(grad)
    function(*exact).backward(grad.double())
    for a, b in zip(leaves, exact, strict=True):
        assert float((a.grad.double() - b.grad).norm()) <= 1.5e-2 * float(b.grad.norm())
    items = [item for graph in graphs for plan in graph.plans for item in plan.schedule.items]
    actions = [
        [opt.name for opt in applied(optimize(item.ast, HOST))] for item in items if chain_of(item.ast)
    ]
    assert len(actions) >= 3 and all("SKIP" in names for names in actions), actions
