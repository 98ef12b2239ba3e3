"""Rows times the matrix of their group, as experts of `transformers` have it, and its gradients."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers.integrations.moe", reason="transformers is not installed")

from morok.torch.backend import morok  # noqa: E402
from tests.torch.test_backend import alike  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
ENDS = torch.tensor([3, 3, 10], dtype=torch.int32)  # an empty group, and rows after the last


def test_gradients_are_no_fallback() -> None:
    def function(x: Any, w: Any) -> Any:
        return torch.ops.transformers.grouped_mm_fallback(x, w, ENDS).sin().sum()

    x, w = torch.randn(12, 8, requires_grad=True), torch.randn(3, 8, 4, requires_grad=True)
    compiled = torch.compile(function, backend=morok, fullgraph=True, options={"fallback": False})
    found = torch.autograd.grad(compiled(x, w), (x, w))
    for a, b in zip(found, torch.autograd.grad(function(x, w), (x, w)), strict=True):
        assert a.stride() == b.stride()
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_groups_of_what_is_summed_up() -> None:
    a, b = (torch.randn(16, n, dtype=torch.bfloat16) for n in (8, 24))
    ends = torch.tensor([8, 16], dtype=torch.int32)
    alike(lambda a, b: torch._grouped_mm(a.t(), b, offs=ends), a, b, tolerance=2e-2)
