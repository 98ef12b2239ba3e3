"""`with morok.view("run.html"):` records everything that is compiled and run inside, and writes it as a page.

    with morok.view("run.html"):
        model(x).realize()

An error is written as well, and goes on. Nothing is recorded outside of such a block, and costs nothing.
While it records, nothing is taken from memory or disk, and plans run kernel by kernel, so that each is timed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

from morok.device.dump import watching
from morok.errors import MorokError
from morok.runtime.profile import profile
from morok.viewer.record import RunProfile, RunRecorder

PROOF_SHARE, PROOF_SECONDS = 0.05, 0.25  # of the run's time, at least, in each process: longest kernels first


@final
class Run:
    """What was recorded; after the block also where it was written."""

    def __init__(self, title: str, paths: bool, prove: bool) -> None:
        self.title, self.paths, self.prove = title, paths, prove
        self.folder = os.getcwd()  # the program may go elsewhere
        self.recorder = RunRecorder()
        self.profile = RunProfile()
        self.errors: list[BaseException] = []
        self.path: Path | None = None
        self.seconds = 0.0
        self._searches = 0

    def data(self) -> tuple[dict[str, Any], list[str]]:
        """The run as plain data: the index, and the chunks that it names, packed."""
        from morok.runtime.tuning import tuner
        from morok.viewer.collect import Collector
        from morok.viewer.sources import Sources

        sources = Sources(self.paths, self.folder)
        seconds = 600.0 if self.prove else max(PROOF_SECONDS, PROOF_SHARE * self.seconds)
        collector = Collector(self.recorder, self.profile, sources, seconds, self.prove)
        index = collector.data(self.title, self.errors, tuner.history[self._searches :])
        index["seconds"] = round(self.seconds, 3)
        return index, collector.chunks


@contextmanager
def view(
    path: str | Path = "run.html", *, title: str = "", trace: str | Path = "", paths: bool = True,
    prove: bool = False,
) -> Iterator[Run]:  # fmt: skip
    """Records what is compiled and run inside, and writes it as one HTML file that needs nothing else.

    `trace` also writes the runs of kernels for Perfetto. Without `paths` files are called by their names.
    With `prove` every access is examined and every rule proved, however long that takes.
    """
    from morok.runtime.tuning import tuner

    run = Run(title or Path(path).stem, paths, prove)
    target, timeline = Path(path).absolute(), Path(trace).absolute() if trace else None
    run._searches = len(tuner.history)
    began = time.perf_counter()
    try:
        with profile(run.profile), watching(run.recorder):
            yield run
    except BaseException as error:
        ended = isinstance(error, SystemExit) and error.code in (None, 0)  # sys.exit() is no failure
        if not ended and not isinstance(error, GeneratorExit):
            run.errors.append(error)
        raise
    finally:
        run.seconds = time.perf_counter() - began
        _finish(run, target, timeline)


def _finish(run: Run, path: Path, trace: Path | None) -> None:
    """Writes the page; if that fails while an error is on its way, the error is the more important one."""
    from morok.viewer.page import write_page

    target = path
    try:
        index, chunks = run.data()
        run.path = write_page(path, index, chunks)
        run.recorder.changes.clear()  # graphs of a whole run, which nobody asks for any more
        if trace is not None:
            target = trace
            run.profile.chrome_trace(trace)
    except Exception as failure:
        if not run.errors:
            if isinstance(failure, OSError):
                raise MorokError(f"the page cannot be written to {target}: {failure.strerror}") from None
            raise
        print(f"morok: the page of the run could not be written: {failure}", file=sys.stderr)
