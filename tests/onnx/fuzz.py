"""Files with some bytes changed: whatever is wrong with them is one of morok's errors.

    python -m tests.onnx.fuzz [COUNT] [SEED]

Small models of the package's own test data are changed at random, loaded, and run on inputs that come with
them. Printed: how many still ran, how many were refused, and everything else that was raised.
"""

from __future__ import annotations

import random
import resource
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, numpy_helper

from morok.errors import MorokError
from morok.onnx import load

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data"
LARGEST = 20_000  # bytes of a file


def files() -> list[Path]:
    kinds = ("pytorch-converted", "pytorch-operator", "simple")
    found = [p for kind in kinds for p in sorted((FOLDER / kind).glob("*/model.onnx"))]
    return [p for p in found if p.stat().st_size <= LARGEST]


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, left out, put in, or a stretch repeated."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(made))
        what = rng.randrange(5)
        if what <= 1:
            made[at] = rng.randrange(256)
        elif what == 2:
            made[at] ^= 1 << rng.randrange(8)
        elif what == 3:
            del made[at : at + rng.randrange(1, 9)]
        else:
            made[at:at] = made[at : at + rng.randrange(1, 33)]
        if not made:
            return b"\0"
    return bytes(made)


def inputs(path: Path) -> list[Any]:
    made = []
    for file in sorted(path.parent.glob("test_data_set_0/input_*.pb")):
        proto = TensorProto()
        proto.ParseFromString(file.read_bytes())
        made.append(numpy_helper.to_array(proto))
    return made


def attempt(path: Path, rng: random.Random, run: bool = True) -> str:
    """What became of a changed file: ran, refused, or the name of whatever else was raised."""
    data = mutated(path.read_bytes(), rng)
    try:
        model = load(data)
        if run:
            model.run(None, dict(zip([p.name for p in model.inputs], inputs(path), strict=False)))
    except MorokError:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:120]}"
    return "ran"


def main() -> None:
    warnings.simplefilter("ignore")
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))  # whoever asks for more is told so
    counts: Counter[str] = Counter()
    known = files()
    for n in range(seed, seed + count):
        rng = random.Random(n)
        path = rng.choice(known)
        result = attempt(path, rng)
        counts[result.partition(":")[0]] += 1
        if result not in ("ran", "refused"):
            print(n, path.parent.name, result, flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main()
