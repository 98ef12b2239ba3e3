"""Assignments that read what they overwrite.

If each element is read at its own place only, or what is read lies apart from what is written, the kernel
writes in place. Otherwise an element could be gone
before its last reader comes, so the value goes into memory of its own first and is copied from there.
"""

from __future__ import annotations

from morok.ir.memory import base_of
from morok.schedule.kernels import lower, normal_form
from morok.schedule.order import Reads
from morok.schedule.split import Draft, Split, capacity, memory_view


def use_temporaries(split: Split, reads: dict[Draft, Reads]) -> bool:
    """Gives assignments that need one a temporary; whether there was any."""
    drafts: list[Draft] = []
    number = max((d.number for d in split.drafts), default=0)
    for draft in split.drafts:
        memory = base_of(draft.target)
        if draft.kind == "kernel" and memory in reads[draft].memory:
            if not lower(normal_form([draft]).sink).is_safe:
                number += 1
                drafts.append(_through_temporary(split, draft, number))
        drafts.append(draft)
    changed = len(drafts) != len(split.drafts)
    split.drafts = drafts
    return changed


def _through_temporary(split: Split, draft: Draft, number: int) -> Draft:
    """A new draft that computes the value; the old one copies its result."""
    param = split.new_param(draft.value, capacity(draft.value), draft.device)
    first = Draft(number, memory_view(param, draft.value), draft.value, draft.device, draft.origin)
    draft.value = first.written
    return first
