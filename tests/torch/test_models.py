"""Families of models of `transformers`: no further from the truth than twice as far as eager torch."""

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from tests.torch.families import FAMILIES
from tests.torch.models import check

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", FAMILIES)
def test_family(name: str, train: bool, autocast: bool) -> None:
    ours, eager, left, _ = check(name, train, autocast)
    assert ours <= 2 * eager and not left
