"""Every law of sharding is proved by cases, and a wrong one is refuted."""

import pytest

from morok.proof.verdicts import PROVED, REFUTED
from morok.schedule.mesh import convert, partition, placement
from tests.mesh import laws as sharding


@pytest.mark.parametrize("law", sharding.laws(), ids=lambda law: law.name)
def test_laws(law: sharding.ShardingLaw) -> None:
    assert sharding.prove_law(law).status == PROVED


def test_extremes_of_floats_travel_as_integers() -> None:
    assert sharding.prove_ordered_bits().status == PROVED


def _law(name: str) -> sharding.ShardingLaw:
    return next(law for law in sharding.laws() if law.name == name)


def test_without_gates_uneven_sums_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "gated", lambda mesh, x, *rest: x)
    assert sharding.prove_law(_law("reduce add (5, 2)")).status == REFUTED
    assert sharding.prove_law(_law("reduce add (4, 3)")).status == REFUTED  # three devices


def test_a_message_to_the_wrong_neighbour_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    real = partition.collective

    def wrong(op: object, mesh: object, x: object, group: object, arg: object = None) -> object:
        return real(op, mesh, x, group, arg + 1 if isinstance(arg, int) else arg)  # type: ignore[arg-type]

    monkeypatch.setattr(partition, "collective", wrong)
    assert sharding.prove_law(_law("shift")).status == REFUTED


def test_a_flip_along_a_cut_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    laws = {**placement._LAWS, sharding.Ops.FLIP: lambda node, i, devices: tuple(range(len(node.arg)))}
    monkeypatch.setattr(placement, "_LAWS", laws)
    assert sharding.prove_law(_law("flip")).status == REFUTED


def test_an_exchange_in_the_wrong_order_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "rank_of", lambda mesh, group: 1 - convert.rank_range(mesh, group[0]))
    assert sharding.prove_law(_law("unary")).status == REFUTED
