"""What the commands on language models share: which model, and how it is loaded."""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from morok.errors import ArgumentError

if TYPE_CHECKING:
    from morok.llm.generate import Model


def add_model(parser: ArgumentParser) -> None:
    """Arguments that name a model."""
    parser.add_argument("model", help="a GGUF file, or a folder with safetensors and config.json")
    parser.add_argument(
        "--context", type=int, metavar="N", help="tokens that a text may have (default: 4096)"
    )
    parser.add_argument(
        "--cache-type",
        default="float32",
        metavar="TYPE",
        help="of keys and values: float32, float16, bfloat16, q8",
    )
    parser.add_argument(
        "--activations",
        default="exact",
        metavar="HOW",
        help="numbers that packed weights are multiplied with: exact (as good as float32), or q8 (one byte)",
    )


def load_model(args: Namespace) -> Model:
    """The model, with a word about the time it took."""
    from morok.llm import load

    if not os.path.exists(args.model):
        raise ArgumentError(f"there is no file or folder {args.model}")
    name = os.path.basename(os.path.normpath(args.model))
    if sys.stderr.isatty():
        print(f"loading {name} …", end="", file=sys.stderr, flush=True)
    started = time.perf_counter()
    model = load(args.model, context=args.context, cache_type=args.cache_type, activations=args.activations)
    end = "\r\033[K" if sys.stderr.isatty() else ""
    took = time.perf_counter() - started
    print(
        f"{end}{name}: {model.config.architecture}, {model.config.layers} layers, {took:.1f} s",
        file=sys.stderr,
    )
    return model
