"""Attention with masks on GPUs: one kernel, whichever kernels torch would have chosen."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from morok import knobs  # noqa: E402
from morok.torch.attention import with_own_attention  # noqa: E402
from morok.torch.backend import morok  # noqa: E402

attend = torch.nn.functional.scaled_dot_product_attention
OURS = torch.ops.morok.attention.default


def heads(batch: int, number: int, rows: int, width: int) -> Any:
    return torch.randn(batch, rows, number, width).bfloat16().transpose(1, 2).requires_grad_()


def seen(graphs: list[Any]) -> Any:
    """A backend that only looks at what is ours."""

    def backend(gm: Any, inputs: Any) -> Any:
        with_own_attention(gm)
        graphs.append([node.target for node in gm.graph.nodes if node.op == "call_function"])
        return gm.forward

    return backend


MASKS: dict[str, Any] = {
    "padding": lambda b, n, m: (torch.arange(m) < torch.arange(1, b + 1)[:, None] * m // b)[:, None, None],
    "rows": lambda b, n, m: torch.rand(b, 1, n, m) < 0.7,
    "nothing seen": lambda b, n, m: (torch.arange(n) > 2)[:, None].expand(n, m),
    "all seen": lambda b, n, m: torch.ones(b, 1, n, m, dtype=torch.bool),
    "bias": lambda b, n, m: torch.randn(1, 4, n, m).bfloat16(),
}


@pytest.mark.parametrize("few", [4, 2])
@pytest.mark.parametrize("name", MASKS)
def test_results_and_gradients(name: str, few: int) -> None:
    torch.manual_seed(0)
    q, k, v = heads(2, 4, 21, 16), heads(2, few, 33, 16), heads(2, few, 33, 16)
    mask = MASKS[name](2, 21, 33)
    learns = mask.is_floating_point()
    grad = torch.randn(2, 21, 4, 16).transpose(1, 2)

    def run(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return attend(q, k, v, attn_mask=mask, scale=0.2, enable_gqa=few != 4)

    wide = [t.detach().double().requires_grad_() for t in (q, k, v)]
    wide.append(mask.double().requires_grad_() if learns else mask)
    right = run(*wide)
    slopes = torch.autograd.grad(right, wide if learns else wide[:3], grad.double())
    given = [q, k, v, mask.requires_grad_() if learns else mask]
    with knobs.override(DEVICE="EMULATOR"):
        torch._dynamo.reset()
        out = torch.compile(run, backend=morok)(*given)
        found = torch.autograd.grad(out, given if learns else given[:3], grad.bfloat16())
    torch._dynamo.reset()
    torch.testing.assert_close(out.double(), right, rtol=0.02, atol=0.02)
    for one, other in zip(found, slopes, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0.03, atol=0.06)


def test_layout_is_torchs() -> None:
    q, k, v = heads(2, 4, 21, 16), heads(2, 4, 33, 16), heads(2, 4, 33, 16)
    mask = torch.rand(2, 1, 21, 33) < 0.7
    with torch.no_grad(), knobs.override(DEVICE="EMULATOR"):
        torch._dynamo.reset()
        out = torch.compile(lambda *t: attend(*t), backend=morok)(q, k, v, mask)
        assert out.stride() == attend(q, k, v, mask).stride()


def test_where_it_is_ours() -> None:
    """A mask makes it ours; not with dropout, keys for all texts, a user's choice of kernels, wide types, and
    on processors."""
    q, k, v = heads(2, 4, 8, 16), heads(2, 4, 8, 16), heads(2, 4, 8, 16)
    mask = torch.rand(2, 1, 8, 8) < 0.7
    calls: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "mask": (lambda q, k, v, m: attend(q, k, v, m), (q, k, v, mask)),
        "none": (lambda q, k, v: attend(q, k, v), (q, k, v)),
        "repeated": (lambda q, k, v, m: attend(q, k, v, m), (q, heads(1, 4, 8, 16), v, mask)),
        "dropout": (lambda q, k, v, m: attend(q, k, v, m, 0.5), (q, k, v, mask)),
        "wide": (
            lambda q, k, v, m: attend(q, k, v, m),
            (*(t.detach().float() for t in (q, k, v)), mask),
        ),
    }

    def chosen(q: Any, k: Any, v: Any, m: Any) -> Any:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return attend(q, k, v, m)

    calls["chosen"] = (chosen, (q, k, v, mask))
    ours = {}
    for name, (call, given) in calls.items():
        graphs: list[Any] = []
        with knobs.override(DEVICE="EMULATOR"):
            torch._dynamo.reset()
            torch.compile(call, backend=seen(graphs))(*given)
        ours[name] = any(OURS in graph for graph in graphs)
    assert [name for name, is_ours in ours.items() if is_ours] == ["mask"]
    graphs = []
    with knobs.override(DEVICE="CPU"):
        torch._dynamo.reset()
        torch.compile(calls["mask"][0], backend=seen(graphs))(q, k, v, mask)
    assert not any(OURS in graph for graph in graphs)
