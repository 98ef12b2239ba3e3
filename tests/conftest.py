"""What all tests share: strict IR checks, hypothesis profiles, golden files, and proofs of bounds."""

import importlib.util
import os
import time

# Before anything of morok is imported: the options are read once.
os.environ.setdefault("MOROK_SPEC", "2")
# Tests look at how schedules are made, and some change the scheduler to see that it is noticed.
os.environ.setdefault("MOROK_CACHE_PLANS", "0")
os.environ.setdefault("MOROK_COMPILE_PROCESSES", "1")  # tests share the cores already

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from morok.device import prove
from tests import accesses

_QUIET = (HealthCheck.too_slow, HealthCheck.data_too_large)
# By hand every run looks at new examples, and a failure prints the blob that reproduces it. A gate must give
# the same answer for the same code, so there the examples follow from the tests themselves.
settings.register_profile(
    "default",
    max_examples=60,
    deadline=None,
    print_blob=True,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=_QUIET,
)
settings.register_profile("slow", settings.get_profile("default"), max_examples=2000, phases=tuple(Phase))
settings.load_profile("default")

WATCH = pytest.StashKey[accesses.Watch]()
STARTED = time.perf_counter()
_seconds: list[float] = []  # of each process that has run tests
GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files instead of comparing"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden("name.txt", text)`: the text must be what the file in tests/golden says.

    A missing file fails: a golden test that nobody has looked at proves nothing. Write it with
    `pytest --update-golden`, then read the diff.
    """

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(
                f"there is no golden file {name}; look at the text below, then run --update-golden\n{text}"
            )
        assert text == path.read_text(encoding="utf-8"), f"{name} differs; --update-golden rewrites it"

    return check


# --- every kernel of every test


def _open_device() -> None:
    """One sentence instead of a thousand failures, where the device that DEVICE names is not there."""
    from morok import knobs
    from morok.device.registry import canonical, get_device
    from morok.errors import MorokError

    if knobs.DEVICE.start:
        try:
            get_device(canonical(knobs.DEVICE.start))
        except MorokError as error:
            raise pytest.UsageError(f"nothing to test: {error}") from None


def pytest_configure(config: pytest.Config) -> None:
    _open_device()
    if importlib.util.find_spec("z3") is not None:
        prove.without_report()
        config.stash[WATCH] = watch = accesses.Watch()
        accesses.install(watch)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker hands over what it has found; whoever has no workers fails if something stayed open."""
    watch = session.config.stash.get(WATCH, None)
    if watch is None:
        return
    seconds = time.perf_counter() - STARTED
    worker = getattr(session.config, "workeroutput", None)
    if worker is not None:
        worker["accesses"] = watch.summary()
        worker["proved"] = prove.totals.summary()
        worker["seconds"] = seconds
        return
    if not _seconds:
        _seconds.append(seconds)
    if (watch.open or prove.totals.unproved) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """The other side of it, in the process that has workers."""
    watch = node.config.stash.get(WATCH, None)
    found = getattr(node, "workeroutput", {}).get("accesses")
    if watch is not None and found is not None:
        watch.add(found)
        prove.totals.add(node.workeroutput["proved"])
        _seconds.append(node.workeroutput["seconds"])


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    watch = config.stash.get(WATCH, None)
    if watch is None or not watch.counts:
        return
    terminalreporter.write_line(watch.report())
    if prove.totals.kernels + prove.totals.stored:  # under PROVE
        terminalreporter.write_line(prove.totals.report(), red=bool(prove.totals.unproved))
        took = f"{prove.totals.seconds:.1f} s of {sum(_seconds):.1f} s of all processes"
        terminalreporter.write_line(f"PROVE: proving took {took}")
    for text in watch.open:
        terminalreporter.write_line(f"neither proved nor refuted: {text}", red=True)
