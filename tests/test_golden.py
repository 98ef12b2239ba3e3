"""The golden fixture itself: it compares, it refuses what is missing, it writes when told to."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = "from tests.conftest import golden, pytest_addoption\nimport pathlib, tests.conftest\n"
CONFTEST += "tests.conftest.GOLDEN = pathlib.Path(__file__).parent / 'golden'\n"


def test_golden(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    pytester.makeconftest(CONFTEST)
    test = pytester.makepyfile("def test_it(golden):\n    golden('a/b.txt', 'one\\n')\n")
    pytester.runpytest_subprocess(test).assert_outcomes(failed=1)
    assert not (pytester.path / "golden").exists()
    pytester.runpytest_subprocess(test, "--update-golden").assert_outcomes(passed=1)
    pytester.runpytest_subprocess(test).assert_outcomes(passed=1)
    (pytester.path / "golden/a/b.txt").write_text("two\n")
    pytester.runpytest_subprocess(test).assert_outcomes(failed=1)
