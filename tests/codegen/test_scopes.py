"""Loops that several stores close become one, however many there are."""

from collections.abc import Callable
from unittest.mock import patch

import pytest

from morok.codegen import scopes
from morok.codegen.scopes import merge_sibling_ends
from morok.ir.build import index, load, rng, sink
from morok.ir.infer import closed_ranges
from morok.ir.node import UOp, make, toposort
from morok.ir.ops import Ops
from tests.codegen.kernels import buffers, read, write


def _many(count: int) -> UOp:
    """Stores under the same loops, and one more that has a loop less."""
    *out, few, x = buffers(*[8] * count, 4, 8)
    r, c = rng(4, 0), rng(2, 1)
    place = r * 2 + c
    ends = [write(memory, place, read(x, place), r, c) for memory in out]
    return sink(*ends, write(few, r, read(x, r), r))


def _pieces(count: int) -> UOp:
    """Stores under loops of their own, inside of one that all have."""
    *out, x = buffers(*[8] * count, 8)
    shared = rng(4, 0)
    ends = []
    for n, memory in enumerate(out):
        inner = rng(2, n + 1)
        place = shared * 2 + inner
        ends.append(write(memory, place, read(x, place), inner, shared))
    return sink(*ends)


def _waiting(count: int) -> UOp:
    """Stores under one loop, and as many that read what the first has stored."""
    *out, x = buffers(*[4] * (2 * count + 1))
    r = rng(4, 0)
    ends = [write(memory, r, read(x, r), r) for memory in out[:count]]
    stored = make(Ops.AFTER, out[0].dtype, (out[0], ends[0]))
    ends += [write(memory, r, load(index(stored, 3 - r)), r) for memory in out[count:]]
    return sink(*ends)


def _in_pairs(kernel: UOp) -> UOp:
    """With all that are merged taken two at a time."""
    with patch.object(scopes, "_alike", lambda ends, order: ends[:1]):
        return merge_sibling_ends(kernel)


@pytest.mark.parametrize("count", [2, 3, 5, 12])
def test_all_at_once_are_what_pairs_would_become(count: int) -> None:
    kernel = _many(count)
    after = merge_sibling_ends(kernel)
    assert after is _in_pairs(kernel)
    (outer,) = after.src
    assert len(closed_ranges(outer)) == 1 and outer.src[0].op is Ops.GROUP


@pytest.mark.parametrize("count", [2, 3, 12])
def test_pieces_stay_loops_inside_of_the_one_that_they_share(count: int) -> None:
    kernel = _pieces(count)
    after = merge_sibling_ends(kernel)
    assert after is _in_pairs(kernel)
    (outer,) = after.src
    assert len(closed_ranges(outer)) == 1 and len(outer.src[0].src) == count


@pytest.mark.parametrize("count", [2, 4])
def test_those_that_wait_for_another_are_not_among_them(count: int) -> None:
    kernel = _waiting(count)
    after = merge_sibling_ends(kernel)
    assert after is _in_pairs(kernel)
    assert sum(node.op is Ops.END for node in toposort(after)) > 1


@pytest.mark.parametrize("kernel", [_many, _pieces])
def test_a_kernel_is_rebuilt_a_few_times_however_many_there_are(kernel: Callable[[int], UOp]) -> None:
    with patch.object(scopes, "substitute", side_effect=scopes.substitute) as rebuilt:
        merge_sibling_ends(kernel(40))
    assert rebuilt.call_count <= 4
