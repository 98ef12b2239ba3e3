"""Exported programs, explanations, the page and the example."""

import copy
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

import morok.torch as mt  # noqa: E402
from morok.errors import ArgumentError, FormatError  # noqa: E402
from morok.torch.compiled import Fallback  # noqa: E402
from morok.torch.page import page  # noqa: E402

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)

    def forward(self, x: Any, *, scale: Any) -> Any:
        return {"out": self.norm(self.layer(x)) * scale, "sum": x.sum()}


def test_a_program_with_its_state(tmp_path: Path) -> None:
    model, x, scale = Normed().train(), torch.randn(5, 3), torch.tensor(2.0)
    exported = torch.export.export(copy.deepcopy(model), (x,), {"scale": scale})
    torch.export.save(exported, tmp_path / "model.pt2")
    expected = model(x, scale=scale)
    for loaded in (mt.load(exported), mt.load(tmp_path / "model.pt2")):
        found = loaded(x, scale=scale)
        assert list(found) == ["out", "sum"] and not loaded.fallbacks
        torch.testing.assert_close(found["out"], expected["out"], rtol=1e-5, atol=1e-5)
        # batch norm has learnt from the batch, as in the module
        torch.testing.assert_close(loaded.state_dict()["norm.running_mean"], model.norm.running_mean)
        assert {n for n, _ in loaded.named_parameters()} == {n for n, _ in model.named_parameters()}
    with pytest.raises(ArgumentError, match="axis 0 of argument 0 has size 5, not 4"):
        loaded(torch.randn(4, 3), scale=scale)
    with pytest.raises(ArgumentError, match="structure"):
        loaded(x)


def test_what_is_no_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.pt2").write_bytes(b"no")
    with pytest.raises(FormatError, match=r"x\.pt2"):
        mt.load(tmp_path / "x.pt2")
    with pytest.raises(ArgumentError, match="ExportedProgram"):
        mt.load(3)


@pytest.mark.slow
def test_explain_names_the_lines() -> None:
    def function(x: Any) -> Any:
        return torch.linalg.eigvals(x.exp()).real

    with pytest.warns(Fallback):
        told = mt.explain(function, torch.eye(2))
    assert told.kernels == 1 and any("test_exported.py" in where for where in told.by_line())
    assert len(told.fallbacks) >= 1 and "linalg_eig" in str(told) and {"eager", "morok"} <= set(told.seconds)


def test_the_page_is_written_from_the_table() -> None:
    assert (ROOT / "docs" / "torch-operators.md").read_text() == page()


@pytest.mark.slow
def test_the_example_learns_as_eager_torch_does() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "torch_train.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pairs = [(float(a), float(b)) for a, b in re.findall(r"morok ([0-9.]+)  eager ([0-9.]+)", done.stdout)]
    assert pairs[-1][0] < 0.5 * pairs[0][0]
    assert all(abs(a - b) < 1e-2 for a, b in pairs)
