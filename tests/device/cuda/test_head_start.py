"""A kernel is timed while the GPU is busy before it, so that the host's own time is not part of it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from morok import Tensor
from morok.device.cuda.compile import compile_cubin
from morok.device.cuda.head_start import _WAIT
from morok.errors import CompileError, DeviceError
from morok.runtime.profile import profile
from tests.device.cuda.fake_gpu import FakeDriver, fake_gpus


class Told(FakeDriver):
    """Tells what its stream is given."""

    def record(self, event: Any) -> None:
        self.log.append("record")
        super().record(event)

    def launch(self, step: Any) -> None:
        is_wait = "globaltimer" in str(step[0].handle)
        super().launch(step)
        self.log[-1] = "wait" if is_wait else "launch"


def run(driver: FakeDriver, compiler: Callable[[str, str, str], bytes] | None = None) -> list[str]:
    with fake_gpus(driver) as (gpu,), profile() as taken:
        if compiler is not None:
            gpu._compiler = compiler
        for n in range(3):
            x = Tensor(np.arange(5, dtype=np.float32), device="CUDA")
            assert (x * 2 + n).tolist() == [2.0 * i + n for i in range(5)]
    assert len(taken.events) == 3
    words = [word for word in driver.log if word in ("wait", "record", "launch", "load wait")]
    around = [words[i - 2 : i + 2] for i, word in enumerate(words) if word == "launch"]
    assert len(around) == 3 and words.count("load wait") == (compiler is None)
    assert all(found[1:] == ["record", "launch", "record"] for found in around)
    return [found[0] for found in around]


def test_the_gpu_waits_before_each_kernel() -> None:
    assert run(Told()) == ["wait"] * 3


def test_without_it_the_hosts_time_is_part() -> None:
    def refuse(text: str, arch: str, title: str) -> bytes:
        if "globaltimer" in text:
            raise CompileError("no such thing")
        return text.encode()

    assert "wait" not in run(Told(), refuse)


def test_nvidias_compiler_takes_it() -> None:
    try:
        assert compile_cubin(_WAIT, "sm_90a", "wait")[:4] == b"\x7fELF"
    except DeviceError as error:
        pytest.skip(error.message)
