"""More steps: places by number, products, windows, parts of networks; and how often each step is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.programs.api.draw import Draw
from tests.programs.api.formats import INTS, NUMPY, is_float
from tests.programs.api.reference import Reject
from tests.programs.api.steps import (
    axes_of_one,
    binary,
    bits,
    cast,
    choose,
    clip,
    compare,
    compare_far,
    end,
    float_pair,
    join,
    make,
    order,
    pad,
    part,
    parts,
    permute,
    power,
    random_axes,
    reductions,
    reshape,
    running,
    shares,
    shrink,
    simple,
    smooth,
    spread,
    turn,
    with_itself,
    with_number,
)

# --- places by number


def index_leaf(d: Draw, shape: tuple[int, ...], size: int) -> str:
    """Whole numbers that name places of an axis, in any type: a narrow one names the first of many."""
    if size == 0:
        raise Reject("no places")
    kind = d.choice(INTS)
    info = np.iinfo(NUMPY[kind])
    low = max(-size, info.min) if d.chance(0.4) else 0
    return d.leaf(shape, kind, low, min(size, info.max + 1))


def long_or_any(d: Draw) -> str:
    """A value, or a new one with an axis that is longer than narrow integers count."""
    if d.chance(0.2):
        sizes = [d.choice((131, 257, 521, 1021)), *([d.choice((1, 2, 3))] if d.chance(0.4) else [])]
        d.random.shuffle(sizes)
        return d.leaf(tuple(sizes))
    return d.pick(lambda v: v.ndim > 0 and v.x.size > 0)


def gather(d: Draw) -> None:
    name = long_or_any(d)
    value = d.values[name]
    axis = d.axis(value)
    size = value.shape[axis]
    shape = list(value.shape)
    shape[axis] = d.choice((1, 2, 3, 7))
    way = d.random.random()
    if way < 0.3:
        index = index_leaf(d, tuple(shape), size)
        d.add(d.choice((f"{name}.gather({axis}, {index})", f"{name}.take_along_dim({index}, {axis})")))
    elif way < 0.5:
        d.add(f"{name}.index_select({axis}, {index_leaf(d, (d.choice((1, 2, 5, 13)),), size)})")
    elif way < 0.65:
        d.add(f"{name}.take({index_leaf(d, d.shape(0, 2), value.x.size)})")
    elif way < 0.72:
        mask = d.leaf(value.shape[: d.random.randrange(1, value.ndim + 1)], "bool")
        d.add(f"{name}[{mask}]")
    elif way < 0.9 or value.ndim < 2:
        index = index_leaf(d, d.shape(0, 2), size)
        before = ":, " * (axis % value.ndim)
        d.add(f"{name}[{before}{index}]")
    else:
        shape = d.shape(1, 2)
        first, second = index_leaf(d, shape, value.shape[0]), index_leaf(d, shape, value.shape[1])
        d.add(f"{name}[{first}, {second}]")


def scatter(d: Draw) -> None:
    name = long_or_any(d)
    value = d.values[name]
    axis = d.axis(value)
    size = value.shape[axis]
    shape = list(value.shape)
    shape[axis] = d.choice((1, 2, 3))
    way = d.random.random()
    if way < 0.4:
        shape[axis] = 1
        index = index_leaf(d, tuple(shape), size)
        d.add(f"{name}.scatter({axis}, {index}, {d.leaf(tuple(shape), value.type)})")
    elif way < 0.75:
        index = index_leaf(d, tuple(shape), size)
        d.add(f"{name}.scatter_add({axis}, {index}, {d.leaf(tuple(shape), value.type)})")
    else:
        index = index_leaf(d, (shape[axis],), size)
        d.add(f"{name}.index_add({axis}, {index}, {d.leaf(tuple(shape), value.type)})")


def classes(d: Draw) -> None:
    size = d.choice((2, 3, 7, 37))
    kind = d.choice(INTS)
    if d.chance(0.6):
        d.add(f"{d.leaf(d.shape(0, 2), kind, 0, size)}.one_hot({size})")
    else:
        d.add(f"{d.leaf((d.size(),), kind, 0, size)}.bincount({size + d.choice((0, 2))})")


# --- products


def matmul(d: Draw) -> None:
    name = d.pick(lambda v: v.ndim > 0 and v.x.size <= 2000)
    value = d.values[name]
    kind = value.type if d.chance(0.85) else d.choice(d.types)
    inner, outer = value.shape[-1], d.choice((1, 2, 3, 7, 13, 31, 32, 64))
    way = d.random.random()
    if way < 0.15:
        d.add(f"{name} @ {d.leaf((inner,), kind)}")
    elif way < 0.3 and value.ndim > 1:
        d.add(f"{d.leaf((outer, value.shape[-2]), kind)} @ {name}")
    elif way < 0.45 and value.ndim == 2 and value.shape[0] <= 64:
        d.add(d.choice((f"{name} @ {name}.permute(1, 0)", f"{name}.permute(1, 0) @ {name}")))
    elif way < 0.6:
        bias = f", {d.leaf((outer,), kind)}" if d.chance(0.5) else ""
        d.add(f"{name}.linear({d.leaf((outer, inner), kind)}{bias})")
    elif way < 0.8 and value.ndim > 2:
        batch = tuple(1 if d.chance(0.3) else size for size in value.shape[:-2])
        d.add(f"{name} @ {d.leaf((*batch, inner, outer), kind)}")
    else:
        d.add(f"{name} @ {d.leaf((inner, outer), kind)}")


def contract(d: Draw) -> None:
    name = d.pick(lambda v: 0 < v.ndim <= 3 and v.x.size <= 1000)
    value = d.values[name]
    kind = value.type if d.chance(0.9) else d.choice(d.types)
    n = value.shape
    new = d.choice((2, 3, 5))
    if value.ndim == 1:
        other = d.leaf((new,), kind)
        same = d.leaf(n, kind)
        ways = [f"{name}.outer({other})", f"{name}.kron({other})", f"{name}.dot({same})",
                f"{name}.inner({same})",
                f"Tensor.einsum('i,j->ji', {name}, {other})", f"Tensor.einsum('i,i->', {name}, {same})",
                f"Tensor.einsum('i->', {name})"]  # fmt: skip
    elif value.ndim == 2:
        other = d.leaf((n[1], new), kind)
        same = d.leaf(n, kind)
        ways = [f"Tensor.einsum('ij,jk->ki', {name}, {other})", f"Tensor.einsum('ij,ij->j', {name}, {same})",
                f"Tensor.einsum('ij->ji', {name})", f"{name}.tensordot({same}, 2)", f"{name}.inner({same})",
                f"{name}.tensordot({other}, 1)",
                f"Tensor.einsum('ij,jk,ij->ik', {name}, {other}, {same})"]  # fmt: skip
    else:
        other = d.leaf((n[0], n[2], new), kind)
        ways = [f"Tensor.einsum('bij,bjk->bik', {name}, {other})", f"Tensor.einsum('bij->jb', {name})",
                f"Tensor.einsum('bij,bjk->k', {name}, {other})"]  # fmt: skip
    d.add(d.choice(ways))


def windows(d: Draw) -> None:
    """Convolutions and pools of one or two axes."""
    rank = d.choice((1, 2))
    wanted = d.choice((3, 5, 7, 8, 13))
    try:
        name = d.pick(lambda v: v.ndim == rank + 2 and v.x.size <= 2000 and min(v.shape) > 0)
    except Reject:
        name = d.leaf((d.choice((1, 2)), d.choice((1, 2, 3, 4)), *[wanted] * rank), d.choice(d.types))
    value = d.values[name]
    stride, padding = d.choice((1, 1, 2, 3)), d.choice((0, 0, 1))
    if d.chance(0.4):
        size = d.choice((2, 3))
        way = d.choice(("max", "avg"))
        d.add(f"{name}.{way}_pool{rank}d({size}, {stride}, {padding})")
        return
    channels = value.shape[1]
    groups = channels if d.chance(0.2) else 1
    size = tuple(d.choice((1, 2, 3)) for _ in range(rank))
    outs = groups * d.choice((1, 2, 3))
    weight = d.leaf((outs, channels // groups, *size), value.type)
    bias = d.leaf((outs,), value.type) if d.chance(0.4) else None
    d.add(f"{name}.conv{rank}d({weight}, {bias}, {stride}, {padding}, {d.choice((1, 1, 2))}, {groups})")


def less_common(d: Draw) -> None:
    """Functions of elements that few programs call."""
    name = d.pick(lambda v: is_float(v.type))
    value = d.values[name]
    other = d.partner(value, value.type)
    third = d.partner(value, value.type)
    ways = (f"{name}.frac()", f"{name}.xlogy({other})", f"{name}.addcdiv({other}, {third})",
            f"{name}.softshrink(0.5)", f"{name}.celu(0.7)", f"{name}.quick_gelu()")  # fmt: skip
    d.add(d.choice(ways))


def less_common_reductions(d: Draw) -> None:
    name = d.pick(lambda v: v.ndim > 0)
    value = d.values[name]
    axes, axis, keep = random_axes(d, value), d.axis(value), f"keepdim={d.chance(0.5)}"
    two = d.random.random()
    if two < 0.15:
        d.add(f"{name}.{d.choice(('aminmax', 'var_mean'))}({axes}, {keep})", 2)
    elif two < 0.3:
        d.add(f"{name}.logcumsumexp({axis})")
    elif two < 0.45:
        d.add(f"{name}.quantile({d.choice((0.0, 0.25, 0.5, 0.9, 1.0))}, {axis}, {keep})")
    elif two < 0.55 and value.ndim > 1:
        d.add(f"{name}.trace()")
    elif two < 0.65:
        d.add(f"{name}.vdot({d.leaf(value.shape, value.type)})")
    elif two < 0.75 and value.shape[-1] == 3:
        d.add(f"{name}.cross({d.leaf(value.shape, value.type)})")
    else:
        d.add(f"{name}.{d.choice(('nansum', 'nanmax', 'nanmean'))}({axes}, {keep})")


def less_common_places(d: Draw) -> None:
    name = d.pick(lambda v: v.ndim > 0 and v.x.size > 0)
    value = d.values[name]
    axis = d.axis(value)
    size = value.shape[axis]
    shape = list(value.shape)
    way = d.random.random()
    if way < 0.3:
        shape[axis] = d.choice((1, 2, 3))
        index, source = index_leaf(d, tuple(shape), size), d.leaf(tuple(shape), value.type)
        d.add(f"{name}.scatter_reduce({axis}, {index}, {source}, {d.choice(('sum', 'amax', 'amin'))!r})")
    elif way < 0.45:
        shape[axis] = 1
        d.add(f"{name}.index_copy({axis}, {index_leaf(d, (1,), size)}, {d.leaf(tuple(shape), value.type)})")
    elif way < 0.6:
        source = d.leaf((1, *value.shape[1:]), value.type)
        d.add(f"{name}.index_put(({index_leaf(d, (1,), value.shape[0])},), {source})")
    elif way < 0.8:
        d.add(f"{name}.masked_select({d.leaf(value.shape, 'bool')}, {d.choice((1, 3, 7))})")
    else:
        d.add(f"{name}.nonzero({d.choice((1, 3, 7))})")


def networks(d: Draw) -> None:
    """Attention, losses, transposed convolutions, pools to a size."""
    kind = d.choice([t for t in d.types if is_float(t)] or ["float32"])
    way = d.random.random()
    if way < 0.35:
        lead, n, m, width = (
            d.choice(((), (2,), (1, 3))),
            d.choice((1, 3, 5, 13)),
            d.choice((1, 4, 7)),
            d.choice((2, 8, 5)),
        )
        causal = d.chance(0.4)
        m = n if causal else m
        q, k, v = (d.leaf((*lead, rows, width), kind) for rows in (n, m, m))
        d.add(f"{q}.scaled_dot_product_attention({k}, {v}, is_causal={causal})")
    elif way < 0.55:
        rows, classes = d.choice((1, 2, 7, 31)), d.choice((2, 3, 10))
        logits = d.leaf((rows, classes), kind)
        d.add(f"{logits}.cross_entropy({d.leaf((rows,), d.choice(INTS), 0, classes)})")
    else:
        rank = d.choice((1, 2))
        x = d.leaf((d.choice((1, 2)), d.choice((1, 2, 3)), *[d.choice((3, 4, 7))] * rank), kind)
        if way < 0.75:
            weight = d.leaf((d.values[x].shape[1], d.choice((1, 2)), *[d.choice((1, 2, 3))] * rank), kind)
            d.add(f"{x}.conv_transpose{rank}d({weight}, None, {d.choice((1, 2, 3))}, {d.choice((0, 0, 1))})")
        elif way < 0.9:
            d.add(f"{x}.adaptive_avg_pool{rank}d({d.choice((1, 2, 3))})")
        else:
            d.add(f"{x}.interpolate(scale_factor={d.choice((2, 3))})")


# How often each is drawn, beside the others.
WEIGHTS: dict[Any, int] = {
    smooth: 8, simple: 6, binary: 16, with_number: 8, with_itself: 6, compare: 5, compare_far: 1, power: 2,
    bits: 4, float_pair: 3, choose: 6, clip: 2, cast: 6, reshape: 6, permute: 5, axes_of_one: 2,
    part: 9, shrink: 3,
    pad: 5,    spread: 4, turn: 6, join: 4, parts: 2, end: 5, make: 3, reductions: 14, running: 4,
    shares: 4, order: 3,
    gather: 6, scatter: 4, classes: 1, matmul: 6, contract: 4, windows: 4, less_common: 3,
    less_common_reductions: 4, less_common_places: 3, networks: 3,
}  # fmt: skip
