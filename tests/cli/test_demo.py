"""The demo: on made-up images from end to end, and on the real ones where scikit-learn is installed."""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from morok.cli.demo.command import show
from morok.cli.demo.network import digits
from morok.cli.main import main
from morok.nn.state import load


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    data = rng.random((160, 1, 8, 8), dtype=np.float32), rng.integers(0, 10, 160)
    monkeypatch.setattr("morok.cli.demo.network.digits", lambda: data)


def test_from_end_to_end(made_up: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--epochs", "1", "--folder", str(tmp_path / "new")]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"\d+ operations fused into \d+ kernels, one native call", shown)
    assert "x = self.second(x).relu().max_pool2d(2)" in shown, "kernels are shown with the user's line"
    assert re.search(r"[\d,]+ rewrites on [\d,]+ nodes", shown) and "times it was compiled" in shown
    assert "loaded again: the same" in shown and "2/2" in shown
    assert "Traceback" not in shown and "ShapeError" in shown
    picture = ElementTree.parse(tmp_path / "new" / "digits.svg").getroot()
    assert picture.tag.endswith("svg")
    kernels = int(re.findall(r"fused into (\d+) kernels", shown)[0])
    titles = [node for node in picture.iter() if node.tag.endswith("title")]
    assert len(titles) == kernels, "one bar per kernel"
    assert load(tmp_path / "new" / "digits.safetensors")["first.weight"].shape == (16, 1, 3, 3)


def test_without_the_data_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    assert main(["demo"]) != 0
    shown = capsys.readouterr()
    assert "morok[demo]" in shown.out + shown.err


@pytest.mark.slow
def test_the_digits_are_learned(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    assert show(digits(), 8, tmp_path) >= 0.97
