"""Equal layers are scheduled once: the schedule is the same as if each had been looked at."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from unittest.mock import patch

import numpy as np
import pytest

from morok import Tensor
from morok.caches import clear_all
from morok.ir.node import UOp, toposort
from morok.ir.provenance import line_of
from morok.schedule.normalise import normalise
from morok.schedule.plan import template as built
from morok.schedule.plan.lengthen import lengthened
from morok.schedule.plan.repeat import Repeat
from morok.schedule.plan.steps import StepList, Template
from morok.schedule.schedule import clear_cache


class Layers:
    """A network of layers, some of which are not like the others."""

    def __init__(self, seed: int, count: int, width: int = 8) -> None:
        self.width, self.rows = width, width // 2
        self.choose = random.Random(seed)
        self.count = count
        self.numbers = np.random.default_rng(seed)
        self.outputs: list[Tensor] = []
        self.written: list[Tensor] = []
        self.odd = self.choose.randrange(count)  # the layer that differs
        self.way = self.choose.choice(WAYS)
        self.parts = [self.choose.choice(PARTS) for _ in range(self.choose.randint(2, 4))]
        self.shared, self.counter = self.weight(width), self.weight(self.rows, width)

    def weight(self, *sizes: int) -> Tensor:
        return Tensor((self.numbers.standard_normal(sizes) / 3).astype(np.float32))

    def __call__(self) -> list[Tensor]:
        x = self.weight(self.rows, self.width)
        seen = [x, x]
        for n in range(self.count):
            for part in self.parts:
                x = part(self, x, seen)
            if n == self.odd or self.way.__name__.startswith("each"):
                x = self.way(self, x, seen)
            seen.append(x)
        self.outputs.append(x.sum(0))
        return [*self.outputs, *self.written]


def linear(net: Layers, x: Tensor, seen: list[Tensor]) -> Tensor:
    return x @ net.weight(net.width, net.width) + net.weight(net.width)


def gelu(net: Layers, x: Tensor, seen: list[Tensor]) -> Tensor:
    return x.gelu()


def norm(net: Layers, x: Tensor, seen: list[Tensor]) -> Tensor:
    return x.rms_norm() * net.weight(net.width)


def residual(net: Layers, x: Tensor, seen: list[Tensor]) -> Tensor:
    return x + (x @ net.weight(net.width, 2 * net.width)).relu() @ net.weight(2 * net.width, net.width)


def attention(net: Layers, x: Tensor, seen: list[Tensor]) -> Tensor:
    q, k, v = (x @ net.weight(net.width, net.width) for _ in range(3))
    return x + q.scaled_dot_product_attention(k, v, is_causal=True)


def skipping(net: Layers, x: Tensor, seen: list[Tensor]) -> Tensor:
    return x + seen[-2] * 0.5


def cached(net: Layers, x: Tensor, seen: list[Tensor]) -> Tensor:
    cache = net.weight(2, net.rows, net.width)
    cache[0] = x @ net.weight(net.width, net.width)
    net.written.append(cache)
    return x + cache.sum(0)


def prepared(net: Layers, x: Tensor, seen: list[Tensor]) -> Tensor:
    """Something that no layer has to wait for."""
    return x @ (net.weight(net.width, net.width) * net.shared).contiguous()


def looked_up(net: Layers, x: Tensor, seen: list[Tensor]) -> Tensor:
    """Positions that are checked."""
    places = Tensor(net.numbers.integers(0, 5, net.rows).astype(np.int32))
    return x + net.weight(5, net.width)[places]


def scattered(net: Layers, x: Tensor, seen: list[Tensor]) -> Tensor:
    places = Tensor(net.numbers.integers(0, net.rows, (net.rows, net.width)).astype(np.int32))
    return x.scatter(0, places, net.weight(net.rows, net.width), reduce="add")


def noisy(net: Layers, x: Tensor, seen: list[Tensor]) -> Tensor:
    return x + Tensor.rand(net.width)


PARTS: tuple[Callable[..., Tensor], ...] = (
    linear, gelu, norm, residual, attention, skipping, cached, prepared, looked_up, scattered, noisy,
)  # fmt: skip


def alike(net: Layers, x: Tensor, seen: list[Tensor]) -> Tensor:
    return x


def constant(net: Layers, x: Tensor, seen: list[Tensor]) -> Tensor:
    return x * 1.5


def turned(net: Layers, x: Tensor, seen: list[Tensor]) -> Tensor:
    return x @ net.weight(net.width, net.width).T


def other_weight(net: Layers, x: Tensor, seen: list[Tensor]) -> Tensor:
    return x * net.shared


def read_outside(net: Layers, x: Tensor, seen: list[Tensor]) -> Tensor:
    net.outputs.append((x * 2).sum(1))
    return x


def asked_for(net: Layers, x: Tensor, seen: list[Tensor]) -> Tensor:
    net.outputs.append(x)
    return x


def assigned(net: Layers, x: Tensor, seen: list[Tensor]) -> Tensor:
    net.counter.assign(net.counter + x)
    net.written.append(net.counter)
    return x + net.counter


def each_asked_for(net: Layers, x: Tensor, seen: list[Tensor]) -> Tensor:
    return asked_for(net, x, seen)


def each_counted(net: Layers, x: Tensor, seen: list[Tensor]) -> Tensor:
    net.counter.assign(net.counter + x)
    net.written[:] = [t for t in net.written if t is not net.counter] + [net.counter]
    return x + net.counter


def each_forgotten(net: Layers, x: Tensor, seen: list[Tensor]) -> Tensor:
    """Writes that nothing waits for, and that could be one kernel."""
    memory = net.weight(net.width)
    memory.assign(memory * 0.5)
    net.written.append(memory)
    return x


def each_summed(net: Layers, x: Tensor, seen: list[Tensor]) -> Tensor:
    total = x.sum()
    net.outputs[:] = [net.outputs[0] + total] if net.outputs else [total]
    return x


WAYS: tuple[Callable[..., Tensor], ...] = (
    alike, constant, turned, other_weight, read_outside, asked_for, assigned,
    each_asked_for, each_counted, each_forgotten, each_summed,
)  # fmt: skip


class Built:
    """Templates by layers and without, of every graph that is scheduled."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Template, Template]] = []
        self.lengthened: list[int] = []
        self.build, self.longer = built.build_template, lengthened

    def __call__(self, sink: UOp) -> Template:
        by_layers = self.build(sink)
        with patch.object(built, "find_repeat", lambda order: None):
            whole = self.build(sink)
        self.pairs.append((by_layers, whole))
        return by_layers

    def note(
        self, short: StepList, repeat: Repeat, params: Sequence[UOp], numbers: Sequence[int]
    ) -> StepList | None:
        found = self.longer(short, repeat, params, numbers)
        self.lengthened.append(0 if found is None else len(found.steps))
        return found

    def check(self) -> None:
        for by_layers, whole in self.pairs:
            assert by_layers.steps == whole.steps
            assert by_layers == whole
            assert [line_of(s.origin) for s in by_layers.steps] == [line_of(s.origin) for s in whole.steps]


