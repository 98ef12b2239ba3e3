"""Where the tests that any device must pass are run: `DEVICE=EMULATOR make test` runs them there alone."""

import pytest

from morok import knobs
from morok.device.registry import canonical


def devices(*usual: str) -> tuple[str, ...]:
    """The device that the DEVICE knob names, else the usual ones."""
    return (canonical(knobs.DEVICE.start),) if knobs.DEVICE.start else usual


needs_host_memory = pytest.mark.skipif(
    knobs.DEVICE.start.upper().startswith(("CUDA", "EMULATOR")),
    reason="looks at memory that the host can reach",
)
