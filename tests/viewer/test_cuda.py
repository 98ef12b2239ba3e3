"""A run on an NVIDIA GPU: real CUDA C, PTX and machine code by NVIDIA's compiler, on a GPU that is none."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from morok.device.cuda import device
from morok.device.cuda.compile import compile_cubin
from morok.device.cuda.interface import Function, Launch
from morok.errors import DeviceError
from morok.ir.node import UOp
from morok.render.program import Program
from morok.runtime.roofline import limits_of
from tests.device.cuda.fake_gpu import KERNELS, FakeDriver, fake_gpus
from tests.viewer.recorded import data_of, record
from tests.viewer.test_data import nodes

SCRIPT = """import numpy as np
from morok import Tensor, jit
x = Tensor(np.linspace(-1, 1, 256 * 192, dtype=np.float32).reshape(256, 192))
step = jit(lambda t: (t * 2).softmax(-1))
for _ in range(4):
    y = step(x).realize()
print(y.numpy().sum())
"""


class Driver(FakeDriver):
    """Takes machine code, and lets the interpreter do what it stands for."""

    def load(self, code: bytes, name: str, shared: int, title: str = "") -> Function:
        assert code[:4] == b"\x7fELF"
        return Function(title or name, None, name, shared)

    def _start(self, step: Launch) -> None:
        if step[0].handle in KERNELS:  # a loop that measures the GPU is nothing to interpret
            super()._start(step)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[device.Cuda]:
    try:
        compile_cubin('extern "C" __global__ void k() {}', "sm_90a", "k")
    except DeviceError as error:
        pytest.skip(error.message)
    monkeypatch.setattr("morok.device.cuda.limits._COPIED", 1 << 20)
    real = device.program_of

    def program_of(ast: UOp, machine: Any, title: str = "") -> Program:
        program = real(ast, machine, title)
        KERNELS[program.name] = ast
        return program

    with fake_gpus(Driver()) as (found,), mock.patch.object(device, "program_of", program_of):
        found._compiler = compile_cubin
        limits_of.cache_clear()
        yield found
    limits_of.cache_clear()


def test_a_run_on_a_gpu(tmp_path: Path, gpu: device.Cuda, capsys: pytest.CaptureFixture[str]) -> None:
    index, chunks = data_of(record(tmp_path, SCRIPT, "CUDA"))
    np.testing.assert_allclose(float(capsys.readouterr().out.split()[-1]), 256, rtol=1e-5)
    (kernel,) = index["kernels"]
    assert [row["calls"] for row in index["rows"]] == [4] and index["rows"][0]["device"] == "CUDA"
    assert index["limits"]["CUDA"]["measured"]
    facts = kernel["facts"]
    assert 8 <= facts["registers of a thread"] <= 255
    assert facts["threads of a block"] >= 32 and facts["shared bytes"] >= 0
    assert not {"vector registers", "general registers", "stack bytes"} & set(facts)
    assert kernel["predicted"]["cycles"] > 0 and kernel["actions"]
    chunk = chunks[kernel["chunk"]]
    program, assembly = chunk["program"], chunk["assembly"]
    assert program["language"] == "CUDA C" and "__global__" in program["text"]
    assert ".entry" in assembly["text"]
    # from the softmax's line to PTX and back: rows of PTX belong to instructions that come from it
    table, starts = nodes(chunk), program["starts"]
    listed = table[chunk["list"]["node"]][1]
    lines = {
        table[listed[i]][2]
        for row in assembly["rows"]
        for i in range(len(listed))
        if starts[i] <= row < starts[i + 1]
    }
    assert tuple(kernel["at"]) in lines and kernel["at"][1] == 4
