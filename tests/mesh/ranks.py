"""What a rank takes for steps of a GPT: `ranks.py KIND STEPS [WIDTH LENGTH LAYERS]`, run on ranks or planned.

Prints memory, bytes by the plan and as the engine has counted them, and the seconds of a step.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

from morok import Tensor, knobs, nn
from morok import distributed as dist
from morok.device.registry import get_device
from tests.mesh import gpt


def measure(kind: str, steps: int) -> dict[str, Any]:
    model, mesh, put = gpt.build(kind, dist.processes())
    optimizer = nn.Adam(nn.parameters(model), lr=0.01)
    step = gpt.compiled_step(model, mesh, kind, optimizer)
    x, y = (put(Tensor(part)).realize() for part in gpt.batch(0))
    times, sent = [], {}
    for _ in range(steps):
        traffic = gpt.engine_of(mesh).traffic
        traffic.clear()
        started = time.perf_counter()
        step(x, y).realize()
        sent = dict(traffic.sent)
        times.append(time.perf_counter() - started)
    (plan,) = step.plans
    allocator = get_device(knobs.default_device()).allocator
    return {
        "peak": allocator.peak,
        "kept": allocator.used,
        "planned": plan.wire_bytes,
        "sent": sent,
        "seconds": statistics.median(times[2:]) if steps > 2 else None,
    }


if __name__ == "__main__":
    kind, steps, *sizes = sys.argv[1:]
    if sizes:
        gpt.WIDTH, gpt.LENGTH, gpt.LAYERS = map(int, sizes)
    found = measure(kind, int(steps))
    if dist.rank() == 0:
        print(json.dumps(found))
