"""A training that stops and goes on: `resume.py KIND FIRST LAST [FROM] [TO]` prints the losses of some steps.

Run it alone or under `morok run -n N`: what one run has left another one takes up.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from morok import Tensor, nn
from morok import distributed as dist
from morok.nn import schedules
from tests.mesh import gpt


def train(kind: str, count: int, steps: range, source: Any = None, target: Any = None) -> list[float]:
    """The losses of some steps; goes on from a checkpoint, and leaves one."""
    model, mesh, put = gpt.build(kind, count)
    optimizer = nn.AdamW(nn.parameters(model), lr=0.01)
    schedule = nn.Schedule(optimizer, schedules.cosine(20, warmup=3))
    if source is not None:
        assert dist.load_checkpoint(source, model, optimizer, schedule) == {"next": steps.start}
    step = gpt.compiled_step(model, mesh, kind, optimizer)
    losses = []
    for number in steps:
        losses.append(step(*(put(Tensor(part)).realize() for part in gpt.batch(number))).item())
        schedule.step()
    if target is not None:
        dist.save_checkpoint(target, model, optimizer, schedule, extra={"next": steps.stop})
    return losses


if __name__ == "__main__":
    kind, first, last, source, target = (*sys.argv[1:], "", "")[:5]
    found = train(kind, dist.processes(), range(int(first), int(last)), source or None, target or None)
    if dist.rank() == 0:
        print(json.dumps(found))
