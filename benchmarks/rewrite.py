"""How fast index expressions are built and simplified; beside tinygrad's symbolic rules where it is
installed.

Random chains of reshape, permute, pad, shrink, flip and expand are lowered to index arithmetic as a
scheduler does it, without simplifying on the way. Both compilers get the same expressions in the same
process, each a fresh set per repeat.

    python benchmarks/rewrite.py [--chains 400] [--repeats 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import math
import random
import time
from typing import Any, Protocol

Index = Any


class Language(Protocol):
    """What building an index expression needs."""

    name: str

    def loop(self, number: int, size: int) -> Index: ...
    def number(self, value: int) -> Index: ...
    def both(self, p: Index, q: Index) -> Index: ...
    def less(self, x: Index, y: Index) -> Index: ...
    def choose(self, p: Index, x: Index) -> Index: ...
    def root(self, parts: list[Index]) -> Any: ...
    def count(self, root: Any) -> int: ...
    def simplify(self, root: Any) -> Any: ...


class Morok:
    """morok with its rule set `symbolic`."""

    name = "morok"

    def __init__(self) -> None:
        from morok.dtype import index
        from morok.ir.build import rng, sink
        from morok.ir.node import const, toposort
        from morok.symbolic.sets import simplify, symbolic

        self._index, self._rng, self._sink, self._const, self._toposort = index, rng, sink, const, toposort
        self._simplify, self._set = simplify, symbolic

    def loop(self, number: int, size: int) -> Index:
        return self._rng(size, number)

    def number(self, value: int) -> Index:
        return self._const(self._index, value)

    def both(self, p: Index, q: Index) -> Index:
        return p & q

    def less(self, x: Index, y: Index) -> Index:
        return x < y

    def choose(self, p: Index, x: Index) -> Index:
        return p.where(x, -1)

    def root(self, parts: list[Index]) -> Any:
        return self._sink(*parts)

    def count(self, root: Any) -> int:
        return len(self._toposort(root))

    def simplify(self, root: Any) -> Any:
        return self._simplify(root, self._set)


class Tinygrad:
    """tinygrad's graph_rewrite with its rule set `symbolic`."""

    name = "tinygrad"

    def __init__(self) -> None:
        from tinygrad import dtypes
        from tinygrad.uop.ops import AxisType, UOp, graph_rewrite
        from tinygrad.uop.symbolic import symbolic

        self._dtype = dtypes.weakint
        self._uop, self._axis, self._rewrite, self._set = UOp, AxisType, graph_rewrite, symbolic

    def loop(self, number: int, size: int) -> Index:
        return self._uop.range(size, number, self._axis.LOOP)

    def number(self, value: int) -> Index:
        return self._uop.const(value, self._dtype)

    def both(self, p: Index, q: Index) -> Index:
        return p & q

    def less(self, x: Index, y: Index) -> Index:
        return x < y

    def choose(self, p: Index, x: Index) -> Index:
        return p.where(x, self.number(-1))

    def root(self, parts: list[Index]) -> Any:
        return self._uop.sink(*parts)

    def count(self, root: Any) -> int:
        return len(root.toposort())

    def simplify(self, root: Any) -> Any:
        return self._rewrite(root, self._set)


def random_shape(rnd: random.Random, size: int) -> list[int]:
    """A shape with `size` elements."""
    dims = []
    while size > 1 and len(dims) < 4:
        divisors = [d for d in range(2, min(size, 64) + 1) if size % d == 0]
        if not divisors:
            break
        d = rnd.choice(divisors)
        dims.append(d)
        size //= d
    return [*dims, size] if size > 1 or not dims else dims


