"""Memory in graphs: what a view shows, and where a node is computed."""

import pytest

from morok import Tensor
from morok.dtype import float32
from morok.errors import IRError
from morok.ir.memory import base_of, device_of, own_device
from morok.ir.node import UOp, alu, const, make, toposort
from morok.ir.ops import Ops


def param(number: int, device: str) -> UOp:
    return make(Ops.PARAM, float32, (), (number, 8, device))


def test_views_and_states_show_their_memory() -> None:
    memory = param(0, "CPU")
    view = make(Ops.CONTIGUOUS, float32, (make(Ops.DETACH, float32, (memory,)),))
    assert base_of(view) is base_of(memory) is memory
    x = Tensor([1.0, 2.0, 3.0, 4.0]).realize()
    assert base_of(x.reshape(2, 2)[1:].uop).op is Ops.BUFFER
    assert base_of(make(Ops.IDENTITY, float32, (memory,), 1)) is memory
    with pytest.raises(IRError, match="not ADD"):
        base_of(alu(Ops.ADD, memory, memory))


def test_a_node_is_computed_where_its_memory_is() -> None:
    memory, number = param(0, "CUDA:1"), const(float32, 2.0)
    total = alu(Ops.ADD, number, memory)
    known: dict[UOp, str] = {}
    for node in toposort(total, number):
        known[node] = device_of(node, known)
    assert own_device(memory) == known[total] == "CUDA:1" and known[number] == own_device(total) == ""
