"""What the system does not let a process use is no part of its processor."""

from __future__ import annotations

import pytest

from morok.machine import permission
from morok.machine.choose import cpu_machine
from morok.machine.processor import Processor

TILES = Processor(
    "x86_64-unknown-linux-gnu", "sapphirerapids", "+avx2,+avx512f,-sse4a,+amx-tile,+amx-bf16,+amx-int8"
)


@pytest.mark.parametrize("allowed", [True, False])
def test_tiles_need_a_permission(allowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permission, "may_use_tiles", lambda: allowed)
    found = permission.permitted(TILES)
    assert ("amx-tile" in found.flags) is allowed
    assert bool(cpu_machine(found).tile_units) is allowed
    assert found.features.count("avx512f") == 1 and "-sse4a" in found.features


def test_nobody_asks_for_what_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permission, "may_use_tiles", lambda: pytest.fail("asked"))
    plain = Processor("x86_64-unknown-linux-gnu", "haswell", "+avx2")
    assert permission.permitted(plain) is plain
