"""Options: reading them, overriding them here and only here, and refusing nonsense."""

import asyncio
import os
import subprocess
import sys
import threading

import pytest

from morok import knobs
from morok.errors import KnobError


def read(name: str, **environment: str) -> tuple[int, str]:
    """What a fresh process says about a knob under this environment: exit status and last line."""
    code = f"from morok import knobs; print(repr(knobs.{name}.value))"
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MOROK_") and k not in knobs.KNOBS}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**kept, **environment}, capture_output=True, text=True, check=False
    )
    return done.returncode, (done.stdout or done.stderr).strip().splitlines()[-1]


@pytest.mark.parametrize(
    "name, environment, value",
    [
        ("DEBUG", {}, "0"),
        ("DEBUG", {"MOROK_DEBUG": "3"}, "3"),
        ("DEBUG", {"DEBUG": "2"}, "2"),
        ("DEBUG", {"DEBUG": "2", "MOROK_DEBUG": "4"}, "4"),
        ("DEBUG", {"MOROK_DEBUG": ""}, "0"),
        ("SPEC", {"SPEC": "2"}, "0"),
        ("PROVENANCE", {"MOROK_PROVENANCE": "Off"}, "False"),
        ("NOOPT", {"MOROK_NOOPT": "yes"}, "True"),
        ("MATCHER", {"MOROK_MATCHER": "reference"}, "'reference'"),
        ("STOP_AFTER", {"STOP_AFTER": "expander"}, "'expander'"),
        ("CACHE_DIR", {"XDG_CACHE_HOME": "/somewhere"}, "'/somewhere/morok'"),
        ("CACHE_DIR", {"MOROK_CACHE_DIR": "/here"}, "'/here'"),
    ],
)
def test_the_environment_is_read(name: str, environment: dict[str, str], value: str) -> None:
    assert read(name, **environment) == (0, value)


@pytest.mark.parametrize(
    "variable, text",
    [
        ("MOROK_DEBUG", "many"),
        ("BEAM", "-1"),
        ("MOROK_NOOPT", "2"),
        ("MOROK_MATCHER", "fast"),
        ("DEBUG", "1.5"),
    ],
)
def test_nonsense_in_the_environment_is_one_sentence(variable: str, text: str) -> None:
    status, line = read("DEBUG", **{variable: text})
    assert status == 1
    assert line.startswith(f"morok.errors.KnobError: environment variable {variable}={text!r} is not ")


