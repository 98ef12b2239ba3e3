"""`morok tune` runs a script, searches, and says what was won."""

from pathlib import Path

import pytest

from morok import knobs
from morok.cli.main import main
from morok.cli.tune import table
from morok.optimize.search.beam import Found
from morok.optimize.search.race import paired_timing
from morok.runtime.tuning import Tuned

SCRIPT = """import sys
from morok import Tensor, knobs
assert sys.argv[1:] == ['5'] and knobs.BEAM.value == 2
(Tensor([float(i) for i in range(512)]).realize() * 3.0 + 1.0).sum().realize()
"""


def test_tune(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    words = ["tune", "--width", "2", "--seconds", "3", str(script), "5"]
    with knobs.override(CACHE=True, CACHE_DIR=str(tmp_path / "cache"), DEVICE="CPU"):
        assert main(words) == 0
        first = capsys.readouterr().out
        assert "script.py:4" in first
        assert "kernels are faster" in first
        assert "Kept on disk" in first


def test_the_table_names_kernel_line_times_and_ratio() -> None:
    won = paired_timing("warm", [4e-3] * 5, [2e-3] * 5)
    rows = [
        Tuned("short", "a.py:1", Found((), 1e-6, 1e-6, 5, 0, True), True),
        Tuned("long", None, Found((), 4e-3, 2e-3, 7, 0, True, (won,)), False),
    ]
    head, first, second, last = table(rows).splitlines()
    assert head.split() == ["kernel", "line", "before", "after", "ratio", "tried"]
    assert first.split() == ["long", "-", "4000.0", "µs", "2000.0", "µs", "2.00", "found", "on", "disk"]
    assert second.split()[0:2] == ["short", "a.py:1"]
    assert last == "1 of 2 kernels are faster than what the heuristics chose"
    assert table([]) == "The script runs no kernel that can be tuned."
