"""torch's own samples of its operators: none is wrong; what is left to torch is counted in the report."""

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("expecttest", reason="torch's own tests need expecttest")

from tests.torch.operators import check, infos, named

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
KNOWN = infos()


@pytest.mark.parametrize("name", [n for n in named() if n in KNOWN])
def test_operator(name: str) -> None:
    verdict, why = check(name, KNOWN[name], samples=2)
    assert verdict in ("right", "torch", "graph", "fallback"), why
