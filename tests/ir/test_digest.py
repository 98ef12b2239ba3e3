"""The content hash: stable across processes, different for whatever differs."""

import dataclasses
import itertools
import math
import os
import subprocess
import sys
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from morok.dtype import float32, float64, index, int32, void
from morok.errors import IRError
from morok.ir.args import register_arg
from morok.ir.build import define_global, load, reduce, rng, sink, store, variable
from morok.ir.build import index as element
from morok.ir.digest import digest, hexdigest
from morok.ir.node import UOp, const, make
from morok.ir.ops import ALL_OPS, VARIADIC, AxisKind, Ops


@register_arg
@dataclasses.dataclass(frozen=True)
class Example:
    name: str
    sizes: tuple[int, ...]
    flag: bool = False


def kernel() -> UOp:
    r, c = rng(16, 0), rng(variable("n", 1, 64), 1, AxisKind.REDUCE)
    x = load(element(define_global(float32, 1024, 0), r * 64 + c, gate=c < 60), -0.0)
    total = reduce((x, x * 2.5), (Ops.MAX, Ops.ADD), (c,))
    return sink(
        store(element(define_global(float32, 16, 1), r), make(Ops.PICK, float32, (total,), 1)), arg="sum"
    )


def test_the_same_in_another_process_with_other_hashes() -> None:
    code = "from tests.ir.test_digest import hexdigest, kernel; print(hexdigest(kernel()))"
    found = set()
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])}
        result = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
        )
        found.add(result.stdout.strip())
    assert found == {hexdigest(kernel())}


def test_the_digest_of_this_release() -> None:
    # When the encoding changes on purpose, change _FORMAT in digest.py too: old caches must not be found.
    assert hexdigest(const(index, 1)) == "258591c107675ce765b99885dc60f07ae6eb3131"
    assert hexdigest(kernel()) == "cac35757e8394a4b19b427704ae40a3173b69331"


ARGUMENTS: list[Any] = [
    None, True, False, 0, 1, -1, 10**30, 0.0, -0.0, 1.0, math.nan, math.inf, -math.inf, 5e-324, "", "1",
    "nan", "ä", b"", b"1", Ops.ADD, Ops.MUL, "ADD", AxisKind.LOOP, AxisKind.REDUCE, float32, float64,
    "float32", (), (1,), (True,), (1.0,), (0.0,), (-0.0,), ((1,),), ((), ()), ((),), (1, 2), (2, 1), ("1",
    2), ("12",), ("1", "2"), Example("a", (1, 2)), Example("a", (1, 2), True), Example("a", (2, 1)),
    ("Example", "a", (1, 2), False), float32.vec(4), float32.ptr(4),
]  # fmt: skip


def test_arguments_that_differ_have_different_digests() -> None:
    nodes = [make(Ops.LINEAR, void, (), arg) for arg in ARGUMENTS]
    assert len(set(nodes)) == len(nodes)
    for (a, x), (b, y) in itertools.combinations(zip(ARGUMENTS, nodes, strict=True), 2):
        assert digest(x) != digest(y), (a, b)


def test_op_type_and_order_of_sources_count() -> None:
    x, y = variable("x", 0, 3), variable("y", 0, 3)
    different = [
        x,
        y,
        x + y,
        y + x,
        x * y,
        x - y,
        make(Ops.ADD, int32, (x, y)),
        sink(x),
        sink(x, x),
        sink(),
        sink(sink(x)),
    ]
    assert len({digest(n) for n in different}) == len(different)


def test_every_op_has_its_own_digest() -> None:
    x = variable("x", 0, 3)
    nodes = [
        make(op, void, (x,) * (0 if op.arity == VARIADIC else op.arity))
        for op in ALL_OPS
        if op is not Ops.VCONST
    ]
    assert len({digest(n) for n in nodes}) == len(nodes)


def test_it_is_20_bytes_and_remembered() -> None:
    n = kernel()
    assert len(digest(n)) == 20
    assert digest(n) is digest(n)
    assert hexdigest(n) == digest(n).hex()


def test_a_chain_of_100_000_nodes() -> None:
    n = variable("x", 0, 3)
    for _ in range(100_000):
        n = n + 1
    assert len(digest(n)) == 20


def test_unregistered_arguments_are_refused() -> None:
    with pytest.raises(IRError, match=r"cannot be an argument of a node: frozenset is not registered"):
        digest(make(Ops.LINEAR, void, (), frozenset((1,))))


def test_registration_wants_frozen_classes_with_free_names() -> None:
    @dataclasses.dataclass
    class Loose:
        x: int

    with pytest.raises(IRError, match="Loose cannot be an argument of nodes"):
        register_arg(Loose)

    class AxisKind(Enum):
        LOOP = 1

    with pytest.raises(IRError, match="the name AxisKind is taken"):
        register_arg(AxisKind)
