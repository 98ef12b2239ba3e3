"""DUMP, STOP_AFTER, EXPLAIN and DEBUG show what the compiler does, also where the disk knows the result."""

from pathlib import Path

import numpy as np
import pytest

from morok import Tensor, knobs, profile
from morok.device.base import Device
from morok.device.cpu.device import CPU
from morok.device.cpu.kernel import Kernel
from morok.errors import CompileError, KnobError
from morok.runtime import plan


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path):  # type: ignore[no-untyped-def]
    """A disk that knows the kernel, and a process that does not."""
    with knobs.override(CACHE=True, CACHE_DIR=str(tmp_path), DEVICE="CPU"):
        work()
        plan._programs.clear()
        yield
        plan._programs.clear()


def work() -> None:
    x = Tensor(np.arange(15, dtype=np.float32).reshape(5, 3))
    assert (x * 2 + x.sum(1, keepdim=True)).numpy()[0].tolist() == [3.0, 5.0, 7.0]


def test_without_a_question_the_disk_answers(capsys: pytest.CaptureFixture[str]) -> None:
    before = plan.requests.from_disk
    work()
    assert plan.requests.from_disk > before and capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "options, text",
    [
        ({"DUMP": "linearise"}, "--- after stage 21, linearise"),
        ({"DEBUG": 2}, "lowered in"),
        ({"DEBUG": 4}, "define void"),
        ({"EXPLAIN": "opts"}, "UNROLL("),
        ({"EXPLAIN": "fusion,codegen.add_loads"}, "codegen.add_loads."),
    ],
)
def test_what_is_asked_for_is_told(
    options: dict[str, object], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with knobs.override(**options):
        work()
    assert text in capsys.readouterr().err


def test_a_pipeline_stops() -> None:
    with (
        knobs.override(STOP_AFTER="expander"),
        pytest.raises(CompileError, match=r"after the stage .expander"),
    ):
        work()


@pytest.mark.parametrize("knob", ["DUMP", "STOP_AFTER"])
def test_a_stage_that_does_not_exist_is_an_error(knob: str) -> None:
    with knobs.override(**{knob: "expandr"}), pytest.raises(KnobError, match="expandr names no stage"):
        work()


def test_a_profile_measures_kernels_and_not_their_making(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []

    def measure(self: Device, kernel) -> float:  # type: ignore[no-untyped-def]
        program = kernel.args[0]
        assert isinstance(program, Kernel)
        loaded.append(program._code is not None)
        kernel()
        return 1.0

    monkeypatch.setattr(CPU, "measure", measure)
    with knobs.override(CACHE=False), profile():
        work()
    assert loaded and all(loaded)
