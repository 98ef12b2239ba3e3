"""Every rule that ships is proved here, one test each; what is out of scope has a written reason."""

from pathlib import Path

import pytest

pytest.importorskip("z3")

import morok
from morok.errors import RuleError
from morok.proof import rulebook
from morok.proof.prove import prove_rule
from morok.proof.rulebook import all_rules, load_registry
from morok.proof.verdicts import APPROXIMATION, DEFAULT, LOWERING, OUT_OF_SCOPE, PROVED, SLOW, Effort
from morok.rewrite.rules import Rule

load_registry()
RULES = all_rules()
# As `morok prove`, without the wide types: those are tried by the command and by the slow tier.
QUICK = Effort(needed=40_000_000, extra=0, cases=DEFAULT.cases)
# 10 to 25 s each; `morok prove` and the slow tier do them
LONG = ("schedule.reductions.nested-condition", "schedule.reductions.nested", "schedule.collapse.reduce",
        "codegen.decompose.whole")  # fmt: skip


@pytest.mark.parametrize(
    "rule", [pytest.param(r, marks=pytest.mark.slow if str(r) in LONG else ()) for r in RULES], ids=str
)
def test_a_rule_that_ships_is_proved(rule: Rule) -> None:
    report = prove_rule(rule, QUICK)
    assert not report.failed, f"{report.verdict}: {rule.formula()}: {report.note}"
    if report.verdict in (OUT_OF_SCOPE, LOWERING, APPROXIMATION):
        assert len(report.note) >= 5, "the reason is missing"
    else:
        assert report.verdict == PROVED and report.theory


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_rule_that_ships_is_proved_for_wide_types(rule: Rule) -> None:
    report = prove_rule(rule, SLOW)
    assert not report.failed, f"{report.verdict}: {rule.formula()}: {report.note}"


def test_the_algebra_is_large_and_almost_all_of_it_is_proved() -> None:
    algebra = [r for r in RULES if r.name.startswith("symbolic.")]
    tagged = [r for r in algebra if r.unproved is not None]
    assert len(algebra) >= 140
    assert len(tagged) <= len(algebra) // 20


_NO_RULES = """
from morok.errors import DeviceError, RuleError
raise {error}("as expected")
"""


def with_module(folder: Path, error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "strange_rules.py").write_text(_NO_RULES.format(error=error))
    monkeypatch.setattr(morok, "__path__", [str(folder)])
    monkeypatch.setattr(rulebook, "SKIPPED", {})


@pytest.mark.parametrize("error", ["RuleError", "NameError"])
def test_a_set_that_does_not_build_is_an_error(
    error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_module(tmp_path, error, monkeypatch)
    with pytest.raises((RuleError, NameError), match="as expected"):
        load_registry()


def test_a_missing_optional_part_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_module(tmp_path, "DeviceError", monkeypatch)
    load_registry()
    assert rulebook.SKIPPED == {"morok.strange_rules": "as expected"}


def test_joined_sets_are_found_by_name() -> None:
    assert len(rulebook.find_set("symbolic")) > len(rulebook.find_set("symbolic.identities"))
    with pytest.raises(RuleError, match="there is no rule set 'nothing'"):
        rulebook.find_set("nothing")


def test_names_and_places_are_unique() -> None:
    assert len({(r.name, r.place) for r in RULES}) == len(RULES)


def test_the_page_about_proofs_lists_every_rule_that_is_not_proved() -> None:
    text = (Path(__file__).parents[2] / "docs" / "proofs.md").read_text(encoding="utf-8")
    load_registry()
    missing = [
        rule.name for rule in all_rules() if rule.unproved is not None and f"`{rule.name}`" not in text
    ]
    assert not missing, "say in docs/proofs.md why these are no equations"


def test_rooms_that_are_not_loaded_have_no_rules() -> None:
    root = Path(morok.__file__).parent
    for path in root.rglob("*.py"):
        name = ".".join(("morok", *path.relative_to(root).with_suffix("").parts))
        if name.startswith(rulebook.NOT_FOR_RULES) and "\n@rules(" in path.read_text(encoding="utf-8"):
            raise AssertionError(f"{name} has rules that nobody would prove")
