"""What all tests share: strict IR checks, hypothesis profiles, and golden files."""

import os

# Before anything of morok is imported: the options are read once.
os.environ.setdefault("MOROK_SPEC", "2")

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

_QUIET = (HealthCheck.too_slow, HealthCheck.data_too_large)
# By hand every run looks at new examples, and a failure prints the blob that reproduces it. A gate must give
# the same answer for the same code, so there the examples follow from the tests themselves.
settings.register_profile(
    "default",
    max_examples=60,
    deadline=None,
    print_blob=True,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=_QUIET,
)
settings.register_profile("slow", settings.get_profile("default"), max_examples=2000, phases=tuple(Phase))
settings.load_profile("default")

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files instead of comparing"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden("name.txt", text)`: the text must be what the file in tests/golden says.

    A missing file fails: a golden test that nobody has looked at proves nothing. Write it with
    `pytest --update-golden`, then read the diff.
    """

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(
                f"there is no golden file {name}; look at the text below, then run --update-golden\n{text}"
            )
        assert text == path.read_text(encoding="utf-8"), f"{name} differs; --update-golden rewrites it"

    return check
