"""`morok rules`: the rule sets, their rules, and the source that a set compiles to."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from morok.errors import MorokError

NAME = "rules"
HELP = "list the rule sets and their rules, or show the matcher that a set compiles to"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "text",
        metavar="TEXT",
        nargs="?",
        default="",
        help="only rules with this in their names, or in what they say ('%% 1')",
    )
    parser.add_argument("--set", metavar="NAME", help="only the rules of this set")
    parser.add_argument("--source", metavar="NAME", help="print the Python source that this set compiles to")


def run(args: Namespace) -> int:
    from morok.proof.rulebook import find_set, load_registry
    from morok.rewrite.compile import Matcher

    registry = load_registry()
    if args.source is not None:
        print(Matcher(args.source, find_set(args.source).rules).source)
        return 0
    chosen = list(registry.values()) if args.set is None else [find_set(args.set)]
    shown = 0
    for ruleset in chosen:
        found = [rule for rule in ruleset if args.text in rule.name or args.text in rule.formula()]
        shown += len(found)
        if found:
            print(f"{ruleset.name}  ({len(found)} {'rule' if len(found) == 1 else 'rules'})")
            width = max(len(r.name) for r in found)
            for rule in found:
                print(f"  {rule.name:<{width}}  {rule.numeric.value:<13}  {rule.formula()}  [{rule.place}]")
            print()
    if args.text and not shown:
        raise MorokError(f"no rule has {args.text!r} in its name or formula")
    return 0
