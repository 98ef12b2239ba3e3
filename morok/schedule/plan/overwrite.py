"""Assignments that read what they overwrite.

If each element is read at its own place only, or what is read lies apart from what is written, the kernel
writes in place. Otherwise an element could be gone
before its last reader comes, so the value goes into memory of its own first and is copied from there.
"""

from __future__ import annotations

from morok.ir.memory import base_of
from morok.schedule.plan.kernels import lower, normal_form
from morok.schedule.plan.order import Reads
from morok.schedule.split import KernelWrite, Split, capacity, memory_view


def use_temporaries(split: Split, reads: dict[KernelWrite, Reads]) -> bool:
    """Gives assignments that need one a temporary; whether there was any."""
    writes: list[KernelWrite] = []
    number = max((d.number for d in split.writes), default=0)
    for write in split.writes:
        memory = base_of(write.target)
        if write.kind == "kernel" and memory in reads[write].memory:
            if not lower(normal_form([write]).sink).is_safe:
                number += 1
                writes.append(_through_temporary(split, write, number))
        writes.append(write)
    changed = len(writes) != len(split.writes)
    split.writes = writes
    return changed


def _through_temporary(split: Split, write: KernelWrite, number: int) -> KernelWrite:
    """A new write that computes the value; the old one copies its result."""
    param = split.new_param(write.value, capacity(write.value), write.device)
    first = KernelWrite(number, memory_view(param, write.value), write.value, write.device, write.origin)
    write.value = first.result_view
    return first
