"""Rates that are carried over from the machine they were fitted on; nothing here is measured."""

from __future__ import annotations

import warnings
from dataclasses import fields, replace
from pathlib import Path

import pytest

from morok import knobs
from morok.machine import choose
from morok.machine.files import names, source
from morok.machine.fit import Probes, as_file, changes, fit, probes_of
from morok.machine.processor import Processor

N1 = Processor("aarch64-unknown-linux-gnu", "neoverse-n1", "+neon")
THERE = probes_of(source("generic"))
PLAIN = source("generic").machine()


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path):
    choose.cpu_machine.cache_clear()
    with knobs.override(CACHE_DIR=str(tmp_path)):
        yield
    choose.cpu_machine.cache_clear()


def test_nothing_changes_where_the_rates_were_fitted() -> None:
    assert fit(PLAIN, THERE, THERE) == PLAIN


def test_a_clock_that_is_twice_as_fast_changes_nothing() -> None:
    """All are ratios to a simple operation, so only what differs from it counts."""
    halved = {f.name: getattr(THERE, f.name) / 2 for f in fields(Probes) if f.name != "lanes"}
    assert fit(PLAIN, THERE, Probes(**halved, lanes=THERE.lanes)) == PLAIN


def test_what_is_slower_costs_more() -> None:
    found = fit(PLAIN, THERE, replace(THERE, memory=THERE.memory * 2, exponential=THERE.exponential / 4))
    assert found.rates.ops_per_byte == 2 * PLAIN.rates.ops_per_byte
    assert found.rates.memory_byte == 2 * PLAIN.rates.memory_byte
    assert found.op_costs.exponential == PLAIN.op_costs.exponential / 4
    same = replace(found, rates=PLAIN.rates, op_costs=PLAIN.op_costs)
    assert same == PLAIN and found.rates.launch == PLAIN.rates.launch


def test_wider_vectors_of_the_same_latency() -> None:
    """Four times as many elements at once: each takes a quarter, a vector what it did."""
    wide = replace(THERE, operation=THERE.operation / 4, lanes=4 * THERE.lanes)
    found = fit(PLAIN, THERE, wide)
    assert found.rates.latency == PLAIN.rates.latency and found.rates.memory_byte == PLAIN.rates.memory_byte
    assert found.rates.launch == 4 * PLAIN.rates.launch and found.op_costs.division == 16.0
    assert found.rates.shared_work == 4 * PLAIN.rates.shared_work


def test_what_could_not_be_measured_stays() -> None:
    found = fit(PLAIN, THERE, replace(THERE, wake=0.0, power=0.0))
    assert found == PLAIN
    assert fit(PLAIN, THERE, replace(THERE, operation=0.0)) == PLAIN


def test_no_op_is_cheaper_than_a_simple_one() -> None:
    assert fit(PLAIN, THERE, replace(THERE, division=1e-15)).op_costs.division == 1.0


def test_the_file_that_is_written_is_the_machine_that_is_used() -> None:
    shipped = choose.shipped_source(N1)
    before = choose.cpu_machine(N1, 2)
    here = replace(THERE, launch=THERE.launch * 3, gather=THERE.gather * 2)
    after = fit(shipped.machine(N1.flags), probes_of(shipped), here)
    path = choose.fitted_path(N1.cpu)
    path.parent.mkdir()
    path.write_text(as_file(after, shipped.name, here))
    choose.cpu_machine.cache_clear()
    used = choose.cpu_machine(N1, 2)
    assert used.rates == after.rates and used.op_costs == after.op_costs
    assert used.key != before.key, "kernels that were chosen by other rates are not found again"
    assert replace(used, rates=before.rates, op_costs=before.op_costs) == before
    assert probes_of(choose.source_of(N1)) == here
    assert choose.shipped_source(N1) == shipped


def test_a_file_of_another_version_is_told_and_not_used() -> None:
    path = choose.fitted_path(N1.cpu)
    path.parent.mkdir()
    path.write_text("base = 'neoverse-n1'\n[rates]\nspeed = 1\n")
    with pytest.warns(UserWarning, match="no 'speed'.*morok tune --machine"):
        assert choose.source_of(N1) == choose.shipped_source(N1)
    path.unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose.source_of(N1)


def test_every_rate_that_is_told_about_is_one_of_the_machine() -> None:
    rows = changes(PLAIN, fit(PLAIN, THERE, replace(THERE, l2=THERE.l2 * 2)))
    assert [name for name, old, new in rows if old != new] == ["l2_byte"]
    assert len(rows) == 13 and {name for name, _, _ in rows} > {"exponential", "launch", "wake"}


@pytest.mark.parametrize("name", [name for name in names() if source(name).tables["family"] == "cpu"])
def test_rates_come_with_the_times_of_their_machine(name: str) -> None:
    """A file that has rates of its own says what was measured where they were fitted."""
    found = source(name)
    if name != "interpreter":
        assert probes_of(found).operation > 0.0
        assert found.tables["rates"] == source("generic").tables["rates"] or found.probes != THERE
