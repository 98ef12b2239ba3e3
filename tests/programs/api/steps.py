"""The steps that a program may take: each draws one statement of the API and adds it."""

from __future__ import annotations

from typing import Any

from tests.programs.api.draw import Draw
from tests.programs.api.elementwise import SMOOTH, STEPWISE, TESTS
from tests.programs.api.formats import ALL, FORMATS, INTS, NUMPY, is_float, is_int
from tests.programs.api.whole import Reference

BINARY = ("{} + {}", "{} - {}", "{} * {}", "{} / {}", "{} // {}", "{} % {}", "{}.maximum({})",
          "{}.minimum({})", "{} + {}", "{} * {}", "{} - {}", "{}.fmod({})", "{}.fmax({})",
          "{}.fmin({})")  # fmt: skip
COMPARE = ("{} < {}", "{} <= {}", "{} > {}", "{} >= {}", "{}.eq({})", "{}.ne({})")
LOGICAL = ("{}.logical_and({})", "{}.logical_or({})", "{}.logical_xor({})")
FLOAT_PAIRS = ("{}.atan2({})", "{}.hypot({})", "{}.logaddexp({})", "{}.copysign({})", "{}.lerp({}, 0.3)")


def smooth(d: Draw) -> None:
    name = d.pick(lambda v: is_float(v.type) or d.chance(0.1))
    d.add(f"{name}.{d.choice(tuple(SMOOTH))}()")


def simple(d: Draw) -> None:
    name = d.pick()
    way = d.choice((*STEPWISE, *TESTS, "sign", "signbit", "relu", "relu6", "abs", "square", "logical_not",
                    "nan_to_num", "-", "~", "leaky_relu(0.1)", "elu(1.5)",
                    "hardtanh(-1.0, 2.0)"))  # fmt: skip
    text = f"{way}{name}" if way in "-~" else f"{name}.{way}" if way.endswith(")") else f"{name}.{way}()"
    d.add(text)


def binary(d: Draw) -> None:
    first = d.pick()
    second = d.partner(d.values[first])
    d.add(d.choice(BINARY).format(first, second))


def with_number(d: Draw) -> None:
    name = d.pick()
    number = d.number(d.values[name].type)
    pair = (name, repr(number)) if d.chance(0.7) or isinstance(number, bool) else (f"({number!r})", name)
    texts = [t for t in (*BINARY, *COMPARE) if "." not in t or pair[0] == name]
    d.add(d.choice(texts).format(*pair))


def with_itself(d: Draw) -> None:
    """A value with a movement of its own: both are read in one kernel."""
    name = d.pick(lambda v: v.ndim > 0)
    value = d.values[name]
    axis = d.axis(value)
    moved = d.choice((f"{name}.flip({axis})", f"{name}.roll(1, {axis})", f"{name}.sum({axis}, keepdim=True)",
                      f"{name}.cumsum({axis})", f"{name}.max({axis}, keepdim=True)", f"{name}.T"
                      if len(set(value.shape)) == 1 and value.ndim == 2 else name))  # fmt: skip
    d.add(d.choice((*BINARY, *COMPARE)).format(name, moved.replace(".T", ".permute(1, 0)")))


def compare(d: Draw) -> None:
    first = d.pick()
    second = d.partner(d.values[first])
    d.add(d.choice((*COMPARE, *LOGICAL)).format(first, second))


def compare_far(d: Draw) -> None:
    """An integer that the type does not hold can be compared with all the same."""
    name = d.pick(lambda v: is_int(v.type))
    d.add(d.choice(COMPARE).format(name, d.choice((-1, 300, -40000, 70000, 1 << 33))))


def power(d: Draw) -> None:
    name = d.pick(lambda v: v.type != "bool")
    kind = d.values[name].type
    if d.chance(0.6):
        whole = is_int(kind) or d.chance(0.5)
        d.add(f"{name} ** {d.choice((0, 1, 2, 3, 4) if whole else (-1.0, 0.5, 1.5, 2.0))}")
    elif is_int(kind):
        d.add(f"{name} ** {d.leaf(d.values[name].shape, kind, 0, 6)}")
    else:
        d.add(f"({name}.abs() + 0.5) ** {d.partner(d.values[name], kind)}")


