"""Notes about positions that were outside, on a device that runs later than it is asked to."""

import gc

import numpy as np
import pytest

from morok import Tensor, jit
from morok.device.buffer import HostAllocator
from morok.device.error_flags import PinnedWords
from morok.errors import OutOfRange
from tests.device.cuda.fake_gpu import FakeDriver, fake_gpus


def test_a_gpu_tells_of_a_position_when_a_value_is_read() -> None:
    with fake_gpus(FakeDriver()):
        x = Tensor(np.arange(5.0), device="CUDA").realize()
        good, bad = (Tensor(np.array(n), device="CUDA").realize() for n in ([1, -5], [1, 9]))
        first, second = x[bad].realize(), (x[good] + 1).realize()  # nothing has run so far
        with pytest.raises(OutOfRange, match=r"index 9 is outside of axis 0 of shape \(5,\)") as told:
            second.numpy()
        assert "test_error_flags.py" in str(told.value)
        assert second.tolist() == [2.0, 1.0]
        assert (x[good] * 2).tolist() == [2.0, 0.0]
        del first


def test_two_plans_under_way_each_tell_their_own() -> None:
    with fake_gpus(FakeDriver()):
        x = Tensor(np.arange(5.0), device="CUDA").realize()
        a, b = (Tensor(np.array([n]), device="CUDA").realize() for n in (7, -8))
        kept = [x[a].realize(), (x[b] + 1).realize()]
        told = []
        for _ in range(2):
            with pytest.raises(OutOfRange) as error:
                x.numpy()
            told.append(error.value.message.split()[1])
        assert sorted(told) == ["-8", "7"]
        assert x.tolist() == [0, 1, 2, 3, 4]
        del kept


def test_replays_of_a_graph_tell() -> None:
    with fake_gpus(FakeDriver()):
        x = Tensor(np.arange(5.0), device="CUDA").realize()
        f = jit(lambda i: x[i] + 1)
        for n, wanted in ((1, 2.0), (2, 3.0), (9, None), (-1, 5.0), (-6, None), (0, 1.0)):
            got = f(Tensor(np.array([n]), device="CUDA").realize())
            if wanted is None:
                with pytest.raises(OutOfRange, match=f"index {n} is outside"):
                    got.numpy()
            else:
                assert got.tolist() == [wanted]


def test_words_go_to_the_next_one() -> None:
    taken: list[int] = []

    def pinned(nbytes: int) -> np.ndarray:
        taken.append(nbytes)
        return np.full(nbytes, 0x5A, np.uint8)

    words, allocator = PinnedWords(pinned), HostAllocator("CUDA")
    first = words.take("CUDA", 3, allocator)
    assert list(first.words) == [0, 0, 0]
    first.words[1] = 7
    address = first.buffer.memory
    del first
    gc.collect()
    again, other = words.take("CUDA", 3, allocator), words.take("CUDA", 3, allocator)
    assert again.buffer.memory == address and list(again.words) == [0, 0, 0]
    assert other.buffer.memory != address
    assert len(taken) == 1
    words.take("CUDA", 10_000, allocator)
    assert len(taken) == 2