@pytest.mark.parametrize(
    "variable, hint",
    [("MOROK_DEBUGG", "did you mean MOROK_DEBUG?"), ("MOROK_QQQ", "`morok knobs` lists the options")],
)
def test_an_option_that_does_not_exist_is_told(variable: str, hint: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import morok.knobs"],
        env={**os.environ, variable: "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == f"morok: there is no option {variable}; {hint}\n"


def test_overrides_nest_and_restore() -> None:
    before = knobs.DEBUG.value
    with knobs.override(DEBUG=2, NOOPT=True):
        assert (knobs.DEBUG.value, knobs.NOOPT.value) == (2, True)
        with knobs.override(DEBUG=3):
            assert (knobs.DEBUG.value, knobs.NOOPT.value) == (3, True)
        assert knobs.overridden() == {"DEBUG": 2, "NOOPT": True}
    assert (knobs.DEBUG.value, knobs.NOOPT.value) == (before, False)
    assert knobs.overridden() == {}


def test_an_override_is_undone_by_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), knobs.override(BEAM=4):
        raise ZeroDivisionError
    assert knobs.BEAM.value == 0


def test_a_refused_override_changes_nothing() -> None:
    with pytest.raises(KnobError), knobs.override(DEBUG=2, BEAM="wide"):
        pass
    assert knobs.overridden() == {}


def test_an_override_decorates_a_function() -> None:
    @knobs.override(BEAM=7)
    def width() -> int:
        return knobs.BEAM.value

    assert (width(), width(), knobs.BEAM.value) == (7, 7, 0)


def test_other_threads_do_not_see_an_override() -> None:
    seen: list[int] = []
    with knobs.override(BEAM=5):
        thread = threading.Thread(target=lambda: seen.append(knobs.BEAM.value))
        thread.start()
        thread.join()
        assert knobs.BEAM.value == 5
    assert seen == [0]


def test_a_worker_can_be_given_the_overrides() -> None:
    seen: list[int] = []

    def work(values: dict[str, object]) -> None:
        with knobs.override(**values):
            seen.append(knobs.BEAM.value)

    with knobs.override(BEAM=5):
        thread = threading.Thread(target=work, args=(knobs.overridden(),))
        thread.start()
        thread.join()
    assert seen == [5]


def test_overlapping_overrides_of_many_threads() -> None:
    barrier = threading.Barrier(8)
    wrong: list[int] = []

    def work(mine: int) -> None:
        barrier.wait()
        for _ in range(200):
            with knobs.override(BEAM=mine):
                if knobs.BEAM.value != mine:
                    wrong.append(mine)
            if knobs.BEAM.value != 0:
                wrong.append(-mine)

    threads = [threading.Thread(target=work, args=(i + 1,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert type(knobs.BEAM) is knobs.Knob  # back to the cheap read


def test_tasks_do_not_see_each_other() -> None:
    async def task(mine: int) -> int:
        with knobs.override(BEAM=mine):
            await asyncio.sleep(0.001)
            return knobs.BEAM.value

    async def both() -> list[int]:
        return await asyncio.gather(task(1), task(2), task(3))

    assert asyncio.run(both()) == [1, 2, 3]


def test_knobs_are_not_assigned() -> None:
    for value in (knobs.DEBUG.value, 2):
        with pytest.raises(KnobError, match="MOROK_DEBUG"):
            knobs.DEBUG.value = value


@pytest.mark.parametrize(
    "values", [{"NOPE": 1}, {"DEBUG": "2"}, {"DEBUG": -1}, {"NOOPT": 2}, {"MATCHER": "fast"}, {"DUMP": 1}]
)
def test_bad_overrides(values: dict[str, object]) -> None:
    with pytest.raises(KnobError), knobs.override(**values):
        pass


def test_the_cache_key_follows_what_changes_code() -> None:
    names = [name for name, _ in knobs.cache_key()]
    assert names == [
        "BEAM", "CHECK_INDICES", "EARLY_START", "FAST_FP8", "MACHINE", "NOOPT", "PLAN_MACHINE", "PROVE",
        "REASSOCIATE", "SPLIT_REDUCE", "TF32", "THREADS", "UNSAFE_MATH",
    ]  # fmt: skip
    start = knobs.cache_key()
    with knobs.override(DEBUG=4):
        assert knobs.cache_key() == start
    with knobs.override(NOOPT=1):
        assert dict(knobs.cache_key())["NOOPT"] is True
        assert knobs.cache_key() != start


def test_the_compile_environment_is_that_of_the_innermost_override() -> None:
    at_start = knobs.compile_environment()
    with knobs.override(NOOPT=not knobs.NOOPT.value):
        outer = knobs.compile_environment()
        assert outer == (knobs.cache_key(), knobs.default_device()) != at_start
        assert knobs.compile_environment() is outer  # it is asked for at every replay
        with knobs.override(DEVICE="PYTHON"):
            inner = knobs.compile_environment()
            assert inner == (knobs.cache_key(), "PYTHON") != outer
            found: list[object] = []
            thread = threading.Thread(target=lambda: found.append(knobs.compile_environment()))
            thread.start()
            thread.join()
            assert found == [at_start]
        assert knobs.compile_environment() == outer
    assert knobs.compile_environment() == at_start


def test_every_knob_explains_itself() -> None:
    rows = knobs.describe()
    assert [row[0] for row in rows] == list(knobs.KNOBS)
    assert all(row[4] for row in rows)


def test_the_tests_check_every_stage() -> None:
    assert knobs.SPEC.value == int(os.environ["MOROK_SPEC"])


@pytest.mark.parametrize("name", ["emulator", "Emulator", " EMULATOR ", "emulator:0"])
def test_devices_are_named_in_one_way(name: str) -> None:
    """For graphs with memory, which the registry names, and for those without, which the scheduler places."""
    from morok import Tensor
    from morok.device.registry import canonical, default_device

    with knobs.override(DEVICE=name):
        assert knobs.default_device() == default_device() == canonical(name) == "EMULATOR"
        assert (Tensor.arange(4) * 2).tolist() == [0, 2, 4, 6]
        assert (Tensor([1.0, 2.0]) + Tensor.ones(2)).tolist() == [2.0, 3.0]
