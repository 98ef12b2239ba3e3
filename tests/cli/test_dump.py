"""`morok dump` writes every stage of what a script compiles."""

from pathlib import Path

from morok import knobs
from morok.cli.main import main
from morok.codegen.pipeline import STAGES

SCRIPT = """import sys
from morok import Tensor
assert sys.argv[1:] == ['5']
(Tensor([1.0, 2.0]) + 1).sum().realize()
"""


def test_dump(tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    out = tmp_path / "out"
    assert main(["dump", "--out", str(out), str(script), "5"]) == 0
    (kernel,) = out.iterdir()
    names = sorted(p.name for p in kernel.iterdir())
    assert len(names) == len(STAGES) + 3
    assert "STORE" in (kernel / "21-linearise.txt").read_text()
    assert "define void" in (kernel / "23-llvm.ll").read_text()
    assert "ret" in (kernel / "24-assembly.s").read_text()
    assert "script.py:4" in (kernel / "00-kernel.txt").read_text()
    assert "1 kernel in" in capsys.readouterr().out


def test_the_emulator_shows_what_a_gpu_would_get(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    out = tmp_path / "out"
    with knobs.override(DEVICE="EMULATOR"):
        assert main(["dump", "--out", str(out), str(script), "5"]) == 0
    (kernel,) = out.iterdir()
    text = (kernel / "23-cuda.cu").read_text()
    assert 'extern "C" __global__ void __launch_bounds__(' in text and "// script.py:4" in text
