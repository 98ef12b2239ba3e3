"""`morok prove` and `morok rules`: tables, exit statuses, and one sentence when Z3 is missing."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("z3")

from morok import knobs
from morok.cli.main import main
from morok.proof import rulebook
from morok.rewrite.rules import Rules, collect
from morok.rewrite.ruleset import REGISTRY, RuleSet
from morok.rewrite.terms import Add, Int, zero


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path) -> Iterator[None]:
    with knobs.override(CACHE_DIR=str(tmp_path)):
        yield


@pytest.fixture
def wrong_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: Int) -> Rules:
        yield "add-zero", Add[x, zero] >> 0

    rulebook.load_registry()
    monkeypatch.setitem(REGISTRY, "test.wrong", RuleSet("test.wrong", collect("test.wrong", wrong)))


def test_a_set_is_proved(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "reports.json"
    assert main(["prove", "--set", "symbolic.distribute", "--json", str(file)]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0].split() == ["rule", "place", "class", "theory", "verdict", "seconds"]
    assert "symbolic.distribute.sum" in text and "100.0 % proved" in text
    reports = json.loads(file.read_text())
    assert {r["verdict"] for r in reports} == {"proved"} and all(r["place"] for r in reports)


def test_one_rule_is_proved(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", "--rule", "symbolic.distribute.sum", "--no-cache", "--jobs", "1"]) == 0
    assert "1 rule: 1 proved" in capsys.readouterr().out


def test_a_wrong_rule_fails_with_its_counterexample(
    wrong_set: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prove", "--set", "test.wrong"]) == 1
    text = capsys.readouterr().out
    assert "refuted: test.wrong.add-zero" in text and "before and 0 after" in text and "x = " in text


def test_names_that_do_not_exist_get_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", "--set", "nothing"]) == 2
    assert main(["prove", "--rule", "nothing at all"]) == 2
    assert main(["rules", "--source", "nothing"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert (
        len(errors) == 3
        and "there is no rule set 'nothing'" in errors[0]
        and "there is no rule " in errors[1]
    )


def test_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules"]) == 0
    everything = capsys.readouterr().out
    assert main(["rules", "div-multiple"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "symbolic.divmod  (1 rule)" and "symbolic.divmod.div-multiple" in shown[1]
    assert main(["rules", "no-such-rule"]) == 2
    assert main(["rules", "x % 1 "]) == 0
    assert "symbolic.divmod_simple.mod-one" in capsys.readouterr().out
    assert main(["rules", "no-such-rule"]) == 2
    assert capsys.readouterr().err == "morok: no rule has 'no-such-rule' in its name or formula\n"
    assert main(["rules", "--set", "symbolic.distribute"]) == 0
    part = capsys.readouterr().out
    assert "(x + y) * a → x * a + y * a" in part and "exact" in part and "morok/symbolic/" in part
    assert part.strip() in everything


def test_the_matcher_of_a_set_is_shown_as_python(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "--source", "symbolic.distribute"]) == 0
    source = capsys.readouterr().out
    compile(source, "shown", "exec")
    assert "def rule_0(n, ctx):" in source


def test_without_z3_there_is_one_sentence() -> None:
    code = "import sys; sys.modules['z3'] = None; from morok.cli.main import main; sys.exit(main(['prove']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert (
        done.stderr.strip()
        == "morok: proofs need Z3, which is not installed; run: pip install 'morok[proof]'"
    )
    code = code.replace("['prove']", "['rules', '--set', 'symbolic.distribute']")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).returncode == 0
