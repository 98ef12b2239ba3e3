"""What PROVE=2 shows about the kernels of whole models and of random programs, and what it costs.

    python benchmarks/proofs.py [resnet] [gpt] [programs] [--programs 200] [--small]

The kernels are those of ResNet-18 and of a 12-layer GPT-2 at their usual sizes, and of the first random
programs of `tests/programs`. Nothing is run but the programs: a kernel is proved when it is compiled. Exits
with 1 if a kernel is refuted.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from morok import Tensor, knobs
from morok.cli.bench.libraries import Morok
from morok.cli.bench.models import gpt, gpt_weights, resnet18, resnet_weights
from morok.device import prove
from morok.errors import CompileError

ROOT = Path(__file__).parents[1]


def resnet(small: bool) -> list[str]:
    """ResNet-18 on one image."""
    side, width = (64, 16) if small else (224, 64)
    x = Tensor(np.zeros((1, 3, side, side), np.float32))
    return _compiled(resnet18(Morok(), x, _tensors(resnet_weights(width, 100 if small else 1000))))


def gpt2(small: bool) -> list[str]:
    """A GPT-2 on 64 tokens."""
    layers, width, words, length = (1, 96, 200, 16) if small else (12, 768, 50257, 64)
    mask = Tensor(np.tril(np.ones((length, length), bool)))
    tokens = Tensor(np.zeros((1, length), np.int32))
    weights = _tensors(gpt_weights(layers, width, words, length))
    return _compiled(gpt(Morok(), tokens, mask, weights))


def _tensors(weights: dict[str, Any]) -> dict[str, Any]:
    return {name: Tensor(array) for name, array in weights.items()}


def _compiled(result: Tensor) -> list[str]:
    try:
        result.plan().compile()
    except CompileError as error:
        return [str(error)]
    return []


def random_programs(count: int) -> list[str]:
    """Programs of `tests/programs`, the same ones every time."""
    sys.path.insert(0, str(ROOT))
    from hypothesis import HealthCheck, Phase, given, seed, settings

    from tests.programs.generate import Program, programs, run

    wrong: list[str] = []

    @seed(0)
    @settings(
        max_examples=count, database=None, deadline=None, phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(programs())
    def each(program: Program) -> None:
        try:
            run(program, "CPU")
        except CompileError as error:
            wrong.append(f"{error}\n{program}")

    each()
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "parts", nargs="*", choices=["resnet", "gpt", "programs", []], help="all, if none is named"
    )
    parser.add_argument("--programs", type=int, default=200, help="how many (200)")
    parser.add_argument("--small", action="store_true", help="smaller models")
    parser.add_argument("--level", type=int, default=2, help="of PROVE (2)")
    args = parser.parse_args()
    random.seed(0)
    prove.without_report()
    works = {
        "resnet": lambda: resnet(args.small),
        "gpt": lambda: gpt2(args.small),
        "programs": lambda: random_programs(args.programs),
    }
    failed = False
    with knobs.override(PROVE=args.level, CACHE=False, DEVICE="CPU"):
        for name in args.parts or works:
            prove.totals.clear()
            started = time.perf_counter()
            wrong = works[name]()
            print(f"{name}: {time.perf_counter() - started:.1f} s\n{prove.totals.report()}", flush=True)
            for text in wrong:
                print(f"  wrong: {text}", flush=True)
            failed |= bool(wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
