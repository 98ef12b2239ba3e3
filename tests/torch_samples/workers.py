"""Operators judged in several processes: each takes what is next, and one that hangs is ended."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from tests.torch_samples.judge import Verdict, database, judged, sample_count

SHARE = 24  # samples that one process judges at a time, of operators that have many
HEAVY = ("linalg.", "nn.functional.ctc_loss", "pinverse", "svd")  # loops, which take longer than others


class Task(NamedTuple):
    """Some samples of an operator."""

    name: str
    share: tuple[int, int]


def _serve(pipe: Connection, most: int, gradients: bool, seconds: float) -> None:
    """What a process does: tasks come in, verdicts go out, until there is none left."""
    import torch

    torch.set_num_threads(1)
    known = database()
    while (task := pipe.recv()) is not None:
        pipe.send(judged(task.name, known.get(task.name), most, gradients, task.share, seconds))


class _Worker:
    def __init__(self, *how: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, *how), daemon=True)
        self.process.start()
        theirs.close()
        self.task: Task | None = None
        self.since = 0.0

    def give(self, task: Task | None) -> None:
        self.task, self.since = task, time.perf_counter()
        self.pipe.send(task)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def tasks(names: list[str], most: int) -> list[Task]:
    """Everything that is to be judged, what takes longest first."""
    known = database()
    found: list[tuple[int, Task]] = []
    for name in names:
        count = sample_count(known[name]) if name in known else 0
        count = min(count, most) if most else count
        count *= 6 if name.startswith(HEAVY) else 1
        parts = max(1, -(-count // SHARE))
        found += [(count // parts, Task(name, (i, parts))) for i in range(parts)]
    return [task for _, task in sorted(found, key=lambda pair: -pair[0])]


def judged_by_many(
    names: list[str], workers: int, most: int, gradients: bool, seconds: float
) -> Iterator[Verdict]:
    """The verdicts as they come, one for each operator when the last of its samples is done."""
    queue = tasks(names, most)
    missing = {task.name: task.share[1] for task in queue}
    sums: dict[str, Verdict] = {}
    how = (most, gradients, seconds)
    busy = [_Worker(*how) for _ in range(min(workers, len(queue)))]
    queue.reverse()
    for worker in busy:
        worker.give(queue.pop())
    while busy:
        wait([worker.pipe for worker in busy], timeout=1.0)
        for worker in list(busy):
            verdict = _heard(worker, seconds)
            if verdict is None:
                continue
            name = verdict.name
            sums[name] = sums[name].joined(verdict) if name in sums else verdict
            missing[name] -= 1
            if not missing[name]:
                yield sums.pop(name)
            if worker.task is None or not queue:
                busy.remove(worker)
                worker.end()
            if worker.task is None and queue:
                worker = _Worker(*how)
                busy.append(worker)
            if queue:
                worker.give(queue.pop())


def _heard(worker: _Worker, seconds: float) -> Verdict | None:
    """What a process has found; that it took too long, or died, is found as well."""
    task = worker.task
    assert task is not None
    if worker.pipe.poll():
        try:
            verdict: Verdict = worker.pipe.recv()
            return verdict
        except EOFError:
            worker.task = None
            return Verdict(task.name, raised=["!the process died"])
    # the process itself stops between samples: this is for one that does not come back
    if time.perf_counter() - worker.since > 2.0 * seconds + 60.0:
        worker.process.kill()
        worker.task = None
        return Verdict(task.name, left=1)
    return None