def chain(lang: Language, rnd: random.Random, first_loop: int, steps: int) -> Index:
    """The flat index, with its validity, that a chain of movement ops asks of its input, from the output
    backwards."""
    shape = random_shape(rnd, rnd.choice([64, 360, 512, 1024, 4096, 5040, 3 * 5 * 7 * 16, 8192]))
    idx = [lang.loop(first_loop + i, s) for i, s in enumerate(shape)]
    valid = None
    for _ in range(steps):
        step = rnd.choice(["reshape", "reshape", "permute", "pad", "shrink", "flip", "expand"])
        axis = rnd.randrange(len(shape))
        if step == "reshape":
            flat = None
            for i, s in zip(idx, shape, strict=True):
                flat = i if flat is None else flat * s + i
            shape = random_shape(rnd, math.prod(shape))
            idx, rest = [], math.prod(shape)
            for s in shape:
                rest //= s
                idx.append((flat // lang.number(rest)) % lang.number(s))
        elif step == "permute":
            order = rnd.sample(range(len(shape)), len(shape))
            shape, idx = [shape[o] for o in order], [idx[o] for o in order]
        elif step == "pad" and shape[axis] > 4:
            before, after = rnd.choice([(1, 1), (2, 0), (0, 3)])
            moved = idx[axis] + lang.number(-before)
            inside = lang.both(
                lang.less(lang.number(before - 1), idx[axis]),
                lang.less(idx[axis], lang.number(shape[axis] - after)),
            )
            valid = inside if valid is None else lang.both(valid, inside)
            idx[axis], shape[axis] = moved, shape[axis] - before - after
        elif step == "shrink":
            extra = rnd.choice([1, 2, 8])
            idx[axis], shape[axis] = idx[axis] + lang.number(extra), shape[axis] + 2 * extra
        elif step == "flip":
            idx[axis] = lang.number(shape[axis] - 1) + idx[axis] * lang.number(-1)
        elif step == "expand" and len(shape) > 1:
            idx.pop(axis)
            shape.pop(axis)
    flat = None
    for i, s in zip(idx, shape, strict=True):
        flat = i if flat is None else flat * lang.number(s) + i
    return flat if valid is None else lang.choose(valid, flat)


def build(lang: Language, seed: int, chains: int) -> Any:
    rnd = random.Random(seed)
    return lang.root([chain(lang, rnd, 8 * i, rnd.randint(4, 10)) for i in range(chains)])


def measure(lang: Language, chains: int, repeats: int) -> dict[str, float]:
    """Sums over several fresh sets, the same for every language: nodes, seconds, nodes left."""
    total = {"nodes": 0.0, "build": 0.0, "simplify": 0.0, "left": 0.0}
    for repeat in range(repeats):  # another set each time, since results are remembered
        gc.collect()
        started = time.perf_counter()
        root = build(lang, 1000 + repeat, chains)
        built = time.perf_counter()
        total["nodes"] += lang.count(root)
        again = time.perf_counter()
        result = lang.simplify(root)
        done = time.perf_counter()
        total["build"] += built - started
        total["simplify"] += done - again
        total["left"] += lang.count(result)
    total["rate"] = total["nodes"] / (total["build"] + total["simplify"])
    return total


def reason(error: Exception) -> str:
    """What went wrong with a peer, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:100]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chains", type=int, default=1500)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json")
    options = parser.parse_args()
    languages: list[Any] = [Morok]
    if importlib.util.find_spec("tinygrad"):
        languages.append(Tinygrad)
    else:
        print("tinygrad is not installed: no comparison")
    rows = {}
    print(f"{'':10} {'nodes':>8} {'build s':>9} {'simplify s':>11} {'nodes left':>11} {'nodes/s':>10}")
    for make in languages:
        try:
            lang = make()
            r = rows[lang.name] = measure(lang, options.chains, options.repeats)
        except Exception as error:
            if make is Morok:
                raise
            print(f"{make.__name__.lower():10} {'-':>8} ({reason(error)})")
            continue
        times = f"{r['build']:9.3f} {r['simplify']:11.3f}"
        print(f"{lang.name:10} {r['nodes']:8.0f} {times} {r['left']:11.0f} {r['rate']:10.0f}")
    if "tinygrad" in rows:
        ratio = rows["morok"]["rate"] / rows["tinygrad"]["rate"]
        alone = rows["tinygrad"]["simplify"] / rows["morok"]["simplify"]
        print(
            f"morok is {ratio:.2f} times as fast (build and simplify), {alone:.2f} times in simplifying alone"
        )
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=2)


if __name__ == "__main__":
    main()
