"""What somebody without a GPU sees who asks for one: one sentence, whatever was run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from morok import knobs
from morok.cli.main import main

ROOT = Path(__file__).parents[3]
SCRIPT = "from morok import Tensor\nprint((Tensor([1.0]) + 1.0).tolist())\n"


@pytest.mark.parametrize(
    "words",
    [
        ["benchmarks/gpu.py"],
        ["benchmarks/beam.py", "--device", "cuda"],
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu/test_lanes.py"],
        ["-m", "morok", "dump", "SCRIPT"],
        ["-m", "morok", "tune", "SCRIPT"],
    ],
    ids=["gpu", "beam", "tests", "dump", "tune"],
)
def test_one_sentence(words: list[str], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "DEVICE": "CUDA", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *(str(script) if word == "SCRIPT" else word for word in words)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    assert done.returncode != 0
    assert len(said) == 1 and "CUDA needs " in said[0], said


@pytest.mark.parametrize(("device", "instead"), [("cuda:1", "benchmarks/gpu.py"), ("python", "nothing")])
def test_the_cpu_is_not_measured_for_another(
    device: str, instead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with knobs.override(DEVICE=device):
        assert main(["bench", "--quick"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and f"DEVICE says {device.upper()}; {instead}" in said.err