def bits(d: Draw) -> None:
    first = d.pick(lambda v: not is_float(v.type))
    value = d.values[first]
    if is_int(value.type) and d.chance(0.5):
        by = NUMPY[value.type].itemsize * 8
        if d.chance(0.5):
            d.add(f"{first} {d.choice(('<<', '>>'))} {d.random.randrange(by + 2)}")
        else:
            d.add(f"{first} {d.choice(('<<', '>>'))} {d.leaf(value.shape, value.type, 0, by + 2)}")
        return
    second = d.partner(value, value.type if d.chance(0.7) else d.choice(INTS))
    ways = ("&", "|", "^", "<<", ">>") if d.values[second].type == value.type == "bool" else ("&", "|", "^")
    d.add(f"{first} {d.choice(ways)} {second}")


def float_pair(d: Draw) -> None:
    first = d.pick(lambda v: is_float(v.type) or d.chance(0.1))
    value = d.values[first]
    second = d.partner(value, value.type)
    if d.chance(0.15):
        d.add(f"{first}.addcmul({second}, {d.partner(value, value.type)}, value={d.choice((1, 2, -1))})")
    else:
        d.add(d.choice(FLOAT_PAIRS).format(first, second))


def choose(d: Draw) -> None:
    first = d.pick()
    value = d.values[first]
    mask = d.partner(value, "bool")
    if d.chance(0.3):
        d.add(f"{mask}.where({first}, {d.number(value.type)!r})")
    elif d.chance(0.2):
        d.add(f"{mask}.where({d.number('int64')!r}, {d.number('float32')!r})")
    elif d.chance(0.2):
        d.add(f"{first}.masked_fill({mask}, {d.number(value.type)!r})")
    else:
        d.add(f"{mask}.where({first}, {d.partner(value)})")


def clip(d: Draw) -> None:
    name = d.pick(lambda v: v.type != "bool")
    low, high = (d.number(d.values[name].type) for _ in range(2))
    if is_int(d.values[name].type) and d.chance(0.2):  # beyond what most types hold
        low, high = d.choice(((-(1 << 70), 3), (0, 1 << 70), (-(1 << 70), 1 << 70)))
    if is_float(d.values[name].type) or isinstance(low, float) == isinstance(high, float):
        d.add(f"{name}.clip({min(low, high)!r}, {max(low, high)!r})")


def cast(d: Draw) -> None:
    name = d.pick()
    kind = d.choice(ALL)
    if d.chance(0.1):
        size = NUMPY[d.values[name].type].itemsize
        d.add(f"{name}.bitcast({d.choice([t for t in ALL if NUMPY[t].itemsize == size])!r})")
    else:
        d.add(f"{name}.cast({kind!r})")


# --- movement


def reshape(d: Draw) -> None:
    name = d.pick()
    value = d.values[name]
    count, shape = value.x.size, []
    while count > 1 and len(shape) < 4 and d.chance(0.8):
        factor = d.choice([f for f in range(1, count + 1) if count % f == 0])
        shape.append(factor)
        count //= factor
    shape.append(count)
    if value.x.size == 0:
        shape = sorted(value.shape, reverse=True)
    d.random.shuffle(shape)
    if d.chance(0.2) and value.x.size:
        shape[d.random.randrange(len(shape))] = -1
    if d.chance(0.15) and value.ndim:
        d.add(
            d.choice(
                (f"{name}.ravel()", f"{name}.flatten()", f"{name}.flatten({d.random.randrange(value.ndim)})")
            )
        )
    else:
        d.add(f"{name}.reshape({', '.join(map(str, shape))})")


def permute(d: Draw) -> None:
    name = d.pick(lambda v: v.ndim > 1)
    value = d.values[name]
    axes = list(range(value.ndim))
    d.random.shuffle(axes)
    ways = (
        f"{name}.permute({', '.join(map(str, axes))})",
        f"{name}.transpose({d.axis(value)}, {d.axis(value)})",
        f"{name}.movedim({d.axis(value)}, {d.axis(value)})",
        f"{name}.rot90({d.choice((1, 2, 3, -1))}, (0, 1))",
    )
    d.add(d.choice(ways[:1] * 3 + ways))


def axes_of_one(d: Draw) -> None:
    name = d.pick()
    value = d.values[name]
    if d.chance(0.6) and value.ndim < 5:
        d.add(f"{name}.unsqueeze({d.random.randrange(-value.ndim - 1, value.ndim + 1)})")
    else:
        d.add(f"{name}.squeeze()")


