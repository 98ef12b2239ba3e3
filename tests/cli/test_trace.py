"""`morok trace` tells of every change, at three distances and for machines."""

import json
import re
from pathlib import Path

import pytest

from morok import knobs
from morok.cli.main import main

SCRIPT = """from morok import Tensor
x = Tensor([[float(i + j) for i in range(32)] for j in range(32)])
print("said by the script")
y = x.softmax(-1).realize()
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def test_a_kernel_from_the_line_to_the_instructions(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", script]) == 0
    out, err = capsys.readouterr()
    assert "said by the script" in err and "said by the script" not in out
    assert "script.py:4  y = x.softmax(-1).realize()" in out
    lines = out.splitlines()
    heads = ("1.0  normalise", "1.8  cut into kernels", "2.1  assign ranges", "7  optimise", "21  linearise")
    found = [next(n for n, line in enumerate(lines) if head in line) for head in heads]
    assert found == sorted(found)
    assert any("codegen.decompose.exp " in line and " approximation " in line for line in lines)
    assert any("codegen.remove_reduce.accumulate " in line and " lowering " in line for line in lines)
    assert any("action" in line and "→  r" in line for line in lines)
    assert "  instructions" in lines and "STORE void" in lines[-3] + lines[-2] + lines[-4]


def test_one_stage_shows_every_change(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    with knobs.override(DEVICE="EMULATOR"):
        assert main(["trace", "--stage", "add loads", script]) == 0
        by_name = capsys.readouterr().out
        assert main(["trace", "--kernel", "0", "--stage", "13", script]) == 0
    assert [line for line in by_name.splitlines() if line.startswith("      codegen.add_loads.read")]
    assert _changes(by_name) == _changes(capsys.readouterr().out)


def _changes(text: str) -> list[str]:
    return [line for line in text.splitlines() if "→" in line and "nodes" not in line]


def test_a_value_and_its_rules(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "--json", "-", script]) == 0
    (kernel,) = json.loads(capsys.readouterr().out)["kernels"]
    number, longest = max(enumerate(kernel["instructions"]), key=lambda i: len(i[1]["history"]))
    assert main(["trace", "--value", str(number), script]) == 0
    out = capsys.readouterr().out
    assert f"instruction {number}: {longest['text']}" in out
    assert [step["rule"] for step in longest["history"]][::-1] == [
        line.split()[0] for line in out.splitlines()[5:]
    ]


def test_everything_for_machines(script: str, tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    assert main(["trace", "--json", str(out), "--code", script]) == 0
    data = json.loads(out.read_text())
    (kernel,) = data["kernels"]
    fired = {c["rule"] for s in kernel["stages"] for t in s["steps"] for c in t["changes"] if "rule" in c}
    assert fired == set(data["rules"])
    assert data["rules"]["codegen.add_loads.read"]["place"].startswith("morok/codegen/vector/loads.py:")
    assert data["rules"]["codegen.decompose.exp"]["verdict"] == "approximation"
    known = {"proved", "lowering", "approximation", "out of scope", "not yet"}
    assert {rule["verdict"] for rule in data["rules"].values()} <= known
    assert {part["language"] for part in kernel["code"]} == {"LLVM IR", "assembly"}
    assert kernel["place"] == "script.py:4" and kernel["source"] == "y = x.softmax(-1).realize()"


@pytest.mark.parametrize(
    "options, text",
    [
        (["--kernel", "matmul"], "there is no kernel matmul; there are 0 (r_32_32_32_32, script.py:4)"),
        (["--stage", "linearize"], "there is no stage linearize; there are 1.0 (normalise), "),
        (["--value", "9999"], "has no instruction 9999; there are 0 … "),
    ],
)
def test_a_wrong_name_is_one_sentence(
    options: list[str], text: str, script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", *options, script]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line != "said by the script"]
    assert line.startswith("morok: ") and text in line


def test_a_script_without_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nothing.py"
    path.write_text("")
    assert main(["trace", str(path)]) == 2
    assert "has compiled no kernels" in capsys.readouterr().err


def test_the_page_shows_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Up to numbers, and to whether proofs are stored here."""
    page = (Path(__file__).parents[2] / "docs" / "trace.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```\n(kernel 0: .*?)^```$", page, re.DOTALL | re.MULTILINE)
    (line,) = re.findall(r"For the line `(.*?)` with 64 rows of 64 numbers", page)
    script = tmp_path / "soft.py"
    script.write_text(f"from morok import Tensor\n\nx = Tensor.empty(64, 64)\n{line}\n")
    with knobs.override(DEVICE="CPU", MACHINE="neoverse-n1", THREADS=2):
        assert main(["trace", str(script)]) == 0
    lines = iter(capsys.readouterr().out.splitlines())
    for wanted in filter(None, map(str.strip, shown.splitlines())):
        pattern = re.escape(re.sub(r"\d+", "0", wanted)).replace("…", ".*").replace("0", r"\d+")
        pattern = re.sub(r"(\\ )+", r"\\s+", pattern).replace("proved", "(proved|not yet)")
        assert any(re.fullmatch(pattern, found.strip()) for found in lines), (
            f"not there, or not in order: {wanted}"
        )
