"""Every rule that ships is proved here, one test each; what is out of scope has a written reason."""

import pytest

pytest.importorskip("z3")

from morok.proof.prove import prove_rule
from morok.proof.rulebook import all_rules, load_registry
from morok.proof.verdicts import DEFAULT, LOWERING, OUT_OF_SCOPE, PROVED, SLOW, Effort
from morok.rewrite.rules import Rule

load_registry()
RULES = all_rules()
# As `morok prove`, without the wide types: those are tried by the command and by the slow tier.
QUICK = Effort(needed=20_000, extra=0, cases=DEFAULT.cases)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_rule_that_ships_is_proved(rule: Rule) -> None:
    report = prove_rule(rule, QUICK)
    assert not report.failed, f"{report.verdict}: {rule.formula()}: {report.note}"
    if report.verdict in (OUT_OF_SCOPE, LOWERING):
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


def test_names_and_places_are_unique() -> None:
    assert len({(r.name, r.place) for r in RULES}) == len(RULES)
