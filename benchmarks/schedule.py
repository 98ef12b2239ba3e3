"""How long building and scheduling a model takes: the first time, and again with the schedule cache.

"First" includes compiling the rule sets, which a process does once. "Again" builds the graph anew on new
inputs. tinygrad's time for the same graph stands beside it where it is installed.

    python benchmarks/schedule.py [--repeats 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from models import Gpt, ResNet18  # type: ignore[import-not-found]


def morok_makers() -> dict[str, Callable[[], Any]]:
    from morok import Tensor

    gpt, resnet = Gpt(Tensor), ResNet18(Tensor)
    return {
        "gpt-2, 64 tokens": lambda: gpt(Tensor([[7] * 64])),
        "resnet-18": lambda: resnet(Tensor.empty(1, 3, 224, 224)),
    }


def tinygrad_makers() -> dict[str, Callable[[], Any]]:
    from tinygrad import Tensor

    gpt, resnet = Gpt(Tensor), ResNet18(Tensor)
    return {
        "gpt-2, 64 tokens": lambda: gpt(Tensor([[7] * 64])),
        "resnet-18": lambda: resnet(Tensor.empty(1, 3, 224, 224)),
    }


def measure(
    make: Callable[[], Any], plan: Callable[[Any], Any], repeats: int
) -> tuple[float, float, float, Any]:
    """Seconds of the first time, of the best later one, of building alone in it, and the last result."""
    started = time.perf_counter()
    found = plan(make())
    first = time.perf_counter() - started
    best, building = float("inf"), 0.0
    for _ in range(repeats):
        started = time.perf_counter()
        graph = make()
        built = time.perf_counter()
        found = plan(graph)
        total = time.perf_counter() - started
        if total < best:
            best, building = total, built - started
    return first, best, building, found


def peer_makers() -> dict[str, Any]:
    """tinygrad's models; none, with the reason, where it is installed but broken."""
    try:
        return tinygrad_makers()
    except Exception as error:
        print(f"tinygrad -: {reason(error)}")
        return {}


def reason(error: Exception) -> str:
    """What went wrong with a peer, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:100]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name, make in morok_makers().items():
        first, again, building, plan = measure(make, lambda t: t.prepare(), options.repeats)
        rows.append(
            {
                "model": name, "compiler": "morok", "kernels": len(plan.kernels),
                "different": len({k.ast for k in plan.kernels}),
                "first_ms": first * 1e3, "again_ms": again * 1e3, "building_ms": building * 1e3,
                "peak_mb": plan.memory.peak / 1e6,
            }
        )  # fmt: skip
    if importlib.util.find_spec("tinygrad") is not None:
        for name, make in peer_makers().items():
            try:
                first, again, building, found = measure(make, lambda t: t.schedule_linear(), options.repeats)
            except Exception as error:
                print(f"{name}: tinygrad -: {reason(error)}")
                continue
            rows.append(
                {
                    "model": name, "compiler": "tinygrad", "kernels": len(found.src),
                    "first_ms": first * 1e3, "again_ms": again * 1e3, "building_ms": building * 1e3,
                }
            )  # fmt: skip
    print(f"{'model':<20} {'compiler':<10} {'kernels':>8} {'first':>10} {'again':>10} {'of it building':>16}")
    for row in rows:
        print(
            f"{row['model']:<20} {row['compiler']:<10} {row['kernels']:>8} {row['first_ms']:>7.0f} ms "
            f"{row['again_ms']:>7.1f} ms {row['building_ms']:>13.1f} ms"
        )
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
