"""Programs that are found on disk by torch's graph: the same results, without a trace."""

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from morok import knobs  # noqa: E402
from morok.torch import lower  # noqa: E402
from morok.torch.backend import morok  # noqa: E402


@pytest.fixture
def lowered(monkeypatch: Any) -> list[Any]:
    """The nodes that are lowered, as they come."""
    seen: list[Any] = []
    plain = lower._compute
    monkeypatch.setattr(lower, "_compute", lambda node, *rest: (seen.append(node), plain(node, *rest))[1])
    return seen


def again(function: Any, *inputs: Any) -> Any:
    torch._dynamo.reset()
    torch.manual_seed(1)
    return torch.compile(function, backend=morok, fullgraph=True)(*inputs)


def test_a_graph_that_was_seen_is_not_traced(tmp_path: Path, lowered: list[Any]) -> None:
    table = torch.randn(9, 4)

    def function(x: Any, at: Any) -> Any:
        rows = torch.nn.functional.embedding(at, table)
        kept = torch.nn.functional.dropout(rows + x, 0.5)
        return x, kept, x.t(), *kept.unbind(1), 3

    x, at = torch.randn(3, 4), torch.tensor([1, 8, 0])
    with knobs.override(CACHE_DIR=str(tmp_path / "cache"), CACHE_PLANS=1):
        first = again(function, x, at)
        count = len(lowered)
        second = again(function, x, at)
        assert count and len(lowered) == count
        for a, b in zip(first, second, strict=True):
            assert a == b if isinstance(a, int) else torch.equal(a, b) and a.stride() == b.stride()
        assert second[2].data_ptr() == x.data_ptr()
        assert second[3].untyped_storage().data_ptr() == second[1].untyped_storage().data_ptr()
        with pytest.raises(IndexError, match="9 is outside"):
            again(function, x, at + 1)
        assert len(lowered) == count


def test_what_differs_is_traced(tmp_path: Path, lowered: list[Any]) -> None:
    x = torch.randn(2, 3)
    with knobs.override(CACHE_DIR=str(tmp_path / "cache"), CACHE_PLANS=1):
        for function, given in (
            (lambda x: x * 2, x),
            (lambda x: x * 3, x),
            (lambda x: x * 2, x.double()),
            (lambda x: x * 2, torch.randn(3, 2)),
            (lambda x: x * 2, torch.randn(3, 2).t()),
        ):
            before = len(lowered)
            assert torch.equal(again(function, given), function(given))
            assert len(lowered) > before
