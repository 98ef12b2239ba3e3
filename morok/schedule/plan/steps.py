"""What a schedule is made of before it has buffers. Reading one from a file needs nothing else from here."""

from __future__ import annotations

from dataclasses import field
from typing import final

from morok.dtype import DType
from morok.dtype.records import record
from morok.ir.checks import Complaint
from morok.ir.node import UOp
from morok.ir.provenance import Origin, line_of


@final
@record(frozen=True)
class Check:
    """One place for a note, and what it means."""

    buffer: int  # the number of the buffer of notes
    slot: int
    complaint: Complaint
    limit: UOp  # positions lie below it
    dtype: DType  # of the position
    origin: Origin | None  # of the check in the normalised graph, which may be shared with other lines


@final
@record(frozen=True)
class Step:
    """A schedule item whose buffers are numbers."""

    ast: UOp
    buffers: tuple[int, ...]
    variables: tuple[str, ...]
    name: str
    origin: Origin | None = field(compare=False)  # in the normalised graph, which other lines may share
    flops: int
    bytes: int
    group: int
    starts: tuple[int, ...] = ()  # for each buffer the element that it begins with here; () if all with 0

    @property
    def place(self) -> str | None:
        return line_of(self.origin)


@final
@record(frozen=True)
class MemoryTemplate:
    """(number among the made buffers, device, offset, bytes) of each intermediate, and the totals."""

    places: tuple[tuple[int, str, int, int], ...]
    arenas: dict[str, int]
    output_bytes: int
    live_bytes: int


@final
@record(frozen=True)
class Template:
    """Everything about a schedule that does not depend on the buffers it runs on."""

    steps: tuple[Step, ...]
    results: tuple[UOp, ...]  # views of PARAMs
    made: tuple[tuple[DType, int, str], ...]  # buffers to make: type, size, device
    output_buffers: tuple[int, ...]
    memory: MemoryTemplate
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()  # how values lie on a mesh


@final
@record
class StepList:
    """Steps of a schedule before its memory is planned. Memory is numbered: first the caller's."""

    inputs: int
    made: list[tuple[DType, int, str]]
    steps: list[Step]
    shared: list[tuple[tuple[int, int], ...]]  # of each step: an output and an input that may be one memory
    results: tuple[UOp, ...]
    checks: list[Check]

    def add(self, step: Step, shared: tuple[tuple[int, int], ...] = ()) -> None:
        self.steps.append(step)
        self.shared.append(shared)
