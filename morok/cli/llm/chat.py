"""`morok chat model.gguf`: a conversation in the terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from morok.cli.llm.options import add_model, load_model
from morok.errors import MorokError

if TYPE_CHECKING:
    from morok.llm.generate import Model

NAME = "chat"
HELP = "talk to a language model"

_HELP = """\
/clear          forget the conversation
/system TEXT    what the model is told first; forgets the conversation
/retry          another answer to the last message
/help           this
/exit           the end (so is Ctrl-D); Ctrl-C stops an answer"""


def add_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument(
        "--prompt", "-p", metavar="TEXT", help="one message; its answer is all that is written"
    )
    parser.add_argument("--system", metavar="TEXT", help="what the model is told first")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="of an answer")
    parser.add_argument(
        "--temperature", type=float, default=0.7, metavar="T", help="0 takes the likeliest token"
    )
    parser.add_argument("--top-k", type=int, default=40, metavar="K")
    parser.add_argument("--top-p", type=float, default=0.95, metavar="P")
    parser.add_argument("--min-p", type=float, default=0.05, metavar="P")
    parser.add_argument("--repetition-penalty", type=float, default=1.0, metavar="X")
    parser.add_argument("--seed", type=int, metavar="N")


class Conversation:
    """Messages so far, and how the next answer is made."""

    def __init__(self, model: Model, args: Namespace) -> None:
        self.model = model
        names = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
        self.options = {name: getattr(args, name) for name in names}
        self.system: str | None = args.system
        self.messages: list[dict[str, str]] = []
        self.clear()

    def clear(self) -> None:
        self.messages = [] if self.system is None else [{"role": "system", "content": self.system}]

    def answer(self) -> bool:
        """Writes the answer to the last message as it is found, and how fast that was; False without one."""
        text, count, started = "", 0, 0.0
        asked = time.perf_counter()
        try:
            for piece in self.model.stream_chat(self.messages, **self.options):
                count += piece.token is not None
                started = started or time.perf_counter()
                text += piece.text
                print(piece.text, end="", flush=True)
        except KeyboardInterrupt:
            pass
        except MorokError as error:
            self.messages.pop()
            print(f"morok: {error}", file=sys.stderr)
            if self.messages:
                print("/clear forgets the conversation", file=sys.stderr)
            return False
        print()
        self.messages.append({"role": "assistant", "content": text})
        now = time.perf_counter()
        rate = (count - 1) / (now - started) if count > 1 and now > started else 0.0
        first = (started or now) - asked
        print(f"[{count} tokens, {rate:.1f} a second; the first after {first:.2f} s]", file=sys.stderr)
        return True

    def command(self, line: str) -> bool:
        """What a line with a slash asks for; False at the end."""
        word, _, rest = line.partition(" ")
        if word in ("/exit", "/quit", "/bye"):
            return False
        if word == "/clear":
            self.clear()
        elif word == "/system":
            self.system = rest.strip() or None
            self.clear()
        elif word == "/retry" and len(self.messages) > 1 and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
            self.answer()
        else:
            print(_HELP)
        return True


def run(args: Namespace) -> int:
    talk = Conversation(load_model(args), args)
    if args.prompt is not None:
        talk.messages.append({"role": "user", "content": args.prompt})
        return 0 if talk.answer() else 2
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (arrows and history in what `input` reads)
    if sys.stdin.isatty():
        print("/help says what can be asked for")
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return 0
        except KeyboardInterrupt:
            print()
            continue
        if line.startswith("/"):
            if not talk.command(line):
                return 0
        elif line:
            talk.messages.append({"role": "user", "content": line})
            talk.answer()
