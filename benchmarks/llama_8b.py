"""A Llama of eight billion random parameters on a GPU: one step of one text and of several, kernel by kernel.

    DEVICE=CUDA python benchmarks/llama_8b.py [--forms BF16,Q8_0,Q4_K] [--texts 1,16] [--layers 32]
                                              [--at 128] [--rounds 20] [--kernels 12] [--activations exact]

The shape is Llama 3's of that size. Weights are made on the device, each array of numbers of its own, so that
no cache holds them. Printed for every format and number of texts: milliseconds of a replayed step (median),
what bytes of weights that is per second, as a share of 4.8 TB/s, and the same for the whole model where fewer
layers were asked for: kernels that run once per layer are counted 32 times; how long a step takes that is
called, where the host may be slower than the GPU. Then every kernel by itself.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from morok import Tensor, Variable, jit, knobs, no_grad, profile
from morok.device.registry import default_device, get_device
from morok.llm.config import Config, Rotation
from morok.llm.generate import ACTIVATIONS
from morok.llm.matrix import Matrix, Packed, Plain
from morok.llm.model import Decoder
from morok.llm.words import LANES, WORD_FORMATS, Stored
from morok.tensor.jit.steady import Steady

BANDWIDTH = 4.8e12  # of an H200, bytes per second
LAYERS, CONTEXT = 32, 4096
IN_A_ROW = 8  # steps that are timed together
SCALE = 2.0**-10  # of blocks; small, so that numbers stay finite


class Weights:
    """Random matrices on the device."""

    def __init__(self, form: str, digits: int) -> None:
        self.form, self.digits, self.made = form, digits, 0

    def bits(self, *shape: int) -> Tensor:
        """Words that repeat nowhere."""
        self.made += 1
        count = int(np.prod(shape))
        mixed = (Tensor.arange(count) + self.made * 0x3C6EF) * -1640531527
        return (mixed ^ (mixed >> 15)).cast("int32").contiguous().realize().reshape(*shape)

    def matrix(self, rows: int, columns: int) -> Matrix:
        if self.form == "BF16":
            small = (self.bits(rows, columns) & 255).cast("float32") * 2.0**-12 - 2.0**-5
            return Plain(small.cast("bfloat16").contiguous().realize())
        form = WORD_FORMATS[self.form]
        front = (rows // LANES, columns // form.block.numbers)
        words = self.bits(*front, sum(c.stop - c.start for c in form.codes) // 4, LANES)
        halves = small = None
        if form.halves:
            halves = (self.bits(*front, len(form.halves), LANES) & 7).cast("float32") * SCALE + SCALE
            halves = halves.cast("float16").contiguous().realize()
        if form.small is not None:
            each = form.small.stop - form.small.start
            small = self.bits(*front, each, LANES).cast("uint8").contiguous().realize()
        return Packed(form, Stored(halves, small, words), rows, self.digits)


def decoder(
    form: str, layers: int, digits: int, width: int = 4096, hidden: int = 14336, words: int = 128256
) -> tuple[Decoder, tuple[int, int]]:
    """The model, and the bytes of weights that a step reads: in a layer, and besides."""
    c = Config("llama", words, layers, width, 32, 8, width // 32, hidden, CONTEXT, 1e-5,
               Rotation(500000.0, width // 32))  # fmt: skip
    made = Weights(form, digits)
    found: dict[str, Any] = {"token_embd.weight": Weights("BF16", digits).matrix(c.vocabulary, width)}
    found["output.weight"] = made.matrix(c.vocabulary, width)
    ones = Tensor.ones(width).contiguous().realize()
    found["output_norm.weight"] = ones
    inner, shared = c.heads * c.head, c.groups * c.head
    sizes = {
        "attn_q": (inner, width), "attn_k": (shared, width), "attn_v": (shared, width),
        "attn_output": (width, inner), "ffn_gate": (hidden, width), "ffn_up": (hidden, width),
        "ffn_down": (width, hidden),
    }  # fmt: skip
    if form != "BF16":  # as they are read from a file
        sizes = {
            "attn_qkv": (inner + 2 * shared, width), "attn_output": (width, inner),
            "ffn_up": (2 * hidden, width), "ffn_down": (width, hidden),
        }  # fmt: skip
    for i in range(layers):
        found |= {f"blk.{i}.{name}.weight": made.matrix(*size) for name, size in sizes.items()}
        found |= {f"blk.{i}.{name}.weight": ones for name in ("attn_norm", "ffn_norm")}
    each = sum(found[f"blk.0.{name}.weight"].nbytes for name in sizes)
    return Decoder(c, found, CONTEXT, 64), (each, found["output.weight"].nbytes)


def step_of(model: Decoder, texts: int, at: int) -> tuple[Any, Any]:
    """A step to call as the model does it, and its jit."""
    caches = model.caches("bfloat16", texts)
    token = Tensor(np.arange(texts, dtype=np.int32) + 5).realize()
    if texts == 1:
        one = Steady(jit(model.token))
        place = Variable("at", 0, CONTEXT - 1).bind(at)
        return knobs.override(EARLY_START=True)(lambda: one(token, caches, 0, place)), one
    many = Steady(jit(model.together))
    places = Tensor(np.full(texts, at, np.int32)).realize()
    last = Variable("last", 1, CONTEXT + 1).bind(at + 1)
    return (lambda: many(token, caches, places, last)), many


def timed(step: Any, rounds: int) -> float:
    """Seconds of a step among others, so that the GPU never waits for the host."""
    device = get_device(default_device())
    found = []
    for _ in range(rounds):
        device.synchronize()
        found.append(device.measure(lambda: [step() for _ in range(IN_A_ROW)]) / IN_A_ROW)
    return median(found)


def launch_of(traced: Any) -> Any:
    """A step as it is launched, on the memory of the last one: without what the host does for a call, which
    is longer than a step where other programs keep it busy."""
    trace = traced.function.newest
    results = trace._take_results()
    trace._put_back(results)
    return results.launch


def measured(model: Decoder, texts: int, sizes: tuple[int, int], options: argparse.Namespace) -> float:
    """Seconds of a step of the whole model, with a table on the way."""
    started = time.perf_counter()
    step, traced = step_of(model, texts, options.at)
    logits = [step().numpy() for _ in range(3)][-1]
    get_device(default_device()).synchronize()
    ready = time.perf_counter() - started
    called, seconds = (timed(run, options.rounds) for run in (step, launch_of(traced)))
    assert np.isfinite(logits).all() and np.abs(logits).max() > 0
    layers, (each, rest) = len(model.layers), sizes
    count = len(traced.plans[0])
    taken: dict[Any, list[float]] = {}
    about: dict[Any, Any] = {}
    for _ in range(5):
        with profile() as seen:
            step()
        runs: dict[Any, list[float]] = {}
        for e in seen.events:
            runs.setdefault((e.name, e.kernel), []).append(e.seconds)
            about[e.name, e.kernel] = e
        for key, times in runs.items():
            taken.setdefault(key, []).extend(times)
    per = {key: len(times) / 5 for key, times in taken.items()}
    once = sum(median(times) * per[key] for key, times in taken.items() if per[key] < layers)
    again = sum(median(times) * per[key] for key, times in taken.items() if per[key] >= layers)
    share = once / (once + again) * seconds
    whole = share + (seconds - share) / layers * LAYERS
    read, rate = each * layers + rest, (each * LAYERS + rest) / whole / BANDWIDTH
    print(
        f"{options.form:<5} texts {texts:>2}: {seconds * 1e3:.3f} ms a step of {layers} layers, "
        f"{count} kernels, {read / seconds / BANDWIDTH:.1%}; of {LAYERS} layers {whole * 1e3:.2f} ms, "
        f"{rate:.1%} of 4.8 TB/s, {texts / whole:.0f} tokens/s; "
        f"called {called * 1e3:.3f} ms; kernels alone {(once + again) * 1e3:.3f} ms; ready in {ready:.1f} s"
    )
    for key in sorted(taken, key=lambda k: -median(taken[k]) * per[k])[: options.kernels]:
        e, t = about[key], median(taken[key])
        part = t * per[key] / (once + again)
        print(
            f"    {e.name:<34.34} ×{per[key]:<5.4g} {t * 1e6:>8.1f} µs {e.bytes / 1e6:>8.2f} MB "
            f"{e.bytes / t / BANDWIDTH:>6.1%} {part:>6.1%}"
        )
    sys.stdout.flush()
    return whole


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--forms", default="BF16,Q8_0,Q4_K")
    parser.add_argument("--texts", default="1,16")
    parser.add_argument("--activations", choices=list(ACTIVATIONS), default="exact")
    for name, usual in (("layers", LAYERS), ("at", 128), ("rounds", 20), ("kernels", 12)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = parser.parse_args()
    with no_grad():
        for form in options.forms.split(","):
            options.form = form
            model, sizes = decoder(form, options.layers, ACTIVATIONS[options.activations])
            found = {n: measured(model, n, sizes, options) for n in map(int, options.texts.split(","))}
            for n in [n for n in found if n > 1 and 1 in found]:
                print(f"{form:<5} {n} texts: {n * found[1] / found[n]:.2f} times the tokens of one")


if __name__ == "__main__":
    main()
