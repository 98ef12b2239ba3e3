"""Places that are made of what was read are computed as a vector, and asked about as one."""

from __future__ import annotations

import numpy as np

from morok import Tensor, knobs
from morok.codegen.vector.indices import places
from morok.dtype import int64
from morok.ir.build import define_global, index
from morok.ir.node import alu, const, make
from morok.ir.ops import Ops


def test_places_that_were_read_stay_a_vector() -> None:
    memory = define_global(int64, 8, 0)
    read = make(Ops.LOAD, int64.vec(4), (index(memory, 0),))
    wide = alu(Ops.MIN, read, const(int64.vec(4), 7))
    found = places(wide)
    assert [root.src for root in found.roots if root is not None] == [(wide,)] * 4


def test_places_that_are_counted_are_known() -> None:
    counting = make(Ops.VCONST, int64.vec(4), (), (0, 1, 2, 3))
    found = places(alu(Ops.MIN, counting, const(int64.vec(4), 2)))
    assert found.offsets == (0, 1, 2, 2)


def test_rows_read_at_places_that_were_read() -> None:
    rng = np.random.default_rng(0)
    table, at = rng.standard_normal(50).astype(np.float32), rng.integers(-50, 50, 1003)
    with knobs.override(DEVICE="CPU"):
        t, i = Tensor(table), Tensor(at)
        assert np.array_equal(t[i].numpy(), table[at])
        assert np.array_equal(t[(i * 3 + 1) % 50].numpy(), table[(at * 3 + 1) % 50])
        assert np.array_equal(t[i.abs() // 2].numpy(), table[np.abs(at) // 2])
