"""A corpus of programs rather than kernels: training steps, inference, and single expressions.

morok, torch eager, torch.compile and, on a GPU, cuDNN's attention run in turns in one process. Sizes are
drawn around those of the table by a seed, so that the reported run may have a seed that nothing was tuned on
(0: the table's own). Every result is compared with torch's in float64: it must not be further off than twice
what torch itself is in the same type. Rows are printed as they come; when the seconds are over, the rest is
left out.

    [DEVICE=CUDA] python benchmarks/corpus.py [--seconds 200] [--rows gpt,llama] [--seed 7] [--no-compile]
        [--each 0.2] [--show 0.6] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from cliffs import BOUNDS, Bench, Input, Row, line, rows, sizes_of  # type: ignore[import-not-found]
from corpus_models import Model, models  # type: ignore[import-not-found]

TWICE = 2.0  # as far off as torch in the same type


class Corpus(Bench):  # type: ignore[misc]
    """Both libraries under torch's names for functions."""

    def error(self, row: Row, inputs: list[Any], got: Any) -> float:
        """The largest error in norm of all results; torch's own is remembered."""
        wide = [x.double() if x.dtype.is_floating_point else x for x in inputs]
        want = self.theirs(row, wide, False)()
        self.their_error = 0.0
        worst = 0.0
        for g, t, w in zip(
            _listed(got), _listed(self.theirs(row, inputs, False)()), _listed(want), strict=True
        ):
            w = w.detach().double()
            norm = w.norm().clamp_min(1e-300)
            value = self.torch.from_numpy(np.array(g.cast("float32").numpy())).to(self.place).double()
            worst = max(worst, float((value.reshape(w.shape) - w).norm() / norm))
            self.their_error = max(self.their_error, float((t.detach().double() - w).norm() / norm))
        return worst

    def judged(self, row: Row, sizes: dict[str, int], compiled: bool, show: float) -> dict[str, Any]:
        """A row with its verdict."""
        found: dict[str, Any] = self.measure(row, sizes, compiled, show)
        bound = BOUNDS[row.dtype if self.gpu else "float32"]
        found["torch error"] = self.their_error
        found["right"] = found["error"] <= max(bound, TWICE * self.their_error)
        return found


def _listed(x: Any) -> list[Any]:
    return list(x) if isinstance(x, tuple | list) else [x]


def drawn(model: Model, gpu: bool, seed: int) -> dict[str, int]:
    """The sizes of a model."""
    random = np.random.default_rng([seed, *model.name.encode()])
    found = {}
    for name, (large, small, step) in model.sizes.items():
        size = large if gpu else small
        if seed and step:
            size = max(step, round(size * random.uniform(0.6, 1.4) / step) * step)
        found[name] = size
    return found


def as_row(model: Model, sizes: dict[str, int]) -> Row:
    """The model as a row of the table of expressions."""
    weights, data = model.weights(sizes), model.data(sizes)
    trained = [Input(shape, scale=_scale(shape)) for shape in weights.values()]
    given = [
        Input(shape, "int32", below=kind.removeprefix("int:")) if kind else Input(shape)
        for shape, kind in data
    ]
    labels = [given.pop()] if model.trains else []
    names, count = list(weights), len(trained)

    def words(lib: Any, *args: Any) -> Any:
        f = lib.f if lib.f is not None else _functions()
        p = dict(zip(names, args[:count], strict=True))
        longs = [_whole(x) if kind else x for x, (_, kind) in zip(args[count:], data, strict=True)]
        return model.run(f, sizes, p, *longs)

    return Row(
        model.name, {}, (*trained, *given, *labels), words, model.dtype,
        tuple(range(count)) if model.trains else (), error=math.inf,
    )  # fmt: skip


def _whole(x: Any) -> Any:
    return x if hasattr(x, "uop") else x.long()


def _scale(shape: tuple[int, ...]) -> float:
    """Weights that keep numbers near 1; scales and shifts, which have one axis, are near 1 themselves."""
    return 1.0 if len(shape) == 1 else math.prod(shape[1:]) ** -0.5


def _functions() -> Any:
    from morok.nn import functional

    return functional


def programs(gpu: bool, seed: int) -> list[tuple[Callable[[], Row], dict[str, int]]]:
    """Models, then expressions: each is made when its turn comes."""
    found: list[tuple[Callable[[], Row], dict[str, int]]] = []
    for model in models():
        sizes = drawn(model, gpu, seed)
        found.append((lambda model=model, sizes=sizes: as_row(model, sizes), sizes))
    own = [row for row in rows() if row.only in ("", "cuda" if gpu else "cpu")]
    return found + [(lambda row=row: row, sizes_of(row, gpu, seed)) for row in own]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default="", help="only those whose names contain one of these words")
    parser.add_argument("--seed", type=int, default=0, help="0: the sizes of the table")
    parser.add_argument("--seconds", type=float, default=200.0, help="for all; then the rest is left out")
    parser.add_argument("--each", type=float, default=0.2, help="seconds of timing per library and row")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--show", type=float, default=0.6, help="rows below this ratio show their kernels")
    parser.add_argument("--threads", type=int, default=2, help="of the CPU")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    args = parser.parse_args()
    from morok import knobs

    gpu = knobs.default_device().startswith("CUDA")
    if not gpu:
        os.environ.setdefault("MOROK_THREADS", str(args.threads))
    bench = Corpus(gpu, args.each, not args.no_compile)
    bench.torch.backends.cuda.matmul.allow_tf32 = False
    bench.torch.backends.cudnn.allow_tf32 = False
    if not gpu:
        bench.torch.set_num_threads(args.threads)
    run(bench, args, gpu)


def run(bench: Corpus, args: argparse.Namespace, gpu: bool) -> None:
    """All rows that were asked for, as far as the seconds go."""
    wanted = [w.lower() for w in args.rows.split(",") if w]
    began = time.perf_counter()
    done: list[dict[str, Any]] = []
    left = 0
    for make, sizes in programs(gpu, args.seed):
        row = make()
        if wanted and not any(w in row.name.lower() for w in wanted):
            continue
        spent = time.perf_counter() - began
        if spent > args.seconds:
            left += 1
            continue
        compiled = not args.no_compile and spent < 0.7 * args.seconds
        try:
            found = bench.judged(row, sizes, compiled, args.show)
            print(line(found), flush=True)
        except Exception as failed:  # one row that fails must not hide the others
            found = {"row": row.name, "failed": f"{type(failed).__name__}: {failed}"[:300]}
            print(f"BAD {row.name:<38} {found['failed']}", flush=True)
        done.append(found)
        if gpu:
            bench.torch.cuda.empty_cache()
        if args.json:
            args.json.write_text(json.dumps(done, indent=1), encoding="utf-8")
    ratios = [r["ratio"] for r in done if "ratio" in r]
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        low, wrong = sum(r < 0.6 for r in ratios), sum(not r.get("right", False) for r in done)
        print(f"geometric mean {mean:.3f} over {len(ratios)} rows, {low} below 0.6, {wrong} wrong or failed, "
              f"{left} left out, seed {args.seed}")  # fmt: skip


if __name__ == "__main__":
    main()
