"""`morok plan`: what a script would take on devices that are not here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from morok.cli.main import main
from morok.errors import MachineError
from morok.machine.cluster import cluster

ROOT = Path(__file__).parents[2]
SCRIPT = """
import numpy as np, morok
from morok import P, Tensor
mesh = morok.mesh((2, 2), ("data", "model"))
x = Tensor(np.ones((1024, 512), np.float32)).shard(mesh, P("data")).realize()
w = Tensor(np.ones((512, 2048), np.float32)).shard(mesh, P(None, "model")).realize()
v = Tensor(np.ones((2048, 512), np.float32)).shard(mesh, P("model")).realize()
print(((x @ w).relu() @ v).realize().shape)
"""


def test_a_script_on_512_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert main(["plan", "--mesh", "64x8", "--machine", "h100-nvlink", str(script)]) == 0
    said = capsys.readouterr()
    assert "64x8 devices of h100-nvlink" in said.out
    # 16 rows of 512 floats are summed up by 8 devices: 2 * 7/8 of 32 KiB
    assert "ALLREDUCE 57.3 KB" in said.out
    # what a device keeps: its rows, an eighth of each matrix, and its part of the results
    kept = (16 * 512 * 2 + 2 * 512 * 256) * 4
    (line,) = [line for line in said.out.splitlines() if line.startswith("memory per device")]
    assert kept / 1e6 <= float(line.split()[3]) <= 1.5 * kept / 1e6
    assert line.endswith("fits")
    assert "(1024, 512)" in said.err  # the script saw the whole
    assert main(["plan", "--mesh", "4", str(script)]) == 2  # its mesh has two axes
    assert "has axes ('data', 'model')" in capsys.readouterr().err


def test_links_by_where_devices_are() -> None:
    machine = cluster("h100-nvlink")
    size = 1 << 30
    near = machine.collective_seconds("ALLREDUCE", size, range(8))
    far = machine.collective_seconds("ALLREDUCE", size, range(0, 64, 8))  # one of each node
    both = machine.collective_seconds("ALLREDUCE", size, range(16))  # two whole nodes: eight links each
    assert near == pytest.approx(6 * 5e-6 + size / 360e9)
    assert far == pytest.approx(6 * 10e-6 + size / 45e9)
    assert both == pytest.approx(8 * 10e-6 + size / 360e9)
    assert machine.collective_seconds("SEND_RECEIVE", size, (7, 8)) == pytest.approx(10e-6 + size / 45e9)
    assert machine.collective_seconds("ALLREDUCE", size, (3,)) == 0
    with pytest.raises(MachineError, match="there is no machine 'abacus' to plan for; there are a100-nvlink"):
        cluster("abacus")


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("kind", ["data", "tensor", "full", "pipeline"])
def test_ranks_take_what_was_planned(kind: str, count: int, tmp_path: Path) -> None:
    """Memory of a rank and bytes on the wire, both to the byte, after three steps of a GPT."""
    pytest.importorskip("mpi4py", reason="ranks in several processes need mpi4py")
    machine = tmp_path / "machine.toml"
    machine.write_text(
        '[here]\nchip = "generic"\nproducts = { float32 = 20e9 }\nother = 5e9\nmemory = 8e9\nroom = 8e9\n'
        "launch = 1e-6\nlinks = [[16, 1e-5, 1e9]]\n"
    )
    script = [str(ROOT / "tests/mesh/ranks.py"), kind, "3"]
    knobs = {"MOROK_THREADS": "1", "DEVICE": "CPU", "MACHINE": "generic"}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **knobs}
    found = {}
    for name, command in {
        "planned": ["plan", "--mesh", str(count), "--machine", str(machine), "--steps", "3"],
        "real": ["run", "-n", str(count)],
    }.items():
        done = subprocess.run(
            [sys.executable, "-m", "morok", *command, *script],
            capture_output=True, text=True, env=environment, check=True,
        )  # fmt: skip
        found[name] = json.loads((done.stderr if name == "planned" else done.stdout).splitlines()[0])
    planned, real = found["planned"], found["real"]
    assert (real["peak"], real["kept"]) == (planned["peak"], planned["kept"])
    assert real["planned"] == planned["planned"]
    if kind == "pipeline":  # the first stage sends on and not back: a plan counts for one in the middle
        real["sent"]["send_receive"] *= 2
    assert sum(real["sent"].values()) == planned["planned"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["1.7B", "7.5B"])
def test_published_scaling(name: str) -> None:
    """Megatron-LM's published steps, see benchmarks/plan_gpt.py, within a quarter."""
    code = f"import plan_gpt as g; print(g.of_all_layers({name!r})[0] / g.TABLE[{name!r}].seconds)"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "benchmarks", capture_output=True, text=True, check=True
    )
    assert 0.75 <= float(found.stdout) <= 1.25
