"""Kernels that a program runs, with their memory before and after."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from morok.device.cpu import device
from morok.device.cpu.kernel import Steps
from morok.ir.checks import memory_of
from morok.ir.node import UOp
from tests.avx512.bochs import Job

MOST_BYTES = 4 << 20  # of a kernel's memory; an emulated processor is slow


@contextmanager
def recorded() -> Iterator[dict[str, Job]]:
    """Every kernel that is compiled for another processor and runs here meanwhile, by its name."""
    jobs: dict[str, Job] = {}
    known: dict[str, tuple[str, dict[int, int]]] = {}  # text, and bytes of the buffers
    lower, begin, call = device.lower_program, Steps.__init__, Steps.__call__

    def lowered(ast: UOp, *rest: Any) -> Any:
        found = lower(ast, *rest)
        sizes = {number: elem.itemsize * size for number, (elem, size) in memory_of(ast).items()}
        known[found[0].name] = found[0].text, sizes
        return found

    def init(self: Steps, steps: Any) -> None:
        begin(self, steps)
        self.run = None

    def alone(kernel: Any, table: Any) -> None:
        one = object.__new__(Steps)
        begin(one, [(kernel, table)])
        call(one)

    def step_by_step(self: Steps) -> None:
        for kernel, table in self.held:
            name = kernel.compiled.name
            text, sizes = known.get(name, ("", {}))
            spans = [(table[i], sizes.get(i, 0)) for i in range(kernel.compiled.buffers)]
            small = sum(size for _, size in spans) <= MOST_BYTES and all(s >= 0 for _, s in spans)
            if name in jobs or name not in known or not small:
                alone(kernel, table)
                continue
            regions = _regions(spans)
            before = tuple([ctypes.string_at(lo, hi - lo) for lo, hi in regions])
            alone(kernel, table)
            after = tuple([ctypes.string_at(lo, hi - lo) for lo, hi in regions])
            values = tuple(table[len(spans) :])
            places = tuple([_place(regions, address) for address, _ in spans])
            jobs[name] = Job(name, text, kernel.compiled.scratch, places, values, before, after)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "lower_program", lowered)
        patch.setattr(Steps, "__init__", init)
        patch.setattr(Steps, "__call__", step_by_step)
        yield jobs


def _regions(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """From … to: what overlaps is one."""
    found: list[tuple[int, int]] = []
    for address, size in sorted(span for span in set(spans) if span[1]):
        if found and address < found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], address + size)
        else:
            found.append((address, address + size))
    return found


def _place(regions: list[tuple[int, int]], address: int) -> tuple[int, int] | None:
    for number, (lo, hi) in enumerate(regions):
        if lo <= address < hi:
            return number, address - lo
    return None
