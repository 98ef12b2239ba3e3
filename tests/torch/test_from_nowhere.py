"""What a model makes on the host for a GPU, of constants alone, is computed on the GPU."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from morok.torch.compiled import values_from_nowhere  # noqa: E402

GPU = torch.device("meta")  # stands for one


def found(function: Any, *shapes: tuple[int, ...], on_gpu: set[str]) -> set[str]:
    """The nodes of a traced function that may be anywhere, where some lie on a GPU."""
    graph = make_fx(function)(*(torch.zeros(s) for s in shapes)).graph
    for node in graph.nodes:
        value = node.meta.get("val", node.meta.get("tensor_meta"))
        shape = tuple(value.shape) if value is not None else ()
        node.meta["val"] = torch.zeros(shape, device=GPU if node.name in on_gpu else "cpu")
    return {n.name for n in values_from_nowhere(list(graph.nodes), GPU)}


def test_positions() -> None:
    def rows(table: Any) -> Any:
        places = torch.arange(4) * 2
        return table[places]

    assert found(rows, (9, 3), on_gpu={"table_1", "index"}) == {"arange", "mul"}


def test_results_stay_where_they_are() -> None:
    def rows(table: Any) -> Any:
        places = torch.arange(4) * 2
        return table[places], places

    assert found(rows, (9, 3), on_gpu={"table_1", "index"}) == set()


def test_what_is_given_on_the_host_stays() -> None:
    def rows(table: Any, given: Any) -> Any:
        return table + (given + torch.ones(3))

    assert found(rows, (3,), (3,), on_gpu={"table_1", "add_1"}) == set()


def test_constants() -> None:
    """A number that is written as a tensor is a constant of the graph."""

    def rows(table: Any) -> Any:
        places = torch.arange(4) * torch.tensor(2)
        return table[places]

    names = found(rows, (9, 3), on_gpu={"table_1", "index"})
    assert "arange" in names and "mul" in names and any("constant" in n for n in names)
