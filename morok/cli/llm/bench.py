"""`morok bench-llm model.gguf`: prompts and tokens per second, beside llama.cpp where it is installed."""

from __future__ import annotations

import json
import os
import statistics
import time
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from morok.cli.llm.options import add_model, load_model

if TYPE_CHECKING:
    from morok.llm.generate import Model

NAME = "bench-llm"
HELP = "measure a language model: prompts and tokens per second, share of the memory's bandwidth"


def add_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--prompt-tokens", type=int, default=512, metavar="N", help="of the prompt (pp)")
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="that are written (tg)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of which the median counts")
    parser.add_argument("--no-peer", action="store_true", help="without llama.cpp (the package xllamacpp)")
    parser.add_argument("--json", metavar="FILE", help="the figures as JSON")


def bandwidth(megabytes: int = 256) -> float:
    """Bytes per second at which this machine reads memory: the best of some sums over a large array."""
    import numpy as np

    from morok.tensor.gradient_track import no_grad
    from morok.tensor.jit.jit import jit
    from morok.tensor.tensor import Tensor

    with no_grad():
        data = Tensor(np.ones(megabytes << 18, np.float32))
        total = jit(lambda x: x.sum())
        best = float("inf")
        for _ in range(10):
            started = time.perf_counter()
            total(data).realize()
            best = min(best, time.perf_counter() - started)
    return (megabytes << 20) / best


def weight_bytes(model: Model) -> int:
    """Bytes of the matrices that every token reads."""
    decoder = model.decoder
    found = decoder.head.weight.nbytes
    for layer in decoder.layers:
        linears = [*layer.attention.into, layer.attention.out]
        gated: Any = layer.map
        if hasattr(gated, "router"):
            one = sum(stack.at(0).nbytes for stack in (gated.gate, gated.up, gated.down))
            found += one * model.config.experts_used + gated.router.weight.nbytes
        else:
            linears += [m for m in (gated.gate, gated.up, gated.down) if m is not None]
        found += sum(linear.weight.nbytes for linear in linears)
    return found


def prompt_rate(model: Model, count: int) -> float:
    """Tokens of a prompt per second."""
    slot = model.slot
    slot.tokens.clear()
    tokens = [i % (model.config.vocabulary - 1) + 1 for i in range(count)]
    started = time.perf_counter()
    model.advance(slot, tokens)
    return count / (time.perf_counter() - started)


def token_rate(model: Model, count: int) -> float:
    """Tokens written per second; choosing them is not counted, as llama-bench does not."""
    slot = model.slot
    slot.tokens.clear()
    tokens = [1]
    model.advance(slot, tokens)
    started = time.perf_counter()
    for i in range(count):
        tokens.append(i % (model.config.vocabulary - 1) + 1)
        model.advance(slot, tokens)
    return count / (time.perf_counter() - started)


class Peer:
    """llama.cpp, as the package xllamacpp has it."""

    def __init__(self, path: str, context: int, threads: int) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = path
        params.n_ctx = context
        params.n_parallel = 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.verbosity = 0
        self.server = xllamacpp.Server(params)

    def rates(self, prompt: int, tokens: int) -> tuple[float, float]:
        """Tokens of a prompt, and written tokens, per second, by its own clock."""
        asked = {
            "prompt": [i % 1000 + 1 for i in range(prompt)],
            "n_predict": tokens,
            "ignore_eos": True,
            "cache_prompt": False,
            "temperature": 0.0,
        }
        found = self.server.handle_completions(asked)
        timings = found["timings"]
        return float(timings["prompt_per_second"]), float(timings["predicted_per_second"])


def run(args: Namespace) -> int:
    model = load_model(args)
    prompt = min(args.prompt_tokens, model.context - 1)
    tokens = min(args.tokens, model.context - 1)
    peer = None
    if not args.no_peer and os.path.isfile(args.model):
        try:
            peer = Peer(args.model, max(1024, prompt + tokens + 64), os.cpu_count() or 1)
        except Exception as error:
            print(f"llama.cpp is left out: {error}")
    ours: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    prompt_rate(model, prompt), token_rate(model, 2)  # compiled before it is timed
    for _ in range(max(1, args.rounds)):  # in turns: a machine that gets slower does so for both
        ours.append((prompt_rate(model, prompt), token_rate(model, tokens)))
        if peer is not None:
            theirs.append((peer.rates(prompt, 1)[0], peer.rates(1, tokens)[1]))
    speed = bandwidth()
    pp, tg = (statistics.median(r[i] for r in ours) for i in (0, 1))
    nbytes = weight_bytes(model)
    kernels = len(model._token.plans[0])
    print(f"pp{prompt}  {pp:8.1f} tokens/s")
    print(f"tg{tokens}  {tg:8.1f} tokens/s, {kernels} kernels a token")
    rate = tg * nbytes
    print(
        f"{nbytes / 1e6:.1f} MB a token: {rate / 1e9:.2f} GB/s, {rate / speed:.0%} of {speed / 1e9:.1f} GB/s"
    )
    figures = {"pp": pp, "tg": tg, "bytes": nbytes, "bandwidth": speed, "kernels": kernels, "rounds": ours}
    if theirs:
        lpp, ltg = (statistics.median(r[i] for r in theirs) for i in (0, 1))
        print(f"llama.cpp: pp {lpp:.1f}, tg {ltg:.1f} tokens/s; morok: {pp / lpp:.2f}, {tg / ltg:.2f} of it")
        figures |= {"llama.cpp": {"pp": lpp, "tg": ltg, "rounds": theirs}}
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=1)
    return 0