@pytest.fixture
def templates() -> Iterator[Built]:
    found = Built()
    clear_all()  # nodes of other tests may be the same, with other lines
    with patch.object(built, "build_template", found), patch.object(built, "lengthened", found.note):
        yield found


def schedule_of(net: Layers) -> None:
    found = net()
    found[0].prepare(*found[1:])


@pytest.mark.parametrize("seed", range(24))
def test_layers_are_scheduled_as_if_each_had_been_looked_at(seed: int, templates: Built) -> None:
    schedule_of(Layers(seed, 24))
    templates.check()


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_every_way_to_differ(way: Callable[..., Tensor], templates: Built) -> None:
    net = Layers(0, 30)
    net.way, net.parts, net.odd = way, [norm, residual, linear], 11
    schedule_of(net)
    templates.check()
    # a sum of all layers in one kernel does not follow from that of a few
    assert any(templates.lengthened) == (way is not each_summed)


@pytest.mark.parametrize("parts", [[attention, residual], [cached, linear, norm], [prepared, skipping, norm]])
def test_layers_are_found(parts: list[Callable[..., Tensor]], templates: Built) -> None:
    net = Layers(0, 30, 64)
    net.way, net.parts = alike, parts
    schedule_of(net)
    templates.check()
    (steps,) = templates.lengthened
    assert steps == len(templates.pairs[-1][0].steps)


@pytest.mark.parametrize("seed", range(4))
def test_results_are_the_same(seed: int) -> None:
    def results() -> list[np.ndarray]:
        found = Layers(seed, 24)()
        found[0].realize(*found[1:])
        return [t.numpy() for t in found]

    by_layers = results()
    clear_cache()
    with patch.object(built, "find_repeat", lambda order: None):
        whole = results()
    for one, other in zip(by_layers, whole, strict=True):
        np.testing.assert_array_equal(one, other)


def test_equal_layers_are_not_looked_at_one_by_one(templates: Built) -> None:
    """What scheduling does to a network grows with its layers only where they are listed."""
    sizes: list[int] = []
    list_steps = built._list_steps

    def counted(graph: UOp, params: Sequence[UOp]) -> StepList:
        sizes.append(len(toposort(graph)))
        return list_steps(graph, params)

    with patch.object(built, "_list_steps", counted):
        for count in (20, 40, 80):
            net = Layers(0, count)
            net.way, net.parts = alike, [residual, norm]
            templates.build(normalise([t.uop for t in net()]).sink)
    assert len(sizes) == 3 and len(set(sizes)) == 1


def test_depth_does_not_change_a_layer() -> None:
    """Costs know only so many buffers below a node: the layer where they are too many is one like others."""

    def kernels(count: int) -> set[UOp]:
        net = Layers(0, count)
        net.way, net.parts = alike, [attention, gelu]
        with patch.object(built, "find_repeat", lambda order: None):
            template = built.build_template(normalise([t.uop for t in net()]).sink)
        return {step.ast for step in template.steps}

    assert kernels(24) == kernels(12)
