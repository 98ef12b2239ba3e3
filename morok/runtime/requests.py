"""How often kernels were asked for, for whoever tells about a process."""

from __future__ import annotations

from typing import final


@final
class Requests:
    """How often kernels were asked for since the process started, and where they came from."""

    __slots__ = ("compiled", "from_disk", "remembered")

    def __init__(self) -> None:
        self.compiled = self.from_disk = self.remembered = 0


requests = Requests()
