"""Plans for an H200 without one: what the table of programs and the check of fusion share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from morok import Tensor
from morok.device.cuda.interface import Facts
from morok.device.registry import get_device
from morok.ir.infer import closed_ranges, ranges
from morok.ir.node import UOp, toposort
from morok.ir.ops import Ops
from morok.machine.machine import Machine
from morok.optimize.contraction import find_contraction
from morok.optimize.facts import trips
from morok.optimize.heuristics.apply import optimize
from morok.optimize.record import applied
from morok.schedule.schedule import schedule
from tests.device.cuda.fake_gpu import FakeDriver, fake_gpus

H200 = Facts("H200", (9, 0), 140 << 30, 132, 1024, 227 << 10, 60 << 20, 13000)
HEAVY = 1 << 24  # steps of a reduction that counts


@contextmanager
def an_h200() -> Iterator[Machine]:
    """Inside, CUDA is an H200 that computes nothing."""
    driver = FakeDriver()
    driver.facts = H200
    with fake_gpus(driver):
        yield get_device("CUDA").machine


def empty(*shape: int, dtype: str = "bfloat16") -> Tensor:
    return Tensor.empty(*shape, dtype=dtype, device="CUDA")


class Planned(NamedTuple):
    """A kernel with its plan."""

    before: UOp
    ast: UOp
    names: list[str]

    @property
    def reductions(self) -> list[UOp]:
        return [n for n in toposort(self.before) if n.op is Ops.REDUCE]

    @property
    def steps(self) -> int:
        """Of the largest reduction, all outputs together."""
        found = [ranges(n) | frozenset(closed_ranges(n)) for n in self.reductions]
        return max((_points(alive) for alive in found), default=0)

    @property
    def is_product(self) -> bool:
        return find_contraction(self.before) is not None and self.steps >= HEAVY

    @property
    def on_unit(self) -> bool:
        return "TC" in self.names

    @property
    def is_tiled(self) -> bool:
        return "STAGE" in self.names

    @property
    def shares(self) -> bool:
        """Whether threads share its reductions."""
        return "GROUP" in self.names


def _points(loops: frozenset[UOp]) -> int:
    total = 1
    for r in loops:
        total *= trips(r) if r.op is Ops.RANGE else 1
    return total


def planned(results: Sequence[UOp], machine: Machine) -> list[Planned]:
    """The kernels of some results, with the actions that the heuristics choose."""
    found = []
    for item in schedule(list(results)).items:
        ast = optimize(item.ast, machine)
        found.append(Planned(item.ast, ast, [opt.name for opt in applied(ast)]))
    return found
