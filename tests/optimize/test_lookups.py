"""Programs that look elements up at places: what their kernels must have, on a processor and on an H200.

A lookup is a read: no loop goes over what might be read, and places that are known to be there, or are cut to
be, are not asked about. The gradient of known places reads as well, and puts nothing in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.device.registry import get_device
from morok.ir.node import toposort
from morok.ir.ops import Ops
from morok.optimize.facts import output_loops, reads_of, store_of, trips
from morok.optimize.record import applied
from morok.schedule.graph import fusion
from morok.schedule.schedule import schedule
from morok.tensor.arrays.radix import sorted_by_digits
from tests.optimize.plans import an_h200, planned

Results = Sequence[Tensor]


class Row(NamedTuple):
    """A program of tensors on a device, and how many kernels are enough."""

    make: Callable[[str], Results]
    most: int


def image(device: str, *shape: int) -> Tensor:
    return Tensor.empty(*shape, dtype="float32", device=device)


def resized(training: bool = False, **how: Any) -> Callable[[str], Results]:
    def make(device: str) -> Results:
        x = image(device, 4, 16, 56, 56)
        y = x.interpolate(**how)
        return y.gradient(x, gradient=image(device, *(int(str(n)) for n in y.shape))) if training else (y,)

    return make


def sampled(mode: str, border: str) -> Callable[[str], Results]:
    def make(device: str) -> Results:
        grid = image(device, 4, 56, 56, 2)
        return (image(device, 4, 16, 56, 56).grid_sample(grid, mode, border, align_corners=False),)

    return make


def taken(device: str) -> Results:
    return (image(device, 64, 100)[:, [3, 1, 4, 1, 5]],)


# one pass along each axis at most, and one for places and weights
TABLE: dict[str, Row] = {
    "bilinear, twice": Row(resized(scale_factor=2, mode="bilinear"), 2),
    "bilinear, half": Row(resized(scale_factor=0.5, mode="bilinear"), 2),
    "bilinear, 1.7": Row(resized(scale_factor=1.7, mode="bilinear"), 2),
    "bilinear to primes": Row(resized(size=(31, 97), mode="bilinear", align_corners=True), 2),
    "bilinear, twice, gradient": Row(resized(True, scale_factor=2, mode="bilinear"), 2),
    "bilinear, half, gradient": Row(resized(True, scale_factor=0.5, mode="bilinear"), 2),
    "bilinear, 1.7, gradient": Row(resized(True, scale_factor=1.7, mode="bilinear"), 2),
    "bicubic, twice": Row(resized(scale_factor=2, mode="bicubic"), 2),
    "bicubic, 1.7, gradient": Row(resized(True, scale_factor=1.7, mode="bicubic"), 2),
    "nearest, 1.7": Row(resized(scale_factor=1.7, mode="nearest"), 2),
    "nearest, 1.7, gradient": Row(resized(True, scale_factor=1.7, mode="nearest"), 2),
    "grid, bilinear": Row(sampled("bilinear", "zeros"), 2),
    "grid, bilinear, border": Row(sampled("bilinear", "border"), 2),
    "grid, nearest, mirrored": Row(sampled("nearest", "reflection"), 2),
    "columns": Row(taken, 1),
}


@pytest.mark.parametrize("device", ["CPU", "CUDA"])
@pytest.mark.parametrize("name", TABLE)
def test_lookups_are_reads(name: str, device: str) -> None:
    row = TABLE[name]
    with an_h200() if device == "CUDA" else nullcontext():
        kernels = [item.ast for item in schedule([t.uop for t in row.make(device)]).items]
    assert len(kernels) <= row.most
    for kernel in kernels:
        nodes = toposort(kernel)
        assert not any(n.op in (Ops.REDUCE, Ops.CHECK) for n in nodes)
        assert not any(n.op is Ops.INDEX and len(n.src) > 2 for n in nodes), (
            "it asks whether a place is there"
        )


def test_a_processor_computes_places_once_for_all_channels() -> None:
    kernels = [i.ast for i in schedule([t.uop for t in sampled("bilinear", "zeros")("CPU")]).items]
    assert len(kernels) == 2
    assert not any(n.op in (Ops.FLOOR, Ops.TRUNC) for n in toposort(kernels[-1]))


def test_columns_of_several_reductions_are_cut_once() -> None:
    """Softmax along an axis before the last: 256 lanes in one body take compilers many seconds."""
    machine = get_device("CPU").machine
    (kernel,) = planned([Tensor.empty(16, 128, 256, dtype="float32", device="CPU").softmax(1).uop], machine)
    lanes: dict[int, int] = {}
    for opt in applied(kernel.ast):
        if opt.name == "UPCAST":
            lanes[opt.axis] = lanes.get(opt.axis, 1) * int(opt.amount)
    assert lanes and max(lanes.values()) <= 64, lanes


def _with_reductions(*results: Tensor) -> list[bool]:
    items = schedule([t.uop for t in results]).items
    return [any(n.op is Ops.REDUCE for n in toposort(item.ast)) for item in items]


def test_a_lookup_is_not_torn_apart_where_a_kernel_gets_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion, "MAX_CODE", 5)
    x, places = image("CPU", 300), Tensor.empty(2, 500, dtype="int32", device="CPU")
    y = (x[places[0]] * 0.5 + 1.0).abs() * 0.25 - 3.0
    assert not any(_with_reductions(y + x[places[1]] * y))


def test_what_is_looked_up_often_is_computed_before() -> None:
    x, places = image("CPU", 1000), np.arange(200000) * 7 % 1000
    assert len(_with_reductions(x.tan()[places])) == 2
    assert len(_with_reductions(x.tan()[places[:500]])) == 1


def test_a_processor_computes_what_outer_loops_share_once() -> None:
    x = image("CPU", 256, 4096)
    assert len(_with_reductions(x * image("CPU", 4096).sin().exp())) == 2
    assert len(_with_reductions(x * image("CPU", 256, 1).sin().exp())) == 1
    assert len(_with_reductions(x * (image("CPU", 4096) + 1.0))) == 1


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_sum_that_reads_nothing_along_its_loop_leaves_rows_alone(smoothing: float) -> None:
    """A gradient of a loss: rows are read in order, and one label for each of them does not change that."""
    x, labels = image("CPU", 256, 1000), Tensor.empty(256, dtype="int64", device="CPU")
    (g,) = x.cross_entropy(labels, label_smoothing=smoothing).gradient(x)
    (kernel,) = planned([g.uop], get_device("CPU").machine)
    assert "ACCUMULATE_IN_CACHE" not in kernel.names
    assert not any(opt.name == "UPCAST" and opt.axis == 0 for opt in applied(kernel.ast))


def test_a_sum_of_negated_choices_needs_no_loop() -> None:
    x, labels = image("CPU", 256, 1000), Tensor.empty(256, dtype="int64", device="CPU")
    (g,) = x.cross_entropy(labels).gradient(x)
    (item,) = schedule([g.uop]).items
    along = [n for n in toposort(item.ast) if n.op is Ops.REDUCE]
    assert len(along) == 3, "the largest of a row, its sum, and how many labels count"


def test_windows_of_windows_are_two_kernels_on_a_processor() -> None:
    """An opening of an image: nine times nine elements for each output, or nine and nine."""

    def largest(x: Tensor) -> Tensor:
        y: Tensor = x.max_pool2d(3, stride=1, padding=1)
        return y

    assert len(_with_reductions(-largest(-largest(image("CPU", 4, 3, 128, 128))))) == 2
    pooled = image("CPU", 4, 3, 128, 128).max_pool2d(2).max_pool2d(2)
    assert len(_with_reductions(pooled)) == 1, "nothing is computed twice"


@pytest.mark.parametrize(
    ("machine", "axes"),
    [("neoverse-n1", [2]), ("avx2", [2]), ("avx512", [2, 5])],  # 784 places are 6 · 128 and a rest, axis 5
)
def test_vectors_are_for_outputs_that_share_a_small_product(machine: str, axes: list[int]) -> None:
    """Channels weighted by a small layer: most of the work is the image."""
    with knobs.override(MACHINE=machine):
        chip = get_device("CPU").machine
        x, a, b = image("CPU", 8, 64, 28, 28), image("CPU", 8, 16), image("CPU", 64, 16)
        (kernel,) = planned([(x * a.linear(b).sigmoid()[:, :, None, None]).uop], chip)
    assert [opt.axis for opt in applied(kernel.ast) if opt.name == "UPCAST"] == axes
    assert ("PEEL" in kernel.names) == (5 in axes)


def test_what_a_digit_asks_of_all_tiles_lies_side_by_side() -> None:
    """A pass of a sort by digits: sixteen counts of each tile, from one word of it."""
    x = Tensor.empty(1, 1600, dtype="int64", device="CPU")
    (in_order,) = sorted_by_digits(x, 4, 0, lambda y: y)
    found = [item.ast.src[0] for item in schedule([in_order.uop]).items]
    counts = [e for e in found if [trips(r) for r in output_loops(e)] == [16, 100]]
    assert counts
    for effect in counts:
        assert {a.step(output_loops(effect)[-1]) for a in reads_of(store_of(effect).src[1])} == {1}
