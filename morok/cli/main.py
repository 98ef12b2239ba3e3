"""The entry point of the `morok` command.

A subcommand is a module with `NAME`, `HELP`, `add_arguments(parser)` and `run(args) -> exit status`. It is
listed in `COMMANDS` and imported only when it is chosen (or when help is asked for), so it should import
what is heavy inside `run`.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib import import_module
from typing import Protocol, cast

from morok import __version__
from morok.errors import MorokError

# subcommand → its module; the order is the order of `morok --help`
COMMANDS: dict[str, str] = {
    "demo": "morok.cli.demo.command",
    "prove": "morok.cli.prove",
    "rules": "morok.cli.rules",
    "dump": "morok.cli.dump",
    "trace": "morok.cli.trace",
    "view": "morok.cli.view",
    "tune": "morok.cli.tune",
    "run": "morok.cli.run",
    "plan": "morok.cli.plan",
    "bench": "morok.cli.bench.command",
    "onnx": "morok.cli.onnx",
    "chat": "morok.cli.llm.chat",
    "serve": "morok.cli.llm.serve",
    "bench-llm": "morok.cli.llm.bench",
    "docs": "morok.cli.docs",
    "knobs": "morok.cli.knobs",
    "devices": "morok.cli.devices",
    "caches": "morok.cli.caches",
    "version": "morok.cli.version",
}

_DESCRIPTION = """\
morok compiles tensor programs: lazy tensors become one graph, which named and
proved rules rewrite step by step into machine code."""

_EPILOG = """\
examples:
  morok demo                 train a network, see what the compiler did
  morok prove                every rewrite rule, proved
  morok rules distribute     the rules with that in their names
  morok rules --source NAME  the matcher that a rule set compiles to
  morok dump script.py       every stage of every kernel, as files
  morok trace script.py      every change of every kernel: rule, function or action
  morok view script.py       all of that on one page, with time, assembly and roofline
  morok tune script.py       a search for faster kernels, and what it has won
  morok run -n 4 script.py   the script on four ranks
  morok plan --mesh 64x8 script.py   memory, bytes and time of it on 512 devices
  morok knobs                every option, its value and its meaning
  morok bench --quick        how fast it is, beside the libraries that are installed
  morok onnx check m.onnx    what a model asks for, and whether it can be run
  morok chat model.gguf      talk to a language model
  morok serve model.gguf     the same behind OpenAI's API
  morok devices              what there is to run on
  EXPLAIN=fusion morok demo  options are set in the environment

`morok COMMAND --help` says more about one command."""


class Command(Protocol):
    """What a subcommand's module has to offer."""

    NAME: str
    HELP: str

    def add_arguments(self, parser: ArgumentParser) -> None: ...

    def run(self, args: Namespace) -> int: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand. What morok itself objects to is one line on stderr and exit status 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        args = _parser(words).parse_args(words)
        if args.command is None:
            _parser(words).print_help()
            return 0
        status = cast(int, args.run(args))
        sys.stdout.flush()
        return status
    except MorokError as error:
        print(f"morok: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser(words: list[str]) -> ArgumentParser:
    """The whole parser, or only the chosen subcommand's part of it."""
    chosen = words[:1] if words and words[0] in COMMANDS else list(COMMANDS)
    parser = ArgumentParser(
        prog="morok", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"morok {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    for name in chosen:
        command = cast(Command, import_module(COMMANDS[name]))
        part = commands.add_parser(command.NAME, help=command.HELP, description=command.HELP)
        command.add_arguments(part)
        part.set_defaults(run=command.run)
    return parser
