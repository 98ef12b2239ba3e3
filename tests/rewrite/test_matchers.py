"""The compiled matcher does what the reference matcher does, on every node of random graphs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from morok import knobs
from morok.dtype import bool_, float32, index, int8, uint8
from morok.ir.node import toposort
from morok.rewrite.compile import Matcher
from morok.rewrite.engine import reference, rewrite
from morok.rewrite.rules import Numeric
from morok.symbolic.sets import full, symbolic
from tests.expressions import Grower, growers

ALL_CLASSES = frozenset(Numeric)
COMPILED = Matcher("everything", full.active(ALL_CLASSES))
REFERENCE = reference(full.active(ALL_CLASSES))


@given(growers, st.sampled_from((index, index, bool_, int8, uint8, float32)))
def test_both_matchers_agree_on_every_node(grower: Grower, dtype: object) -> None:
    for n in toposort(grower.expression(dtype, 4)):  # type: ignore[arg-type]
        assert COMPILED(n) == REFERENCE(n, None)


@given(growers)
def test_whole_rewrites_agree(grower: Grower) -> None:
    root = grower.expression(index, 4)
    fast = rewrite(root, symbolic)
    with knobs.override(MATCHER="reference"):
        slow_set = type(symbolic)("reference copy", symbolic.rules)  # its own memory, so nothing is looked up
        assert rewrite(root, slow_set) is fast


def test_the_source_is_readable_python() -> None:
    source = COMPILED.source
    compile(source, "<test>", "exec")
    assert "def rule_0(n, ctx):  # symbolic.constants.neg, morok/symbolic/constants.py:" in source
    assert "# i + 0 → i" in source


def test_candidates_are_chosen_by_the_ops_of_the_sources() -> None:
    from morok.ir.build import variable
    from morok.ir.node import const

    x = variable("x", 0, 9)
    fast = Matcher("symbolic", symbolic.active())
    fast(x * x)
    fast(x * const(index, 3))
    keys = [tuple(getattr(op, "name", op) for op in key) for key in fast.table]
    assert keys == [("MUL", "DEFINE_VAR", "DEFINE_VAR"), ("MUL", "DEFINE_VAR", "CONST")]
    assert len(fast.table[next(iter(fast.table))]) < sum(1 for r in symbolic if "MUL" in str(r.root.ops))


@pytest.mark.slow
@given(growers)
def test_both_matchers_agree_on_deep_graphs(grower: Grower) -> None:
    for n in toposort(grower.expression(index, 6)):
        assert COMPILED(n) == REFERENCE(n, None)


def test_a_match_leaves_no_trace_in_the_origin_of_later_nodes() -> None:
    from morok.ir.build import variable
    from morok.ir.provenance import here

    x = variable("x", 0, 9)
    assert COMPILED(x * 1) is not None
    assert here.origin is None
