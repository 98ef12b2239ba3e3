"""Proofs on disk: found again, not believed when damaged, made again when the rule changes."""

import functools
import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("z3")

from morok import knobs
from morok.ir.node import UOp, alu, const
from morok.ir.ops import Ops
from morok.proof import cache, registry
from morok.proof.prove import prove_rule
from morok.proof.registry import prove_all
from morok.proof.verdicts import PROVED, REFUTED, Effort, RuleReport
from morok.rewrite.rules import ZERO_SIGN, Rule, Rules, collect, why
from morok.rewrite.terms import Add, And, Index, Int, Max, Min, Or, Xor, zero

EFFORT = Effort(extra=0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with knobs.override(CACHE_DIR=str(tmp_path)):
        yield tmp_path / "proofs"


def one(x: Int) -> Rules:
    yield "rule", Add[x, zero] >> x


def other_domain(x: Index) -> Rules:
    yield "rule", Add[x, zero] >> x


def other_class(x: Int) -> Rules:
    yield "rule", Add[x, zero] >> x, ZERO_SIGN


def wrong(x: Int) -> Rules:
    yield "rule", Add[x, zero] >> x + 1


def in_this_order(x: Int) -> Rules:
    yield "rule", Add(x, zero) >> x


def in_any_order(x: Int) -> Rules:
    yield "rule", Add[x, zero] >> x


def four_ops(x: Int) -> Rules:
    yield "rule", (Max | Min | And | Or)(x, x) >> x


def four_others(x: Int) -> Rules:
    yield "rule", (Max | Min | And | Xor)(x, x) >> x


def times(number: int, node: UOp, x: UOp) -> UOp:
    return alu(Ops.MUL, x, const(node.dtype, number))


def partly(number: int) -> Callable[[Int], Rules]:
    def given(x: Int) -> Rules:
        yield "rule", Add(x, x) >> functools.partial(times, number), why("to see what is kept")

    return given


def rule_of(function: object) -> Rule:
    (rule,) = collect("cached", function)  # type: ignore[arg-type]
    return rule


def counting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    proved: list[str] = []
    real = prove_rule

    def spy(rule: Rule, effort: Effort) -> RuleReport:
        proved.append(rule.name)
        return real(rule, effort)

    monkeypatch.setattr(registry, "prove_rule", spy)
    return proved


def test_a_second_run_proves_nothing(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    proved = counting(monkeypatch)
    rule = rule_of(one)
    first = list(prove_all([rule], EFFORT))
    second = list(prove_all([rule], EFFORT))
    assert proved == ["cached.rule"]
    assert first == second and first[0].verdict == PROVED
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "proofs.json").stat().st_mode) == 0o600
    list(prove_all([rule], EFFORT, use_cache=False))
    assert len(proved) == 2


def test_the_key_knows_what_matters() -> None:
    keys = {cache.key_of(rule_of(f), EFFORT) for f in (one, other_domain, other_class, wrong)}
    keys.add(cache.key_of(rule_of(one), Effort()))
    assert len(keys) == 5
    assert cache.key_of(rule_of(one), EFFORT) in keys


def test_the_key_sees_more_than_a_reader() -> None:
    rules = [rule_of(f) for f in (in_this_order, in_any_order, four_ops, four_others)]
    assert rules[0].formula() == rules[1].formula() and rules[2].formula() == rules[3].formula()
    assert len({cache.key_of(r, EFFORT) for r in rules}) == 4


def test_a_partial_application_has_a_key() -> None:
    keys = [cache.key_of(rule_of(partly(n)), EFFORT) for n in (2, 2, 3)]
    assert keys[0] == keys[1] != keys[2]


def test_code_depends_on_the_whole_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, terms = rule_of(partly(2)), rule_of(one)
    before = [cache.key_of(r, EFFORT) for r in (code, terms)]
    package = tmp_path / "package"
    (package / "helpers").mkdir(parents=True)
    (package / "helpers" / "help.py").write_text("")
    monkeypatch.setattr(cache, "_PACKAGE", (package,))
    after = [cache.key_of(r, EFFORT) for r in (code, terms)]
    assert before[0] != after[0] and before[1] == after[1]


def test_bad_news_is_not_kept(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    proved = counting(monkeypatch)
    for _ in range(2):
        (report,) = prove_all([rule_of(wrong)], EFFORT)
        assert report.verdict == REFUTED
    assert len(proved) == 2 and not (folder / "proofs.json").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"k": 1}', '{"k": {"verdict": "proved"}}'])
def test_a_damaged_file_is_ignored_and_replaced(
    monkeypatch: pytest.MonkeyPatch, folder: Path, text: str
) -> None:
    proved = counting(monkeypatch)
    folder.mkdir(parents=True)
    (folder / "proofs.json").write_text(text)
    (folder / "proofs.json").chmod(0o600)
    assert cache.load() == {}
    list(prove_all([rule_of(one)], EFFORT))
    list(prove_all([rule_of(one)], EFFORT))
    assert proved == ["cached.rule"]
    assert len(json.loads((folder / "proofs.json").read_text())) == 1


def test_an_entry_with_a_strange_result_is_ignored(folder: Path) -> None:
    list(prove_all([rule_of(one)], EFFORT))
    path = folder / "proofs.json"
    path.write_text(path.read_text().replace('"proved"', '"refuted"'))
    assert cache.load() == {}


def test_a_file_that_others_can_write_is_not_believed(folder: Path) -> None:
    list(prove_all([rule_of(one)], EFFORT))
    assert cache.load()
    (folder / "proofs.json").chmod(0o666)
    assert cache.load() == {}


def test_a_folder_that_cannot_be_made_is_no_reason_to_fail(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with knobs.override(CACHE_DIR=str(blocked)):
        (report,) = prove_all([rule_of(one)], EFFORT)
    assert report.verdict == PROVED
