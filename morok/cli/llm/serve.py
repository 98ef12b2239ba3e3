"""`morok serve model.gguf`: a model behind OpenAI's API."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace

from morok.cli.llm.options import add_model, load_model
from morok.errors import ArgumentError, MorokError

NAME = "serve"
HELP = "serve a language model by OpenAI's API, with a small page to talk to it"


def add_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen at (default: this machine only)"
    )
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--name", help="of the model, as clients call it (default: its file's)")
    parser.add_argument("--api-key", metavar="KEY", help="what clients must send; a file's content by @FILE")
    parser.add_argument(
        "--slots", type=int, default=4, metavar="N", help="requests that run at the same time"
    )
    parser.add_argument("--waiting", type=int, default=64, metavar="N", help="requests that may wait")


def _key(value: str | None) -> str | None:
    if value is None or not value.startswith("@"):
        return value
    try:
        with open(value[1:], encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        raise ArgumentError(f"cannot read the API key from {value[1:]}") from None


def run(args: Namespace) -> int:
    try:
        import uvicorn

        from morok.llm.server import app
    except ImportError:
        raise MorokError("a server needs starlette and uvicorn: pip install 'morok[llm]'") from None
    if not 0 <= args.port <= 65535 or not 1 <= args.slots <= 256 or args.waiting < 0:
        raise ArgumentError("port must be from 0 to 65535, slots from 1 to 256, waiting at least 0")
    key = _key(args.api_key)
    model = load_model(args)
    name = args.name or os.path.splitext(os.path.basename(os.path.normpath(args.model)))[0]
    application = app(model, name, api_key=key, slots=args.slots, waiting=args.waiting)
    print("compiling what requests need …", file=sys.stderr)
    application.state.engine.prepare()
    if key is None and args.host not in ("127.0.0.1", "localhost", "::1"):
        print(
            "morok: whoever reaches this machine can use the server; --api-key limits that", file=sys.stderr
        )
    print(f"http://{args.host}:{args.port}/v1 serves {name}; Ctrl-C ends it", file=sys.stderr)
    uvicorn.run(
        application, host=args.host, port=args.port, log_level="warning", timeout_graceful_shutdown=10
    )
    return 0
