"""The collector is put off while the compiler works, and comes back as it was."""

import gc

import pytest

from morok import Tensor
from morok.rewrite.gc_pause import gc_paused


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
