"""Provenance: the user's line of each node, the history of a rewritten one, and no influence on anything."""

import gc
import inspect
import subprocess
import sys
import threading
from typing import Any

import pytest

from morok import knobs
from morok.dtype import float32, index
from morok.ir.build import (
    bind,
    broadcast,
    cast,
    define_global,
    le,
    load,
    reduce,
    rng,
    sink,
    store,
    variable,
    where,
)
from morok.ir.build import index as element
from morok.ir.digest import digest
from morok.ir.movement import reshape
from morok.ir.node import UOp, alu, const, make
from morok.ir.ops import Ops
from morok.ir.provenance import Origin, capture, derive, history, place, scope


def line() -> int:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


def test_every_way_to_make_a_node_finds_the_users_line() -> None:
    x = variable("provenance_x", 0, 17)
    p = define_global(float32, 23, 5)
    makers: list[Any] = [
        lambda: make(Ops.ADD, index, (x, x)),
        lambda: UOp(Ops.MUL, index, (x, x)),
        lambda: alu(Ops.SUB, x, x),
        lambda: const(index, 987654321),
        lambda: x // x,
        lambda: x % 31415,
        lambda: -x,
        lambda: 1234 + x,
        lambda: x < 77,
        lambda: (x < 78).where(x, 9),
        lambda: where(x < 79, x, 3),
        lambda: le(x, 80),
        lambda: cast(x, float32),
        lambda: bind(x, 3),
        lambda: rng(11, 77),
        lambda: broadcast(x, 4),
        lambda: element(p, x),
        lambda: load(element(p, x)),
        lambda: store(element(p, x), 0.5),
        lambda: reduce(x, Ops.ADD, (rng(12, 78),)),
        lambda: sink(x),
        lambda: reshape(p, (23, 1)),
        lambda: x.replace(()),
    ]
    for make_one in makers[:-1]:
        n = make_one()
        assert place(n) == f"test_provenance.py:{make_one.__code__.co_firstlineno}", n


def test_each_node_has_the_line_that_made_it_first() -> None:
    first = variable("provenance_first", 0, 5)
    here = line() - 1
    again = variable("provenance_first", 0, 5)
    assert again is first
    assert place(first) == f"test_provenance.py:{here}"
    a = first * 1001
    b = first * 1002
    assert place(a) == f"test_provenance.py:{here + 5}"
    assert place(b) == f"test_provenance.py:{here + 6}"


def test_nodes_of_one_instruction_share_their_origin() -> None:
    x = variable("provenance_shared", 0, 5)
    made = [x * (2000 + i) for i in range(10)]
    assert len({id(n.origin) for n in made}) == 1


def test_threads_do_not_mix_their_lines() -> None:
    x = variable("provenance_threads", 0, 5)
    results: list[set[str | None]] = []

    def odd() -> None:
        nodes = [x * (2 * i + 10_001) for i in range(3000)]
        results.append({place(n) for n in nodes})

    def even() -> None:
        nodes = [x * (2 * i + 10_002) for i in range(3000)]
        results.append({place(n) for n in nodes})

    threads = [threading.Thread(target=f) for f in (odd, even)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(places) for places in results] == [1, 1]
    assert results[0] != results[1]


def test_capture_and_scope() -> None:
    origin = capture()
    assert origin is not None and origin.line == line() - 1
    x = variable("provenance_scope", 0, 5)
    with scope(origin):
        inside = x * 3001
    outside = x * 3002
    assert inside.origin is origin
    assert outside.origin is not origin


def test_history_names_the_rules_and_what_was_there_before() -> None:
    x = variable("provenance_history", 0, 5)
    old = x * 1 + 0
    with scope(derive(old, "add-zero")):
        middle = make(Ops.NEG, index, (x,))
    with scope(derive(middle, "neg")):
        new = make(Ops.ABS, index, (x,))
    assert history(new) == [("neg", middle), ("add-zero", old)]
    assert place(new) == place(old)
    assert history(old) == []


def test_history_does_not_keep_old_graphs_alive() -> None:
    x = variable("provenance_weak", 0, 5)
    old = x * 4001
    with scope(derive(old, "rule")):
        new = x * 4002
    del old
    gc.collect()
    assert history(new) == []
    assert place(new) is not None


def test_an_origin_without_a_place() -> None:
    assert repr(Origin(None, 0)) == "unknown place"
    assert Origin(None, 0).line is None and Origin(None, 0).file is None


def _graph() -> UOp:
    x = variable("provenance_digest", 0, 5)
    r = rng(8, 3)
    return sink(reduce((x * 4 + r) % 7, Ops.ADD, (r,)))


def test_turning_it_off_changes_neither_nodes_nor_digests() -> None:
    on = _graph()
    with knobs.override(PROVENANCE=False):
        assert _graph() is on
    code = (
        "from tests.ir.test_provenance import _graph\n"
        "from morok.ir.digest import hexdigest\n"
        "n = _graph(); print(hexdigest(n), n.origin)"
    )
    text = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=_environment(MOROK_PROVENANCE="0"),
    ).stdout
    assert text == f"{digest(on).hex()} None\n"


def _environment(**extra: str) -> dict[str, str]:
    import os
    from pathlib import Path

    root = str(Path(__file__).parents[2])
    return {**os.environ, "PYTHONPATH": root, **extra}


def test_off_means_no_origin() -> None:
    with knobs.override(PROVENANCE=False):
        n = variable("provenance_off", 0, 5)
        assert n.origin is None and place(n) is None
        assert capture() is None and derive(n, "rule") is None


def test_a_line_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager calls ask at each; a long function has a long table of lines."""
    looked: list[Origin] = []
    line: Any = vars(Origin)["line"].fget

    def noted(origin: Origin) -> Any:
        looked.append(origin)
        return line(origin)

    origin = capture()
    assert origin is not None
    monkeypatch.setattr(Origin, "line", property(noted))
    assert repr(origin) == repr(origin) == f"test_provenance.py:{line(origin)}"
    assert looked == [origin]
