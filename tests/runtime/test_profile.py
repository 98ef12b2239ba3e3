"""Profiles: what ran, how long, and where it came from."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from morok import Tensor, jit
from morok.runtime.profile import Profile, profile


def work() -> None:
    x = Tensor(np.ones((32, 32), np.float32))
    (x @ x + 1.0).sum(0).realize()


def test_a_profile_sees_kernels(tmp_path: Path) -> None:
    with profile() as p:
        work()
        work()
    assert p.events and all(e.seconds >= 0 for e in p.events)
    rows = p.rows()
    assert sum(row[6] for row in rows) <= 1.0001 and max(row[2] for row in rows) == 2
    text = p.table()
    assert "GFLOP/s" in text and "test_profile.py:" in text and str(p) == text
    p.chrome_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert len(trace["traceEvents"]) == len(p.events)
    before = len(p.events)
    work()
    assert len(p.events) == before


def test_profiles_nest() -> None:
    with profile() as outer:
        with profile() as inner:
            work()
        work()
    assert len(outer.events) == 2 * len(inner.events)


def test_replays_are_profiled() -> None:
    f = jit(lambda x: x + 1.0)
    x = Tensor(np.ones(8, np.float32)).realize()
    f(x)
    f(x)
    with profile() as p:
        for _ in range(3):
            assert f(x).tolist() == [2.0] * 8
    assert sum(row[2] for row in p.rows()) == 3


def test_empty() -> None:
    assert "0 runs" in Profile().table()


def test_the_knob_profiles_a_whole_program() -> None:
    code = "from tests.runtime.test_profile import work; work()"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        capture_output=True,
        text=True,
        env={**_environment(), "PROFILE": "1"},
    )
    assert done.returncode == 0 and "GB/s" in done.stderr, done.stderr


def _environment() -> dict[str, str]:
    import os

    return dict(os.environ)
