"""The collector is put off while the compiler works, and comes back as it was."""

import gc
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from morok import Tensor
from morok.rewrite.gc_pause import gc_paused, settle

ROOT = Path(__file__).parents[2]


def test_it_nests_and_comes_back() -> None:
    assert gc.isenabled()
    with gc_paused:
        assert not gc.isenabled()
        with gc_paused:
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_brings_it_back() -> None:
    with pytest.raises(ValueError), gc_paused:
        raise ValueError
    assert gc.isenabled()


def test_who_has_switched_it_off_finds_it_off() -> None:
    gc.disable()
    try:
        (Tensor([1.0, 2.0]) + 1.0).realize()
        assert not gc.isenabled()
    finally:
        gc.enable()
    (Tensor([1.0, 2.0]) * 3.0).realize()
    assert gc.isenabled()


class _Node:
    other: object = None


def _young() -> set[int]:
    return {id(x) for generation in (0, 1) for x in gc.get_objects(generation)}


def test_what_has_settled_is_old_and_its_cycles_still_go() -> None:
    a, b = _Node(), _Node()
    a.other, b.other = b, a
    assert id(a) in _young()
    settle()
    assert id(a) not in _young()
    assert gc.get_freeze_count() == 0
    gone = weakref.ref(a)
    del a, b
    assert gone() is not None
    gc.collect()
    assert gone() is None


def test_objects_that_somebody_has_frozen_remain_frozen() -> None:
    gc.freeze()
    try:
        count, x = gc.get_freeze_count(), _Node()
        settle()
        assert gc.get_freeze_count() == count
        assert id(x) in _young()
    finally:
        gc.unfreeze()


def test_nothing_settles_while_the_collector_is_off() -> None:
    with gc_paused:
        x = _Node()
        settle()
        assert id(x) in _young()


def test_what_is_left_of_a_compilation_is_old() -> None:
    """The collector would go through all of it at once, as soon as it is back."""
    with gc_paused:
        kept = [[i] for i in range(30_000)]
    assert len(_young() & {id(x) for x in kept}) < 100


def test_a_call_that_compiles_nothing_leaves_garbage_young() -> None:
    gc.collect()
    with gc_paused:
        few = [[i] for i in range(300)]
    assert {id(x) for x in few} <= _young()


def test_modules_are_old_when_they_are_loaded() -> None:
    code = "import gc, sys; from morok import Tensor; sys.exit(0 if gc.get_count()[0] < 2000 else 3)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
