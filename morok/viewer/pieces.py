"""Chunks of a page, made and packed on all cores.

A run has ended when its page is made, so its cores are free: forked children of the process make chunks in
turns with it (`device/processes.py`). A child numbers files as the process did when it was forked. What has
found another file, or has failed, is made once more here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from morok import knobs
from morok.device.cpu.threads import available_cores
from morok.device.processes import can_fork, shared_out
from morok.viewer.page import packed
from morok.viewer.sources import Sources

Data = dict[str, Any]
Piece = Callable[[], tuple[Data, Data]]  # what the index says of it, and the chunk
FEW = 3  # pieces that are not worth another process


def process_count(pieces: int) -> int:
    """How many processes make so many pieces."""
    if pieces < FEW or not can_fork() or knobs.PROVE.value:  # the solver has threads, which do not come along
        return 1
    return min(pieces, knobs.COMPILE_PROCESSES.value or available_cores())


def all_pieces(pieces: Sequence[Piece], sources: Sources, processes: int) -> list[tuple[Data, str]]:
    """Each piece's part of the index, and its packed chunk."""
    here, known = os.getpid(), len(sources.files)

    def made(number: int) -> bytes:
        entry, chunk = pieces[number]()
        if os.getpid() != here and len(sources.files) > known:
            return b""
        return json.dumps([entry, packed(chunk)]).encode()

    found = shared_out(len(pieces), made, processes) if processes > 1 else {}
    whole = [found.get(number) or made(number) for number in range(len(pieces))]
    return [(entry, chunk) for entry, chunk in map(json.loads, whole)]
