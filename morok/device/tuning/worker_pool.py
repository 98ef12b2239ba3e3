"""Worker processes for a search, seen from the process that searches.

Every wait has an end: a worker that does not answer in time, or that is gone, is killed and replaced, and its
candidate counts as failed. Compiling is done by all of them side by side; timing by one, while the others
have nothing to do.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import final

import morok
from morok import knobs
from morok.device.tuning.worker import Message, as_bytes, opts_to
from morok.ir.node import UOp
from morok.ir.python_form import to_python
from morok.optimize.record import Opt
from morok.optimize.search.race import PairedTiming

LONGEST_BUILD = 15.0  # seconds for one candidate
SLOW_BUILD = 4.0  # times as long as the first one took: whatever that makes, all others would wait for it
SHORT_BUILD = 2.0  # seconds that everybody gets
LONGEST_END = 1.0  # seconds that are waited for a killed process
OPENER = "morok.device.registry:get_device"
_BOOT = "import sys; sys.path.insert(0, {root!r}); from morok.device.tuning.worker import main; main()"
# Options of the process that searches which its workers had better not follow.
_OWN = ("DEBUG", "PROFILE", "DUMP", "STOP_AFTER", "PROVE", "BEAM", "EXPLAIN", "SPEC", "NOOPT")

Answer = tuple[Message, bytes]


@final
class Worker:
    """One process. Nothing here waits: what goes out and what comes in lie in memory until they are moved."""

    def __init__(self) -> None:
        root = str(Path(morok.__file__).parents[1])
        self.process = subprocess.Popen(
            [sys.executable, "-c", _BOOT.format(root=root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.input, self.output = self.process.stdin, self.process.stdout
        os.set_blocking(self.input.fileno(), False)
        os.set_blocking(self.output.fileno(), False)
        self.outgoing = bytearray()
        self.incoming = bytearray()
        self.unanswered = 0
        self.is_gone = False

    def post(self, message: Message, blob: bytes = b"") -> None:
        """Asks for something; the answers come in the order of the questions."""
        self.outgoing += as_bytes(message, blob)
        self.unanswered += 1

    def write(self) -> None:
        """Moves on what the pipe takes."""
        try:
            sent = os.write(self.input.fileno(), self.outgoing[: 1 << 16])
            del self.outgoing[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self.is_gone = True

    def read(self) -> None:
        """Takes in what the pipe holds."""
        try:
            part = os.read(self.output.fileno(), 1 << 20)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        self.incoming += part
        self.is_gone = self.is_gone or not part

    def answer(self) -> Answer | None:
        """The next answer, if all of it is there."""
        head = self.incoming.find(b"\n")
        if head < 0:
            return None
        message: Message = json.loads(self.incoming[:head])
        end = head + 1 + message["bytes"]
        if len(self.incoming) < end:
            return None
        blob = bytes(self.incoming[head + 1 : end])
        del self.incoming[:end]
        self.unanswered -= 1
        return message, blob

    def kill(self) -> None:
        """Ends the process, whatever it does. One that a driver does not let go of is left to the system."""
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(LONGEST_END)
        for pipe in (self.input, self.output):
            with contextlib.suppress(OSError):
                pipe.close()


@final
class WorkerPool:
    """The bench of a search: builds and times what candidates make of one kernel on one device."""

    def __init__(self, device: str, count: int, opener: str = OPENER) -> None:
        self.device = device
        self.opener = opener
        self.knobs = {name: k.default if name in _OWN else k.value for name, k in knobs.KNOBS.items()}
        self.text = b""
        self.end = 0.0
        self.codes: list[bytes] = []
        self.opts: list[str] = []  # what each was made with
        self.complaints: list[str] = []  # what went wrong with candidates
        self.killed = 0
        self.usual: float | None = None  # seconds of a build
        self._process = os.getpid()
        self.workers = [self._spawn() for _ in range(max(1, count))]

    @property
    def places(self) -> int:
        """How many candidates are built side by side."""
        return len(self.workers)

    def now(self) -> float:
        return time.perf_counter()

    def start(self, ast: UOp, seconds: float) -> None:
        """From now on, and for so long, candidates are about this kernel."""
        self.text = to_python(ast).encode()
        self.end = self.now() + seconds
        self.codes, self.opts, self.complaints, self.killed, self.usual = [], [], [], 0, None
        for worker in self.workers:
            worker.post({"do": "kernel"}, self.text)

    def build(self, candidates: Sequence[Sequence[Opt]], until: float) -> list[int | None]:
        """Compiles side by side; the numbers by which `sample` knows them."""
        found: list[int | None] = [None] * len(candidates)
        waiting = list(enumerate(candidates))[::-1]
        jobs: dict[Worker, tuple[int, float]] = {}  # the candidate, and when it is too late
        while (waiting or jobs) and self.now() < until:
            for worker in self.workers:
                if worker not in jobs and waiting:
                    number, opts = waiting.pop()
                    jobs[worker] = number, min(until, self.now() + LONGEST_BUILD)
                    worker.post({"do": "build", "opts": opts_to(opts)})
                if worker in jobs and worker.unanswered == 1:  # before that it is getting ready
                    number, deadline = jobs[worker]
                    jobs[worker] = number, min(deadline, self.now() + self._patience())
            self._move(min((deadline for _, deadline in jobs.values()), default=until))
            for worker, (number, deadline) in list(jobs.items()):
                answer = self._last_answer(worker)
                if answer is not None:
                    del jobs[worker]
                    found[number] = self._built(answer, candidates[number])
                elif worker.is_gone or self.now() >= deadline:
                    del jobs[worker]
                    self._replace(worker, _said(candidates[number]))
        for worker in jobs:
            self._replace(worker)
        return found

    def _patience(self) -> float:
        """Seconds for a candidate, by what the first one took: the heuristics' own."""
        if self.usual is None:
            return LONGEST_BUILD
        return min(LONGEST_BUILD, max(SHORT_BUILD, SLOW_BUILD * self.usual))

    def sample(self, built: object, cutoff: float, until: float) -> float | None:
        """Times one candidate."""
        assert isinstance(built, int)
        limit = min(cutoff, 1e9)  # JSON knows no infinity
        message = {"do": "time", "number": built, "cutoff": limit}
        answer = self._ask(message, self.codes[built], until, self.opts[built])
        return None if answer is None or "seconds" not in answer else float(answer["seconds"])

    def race(self, old: object, new: object, seconds: float, until: float) -> list[PairedTiming] | None:
        """Times two candidates in turns, in one process."""
        assert isinstance(old, int)
        assert isinstance(new, int)
        first, second = self.codes[old], self.codes[new]
        message = {"do": "race", "old": old, "new": new, "cut": len(first), "seconds": seconds}
        answer = self._ask(message, first + second, until, self.opts[new])
        return (
            None
            if answer is None or "timings" not in answer
            else [PairedTiming(*row) for row in answer["timings"]]
        )

    def _ask(self, message: Message, blob: bytes, until: float, opts: str) -> Message | None:
        """Has the one that times do something. If it has to be started first, that costs the search only."""
        asked = self.now()
        worker = self.workers[0]
        while worker.unanswered and not worker.is_gone and self.now() < self.end:
            self._move(self.end)
            while worker.answer() is not None:
                pass
        until = min(self.end, until + self.now() - asked)
        if self.now() >= until:
            return None
        worker.post(message, blob)
        while self.now() < until and not worker.is_gone:
            self._move(until)
            answer = self._last_answer(worker)
            if answer is not None:
                self._complain(answer[0], opts)
                if answer[0].get("lost"):  # a fault in a kernel: everything else would fail there, too
                    self._replace(worker, opts)
                return answer[0]
        self._replace(worker, opts)
        return None

    def close(self) -> None:
        """Ends all processes."""
        if self._process == os.getpid():
            for worker in self.workers:
                worker.kill()
        self.workers = []

    # --- single workers

    def _spawn(self) -> Worker:
        worker = Worker()
        open_ = {"do": "open", "path": sys.path, "knobs": self.knobs}
        worker.post({**open_, "opener": self.opener, "device": self.device})
        if self.text:
            worker.post({"do": "kernel"}, self.text)
        return worker

    def _replace(self, worker: Worker, opts: str = "") -> None:
        """Kills a worker; another takes its place and learns what this one knew."""
        self.complaints.append(
            ("killed: it crashed" if worker.is_gone else "killed: it took too long")
            + f", {opts}" * bool(opts)
        )
        self.killed += 1
        worker.kill()
        self.workers[self.workers.index(worker)] = self._spawn()

    def _move(self, until: float) -> None:
        """Moves bytes to and from all workers, at least once or until then."""
        with selectors.DefaultSelector() as selector:
            for worker in self.workers:
                if worker.is_gone:
                    continue
                selector.register(worker.output, selectors.EVENT_READ, worker.read)
                if worker.outgoing:
                    selector.register(worker.input, selectors.EVENT_WRITE, worker.write)
            for key, _ in selector.select(max(0.0, until - self.now())):
                key.data()

    def _last_answer(self, worker: Worker) -> Answer | None:
        """The answer to the last question, if it has come; earlier ones only said that all is well."""
        while (answer := worker.answer()) is not None:
            if not worker.unanswered:
                return answer
            self._complain(answer[0])
        return None

    def _built(self, answer: Answer, opts: Sequence[Opt]) -> int | None:
        if not self._complain(answer[0], _said(opts)):
            self.codes.append(answer[1])
            self.opts.append(_said(opts))
            if self.usual is None:
                self.usual = float(answer[0]["took"])
            return len(self.codes) - 1
        return None

    def _complain(self, message: Message, opts: str = "") -> bool:
        if "error" in message:
            self.complaints.append(message["error"] + f", {opts}" * bool(opts))
        return "error" in message


def _said(opts: Sequence[Opt]) -> str:
    return f"after {' '.join(map(str, opts))}" if opts else "as it was"