def part(d: Draw) -> None:
    """Basic indices: numbers, slices with steps, new axes, an ellipsis."""
    name = d.pick(lambda v: v.ndim > 0)
    value = d.values[name]
    places: list[str] = []
    for size in value.shape[: d.random.randrange(1, value.ndim + 1)]:
        way = d.random.random()
        if way < 0.2 and size:
            places.append(str(d.random.randrange(-size, size)))
        elif way < 0.85:
            ends = [str(d.random.randrange(-size - 2, size + 3)) if d.chance(0.6) else "" for _ in range(2)]
            step = d.choice(("", "", "2", "3", "-1", "-2", "7"))
            places.append(f"{ends[0]}:{ends[1]}:{step}")
        else:
            places.append(":")
        if d.chance(0.08):
            places.append("None")
    if d.chance(0.2):
        places.insert(
            d.random.randrange(len(places) + 1) if len(places) == value.ndim else len(places), "..."
        )
    d.add(f"{name}[{', '.join(places)}]")


def shrink(d: Draw) -> None:
    name = d.pick(lambda v: v.ndim > 0 and v.x.size > 0)
    value = d.values[name]
    axis = d.axis(value)
    size = value.shape[axis]
    start = d.random.randrange(size)
    length = d.random.randrange(0 if d.chance(0.05) else 1, size - start + 1)
    limits = [None] * value.ndim
    limits[axis] = (start, start + length)
    d.add(d.choice((f"{name}.shrink({tuple(limits)})", f"{name}.narrow({axis}, {start}, {length})",
                    f"{name}.select({axis}, {start})")))  # fmt: skip


def pad(d: Draw) -> None:
    name = d.pick(lambda v: v.ndim > 0)
    value = d.values[name]
    padding = tuple((d.choice((0, 0, 1, 2, 3)), d.choice((0, 1, 2))) for _ in range(value.ndim))
    if d.chance(0.25) and all(size > 3 for size in value.shape):
        d.add(f"{name}.pad({padding}, mode={d.choice(('reflect', 'symmetric', 'replicate', 'circular'))!r})")
    elif d.chance(0.4) and value.type != "bool":
        fill = d.number(value.type)
        d.add(f"{name}.pad({padding}, value={fill if is_float(value.type) else int(fill)!r})")
    else:
        d.add(f"{name}.pad({padding})")


def spread(d: Draw) -> None:
    name = d.pick()
    value = d.values[name]
    if d.chance(0.5):
        sizes = [d.size() if size == 1 else size for size in value.shape]
        lead = [d.choice((1, 2, 3))] if d.chance(0.4) else []
        d.add(f"{name}.expand({', '.join(map(str, lead + sizes))})" if lead + sizes else f"{name}.expand(3)")
    elif d.chance(0.5) and value.ndim:
        d.add(f"{name}.repeat({', '.join(str(d.choice((1, 2, 3))) for _ in range(value.ndim))})")
    else:
        axis = d.axis(value)
        d.add(f"{name}.repeat_interleave({d.choice((1, 2, 3))}, {axis})")


def turn(d: Draw) -> None:
    name = d.pick(lambda v: v.ndim > 0)
    value = d.values[name]
    axis = d.axis(value)
    ways = [f"{name}.flip({axis})", f"{name}.roll({d.choice((-3, -1, 1, 2, 5))}, {axis})", f"{name}.flip()"]
    if value.ndim > 1:
        by = d.choice((-2, -1, 0, 1, 2))
        ways += [f"{name}.tril({by})", f"{name}.triu({by})", f"{name}.diagonal({d.choice((0, 0, 1, -1))})"]
    if value.ndim < 4:
        ways.append(f"{name}.diag_embed({d.choice((0, 1, -1))})")
    if value.shape[axis] > 2:
        ways.append(f"{name}.unfold({axis}, {d.choice((1, 2, 3))}, {d.choice((1, 2))})")
    d.add(d.choice(ways))


def join(d: Draw) -> None:
    name = d.pick(lambda v: v.ndim > 0)
    value = d.values[name]
    if d.chance(0.4):
        other = name if d.chance(0.3) else d.leaf(value.shape, value.type if d.chance(0.8) else None)
        d.add(f"{name}.stack({other}, dim={d.random.randrange(value.ndim + 1)})")
        return
    axis = d.axis(value)
    others = []
    for _ in range(d.choice((1, 1, 2))):
        shape = list(value.shape)
        shape[axis] = d.size()
        others.append(d.leaf(tuple(shape), value.type if d.chance(0.8) else None))
    d.add(f"{name}.cat({', '.join(others)}, dim={axis})")


