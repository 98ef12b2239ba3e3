"""The key of a graph by one walk: what it says is the whole graph, and nothing of whose memory it reads."""

from __future__ import annotations

import random

import pytest

from morok import Tensor
from morok.dtype import float32, void
from morok.ir.build import const
from morok.ir.node import UOp, alu, make, toposort
from morok.ir.ops import Ops
from morok.schedule.signature import Walk, graph_signature


def rebuilt(walk: Walk) -> list[tuple[int, ...]]:
    """For each node, by number, the numbers of its sources, from the edges of a walk alone."""
    found: list[tuple[int, ...]] = []
    edges = iter(walk.edges)

    def child() -> int:
        edge = next(edges)
        if edge < 0:
            return opened(-edge)
        if edge == len(found):  # the number that the next node gets: it has no sources
            found.append(())
        return edge

    def opened(sources: int) -> int:
        numbers = tuple([child() for _ in range(sources)])
        found.append(numbers)
        return len(found) - 1

    for edge in edges:
        opened(-edge)
    return found


def graph(seed: int, nodes: int = 40) -> list[UOp]:
    choose = random.Random(seed)
    made = [make(Ops.UNIQUE, void, (), 10**9 + seed * 100 + n) for n in range(choose.randint(1, 3))]
    device = make(Ops.DEVICE, void, (), "CPU")
    made = [make(Ops.BUFFER, float32, (number, device), 8) for number in made] + [const(float32, 2.0)]
    while len(made) < nodes:
        op = choose.choice((Ops.ADD, Ops.MUL, Ops.NEG, Ops.WHERE))
        sources = [choose.choice(made[-8:]) for _ in range(op.arity)]
        if op is Ops.WHERE:
            sources[0] = alu(Ops.CMPLT, sources[0], sources[1])
        made.append(alu(op, *sources))
    return [choose.choice(made) for _ in range(choose.randint(1, 4))]


@pytest.mark.parametrize("seed", range(50))
def test_a_walk_numbers_as_toposort_does_and_says_every_edge(seed: int) -> None:
    roots = graph(seed)
    walk = Walk(roots)
    order = toposort(*roots)
    number = {node: n for n, node in enumerate(order)}
    assert walk.number == number
    assert rebuilt(walk) == [tuple([number[s] for s in node.src]) for node in order]


@pytest.mark.parametrize("seed", range(20))
def test_a_walk_that_goes_on_is_one_from_all_roots(seed: int) -> None:
    first, then = graph(seed), graph(seed) + graph(seed + 1)
    walk = Walk(first)
    walk.extend(then)
    whole = Walk([*first, *then])
    assert list(walk.number.items()) == list(whole.number.items())
    assert walk.edges == whole.edges


def signature(*outputs: Tensor) -> object:
    nodes = [t.uop for t in outputs]
    return graph_signature(nodes, Walk(nodes))


def test_the_same_form_on_other_memory_has_the_same_signature() -> None:
    def form(x: Tensor, y: Tensor) -> Tensor:
        return (x + y).relu() * x

    a, b, c = (Tensor([float(n), 1.0]).realize() for n in range(3))
    assert signature(form(a, b)) == signature(form(b, c))
    assert signature(form(a, b)) != signature(form(a, a))
    assert signature(a - b, b - a) != signature(a - b, a - b)
