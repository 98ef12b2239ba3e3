"""The tests that judge mutants: collected once, run item by item in the process of a mutant.

`inside` starts pytest, which collects, and then hands over instead of running what it has found; a process
that is forked from there has every test ready. Nothing is collected twice, nothing shrinks an example.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from types import CodeType, ModuleType
from typing import Any, final

import pytest

_OPTIONS = ("-q", "--no-header", "--no-summary", "--capture=no", "-k", "not golden")
_PLUGINS = ("-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist")
# What has rules is imported before pytest starts, and with it packages that bring a plugin.
_WARNINGS = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
Key = tuple[str, str]  # the module and the qualified name of a function


def quick_examples() -> Any:
    """Few examples, always the same ones, and none is made smaller."""
    from hypothesis import HealthCheck, Phase, settings  # pytest wants to import it first

    settings.register_profile(
        "mutants", max_examples=40, derandomize=True, deadline=None, database=None,
        phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    settings.load_profile("mutants")
    return settings.get_profile("mutants")


@final
class Suite:
    """What pytest has collected."""

    def __init__(self, session: pytest.Session | None) -> None:
        self.items: dict[str, Any] = {} if session is None else {i.nodeid: i for i in session.items}
        self._failed = False
        self._why = ""
        if session is not None:
            session.config.pluginmanager.register(self, "mutants")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed = True
            self._why = report.longreprtext.strip().splitlines()[-1] if report.longreprtext else ""

    def run(self, nodeid: str) -> str:
        """What went wrong, in a line; nothing if the test passes."""
        self._failed, self._why = False, ""
        item = self.items[nodeid]
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return f"{nodeid}: {self._why}"[:400] if self._failed else ""


class _HandOver:
    def __init__(self, then: Callable[[Suite], int]) -> None:
        self.then, self.result = then, 1

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        chosen = quick_examples()
        for item in items:  # what a test has asked for itself counts no more here
            test = getattr(item, "obj", None)
            if hasattr(test, "_hypothesis_internal_use_settings"):
                test._hypothesis_internal_use_settings = chosen

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.result = self.then(Suite(session))
        return True


def inside(paths: Iterable[str], then: Callable[[Suite], int]) -> int:
    """Collects the tests of some files and calls `then` with them."""
    hand_over = _HandOver(then)
    there = [p for p in dict.fromkeys(paths) if os.path.exists(p)]
    pytest.main([*_OPTIONS, *_PLUGINS, *_WARNINGS, *there], plugins=[hand_over])
    return hand_over.result


@final
class Calls:
    """Which functions of some modules run, and what that costs the processor."""

    def __init__(self, modules: Iterable[ModuleType]) -> None:
        self._files = {str(m.__file__): m.__name__ for m in modules}
        self.seen: set[CodeType] = set()
        self.seconds = 0.0

    def __enter__(self) -> Calls:
        files, seen = self._files, self.seen

        def note(frame: Any, event: str, arg: Any) -> None:
            if event == "call" and frame.f_code.co_filename in files:
                seen.add(frame.f_code)

        self.seconds = -time.process_time()
        sys.setprofile(note)
        return self

    def __exit__(self, *nothing: object) -> None:
        sys.setprofile(None)
        self.seconds += time.process_time()

    def functions(self) -> set[Key]:
        return {(self._files[code.co_filename], code.co_qualname) for code in self.seen}