def parts(d: Draw) -> None:
    name = d.pick(lambda v: v.ndim > 0 and v.x.size > 0)
    value = d.values[name]
    axis = d.axis(value)
    size = value.shape[axis]
    if d.chance(0.5):
        each = d.random.randrange(1, size + 1)
        if -(-size // each) <= 4:
            d.add(f"{name}.split({each}, {axis})", -(-size // each))
    elif d.chance(0.5):
        cut = d.random.randrange(size + 1)
        d.add(f"{name}.split(({cut}, {size - cut}), {axis})", 2)
    else:
        count = d.choice((2, 3))
        d.add(f"{name}.tensor_split({count}, {axis})", count)


def end(d: Draw) -> None:
    """The values are wanted here: in memory, or at least not computed twice."""
    d.add(f"{d.pick()}.{d.choice(('realize', 'contiguous'))}()")


def make(d: Draw) -> None:
    kind = d.choice(d.types)
    shape = d.shape(0, 3)
    plain = "".join(f"{size}, " for size in shape)
    fill = d.number(kind)
    fill = fill if is_float(kind) else int(fill) if kind != "bool" else bool(fill)
    ways = [f"Tensor.full({shape}, {fill!r}, dtype={kind!r})", f"Tensor.zeros({plain}dtype={kind!r})",
            f"Tensor.ones({plain}dtype={kind!r})"]  # fmt: skip
    if (kind != "bool" and kind in FORMATS) or is_int(kind):
        ways += [f"Tensor.arange(0, {d.choice((3, 5, 7, 13))}, {d.choice((1, 2))}, dtype={kind!r})"] * 2
        ways.append(f"Tensor.eye({d.choice((1, 3, 5))}, {d.choice((2, 3, 7))}, dtype={kind!r})")
    d.add(d.choice(ways))


def random_axes(d: Draw, value: Reference) -> Any:
    way = d.random.random()
    if value.ndim == 0:
        return d.choice((None, 0, -1))
    if way < 0.25:
        return None
    if way < 0.7 or value.ndim == 1:
        return d.axis(value)
    count = d.random.randrange(1, value.ndim + 1)
    return tuple(d.random.sample(range(value.ndim), count))


def reductions(d: Draw) -> None:
    name = d.pick()
    value = d.values[name]
    axes = random_axes(d, value)
    keep = f", keepdim={d.chance(0.5)}"
    way = d.choice(("sum", "sum", "sum", "max", "min", "prod", "any", "all", "mean", "mean", "count_nonzero",
                    "var", "std", "norm", "logsumexp", "median", "argmax", "argmin"))  # fmt: skip
    if way in ("argmax", "argmin", "median") and isinstance(axes, tuple):
        axes = axes[0]
    if way in ("var", "std"):
        keep += f", correction={d.choice((0, 1))}"
    first = f"{d.choice((1, 2, 2, 'inf'))}, " if way == "norm" else ""
    d.add(f"{name}.{way}({first}{axes}{keep})")


def running(d: Draw) -> None:
    name = d.pick(lambda v: v.ndim > 0)
    value = d.values[name]
    way = d.choice(("cumsum", "cumsum", "cumprod", "cummax", "cummin"))
    d.add(f"{name}.{way}({d.axis(value)})")


def shares(d: Draw) -> None:
    name = d.pick(lambda v: v.ndim > 0)
    axis = d.axis(d.values[name])
    d.add(d.choice((f"{name}.softmax({axis})", f"{name}.log_softmax({axis})", f"{name}.layer_norm()",
                    f"{name}.rms_norm()")))  # fmt: skip


def order(d: Draw) -> None:
    name = d.pick(lambda v: v.ndim > 0 and v.x.size <= 1100)
    value = d.values[name]
    axis, down = d.axis(value), d.chance(0.4)
    way = d.random.random()
    if way < 0.5:
        d.add(f"{name}.sort({axis}, descending={down})", 2)
    elif way < 0.7:
        d.add(f"{name}.argsort({axis}, descending={down})")
    elif way < 0.9:
        k = d.random.randrange(1, value.shape[axis] + 1) if value.shape[axis] else 0
        d.add(f"{name}.topk({k}, {axis}, largest={down})", 2)
    else:
        d.add(f"{name}.sort({axis})[0].ravel()[:1].searchsorted({name})" if value.ndim != 1
              else f"{name}.sort()[0].searchsorted({name}, right={down})")  # fmt: skip
