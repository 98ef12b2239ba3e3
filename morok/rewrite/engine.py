"""The rewrite engine: applies a rule set to a graph until nothing changes, or once.

Three strategies, all iterative:
- `fixpoint`: sources first, then the node; what a rule makes is rewritten again. The usual one.
- `walk`: sources first, each node once; what a rule makes is taken as it is.
- `original`: the rules see a node with its original sources, before those are rewritten; what a rule makes
  is entered anew.
`rewrite(…, before=early)` combines the last with the first: `early` sees original sources, `ruleset`
rewritten ones.

A set without context is a pure function of a node, so its results are remembered on the nodes and shared by
all later calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, final

from morok import knobs
from morok.errors import RewriteCycle
from morok.ir.node import UOp, make, set_memo, toposort
from morok.ir.provenance import here, place
from morok.ir.text import expr
from morok.rewrite.compile import Matcher
from morok.rewrite.match import apply_rule
from morok.rewrite.observe import current
from morok.rewrite.observer import By, Observer
from morok.rewrite.rules import EXACT, REASSOCIATING, UNSAFE, ZERO_SIGN, Numeric, Rule
from morok.rewrite.ruleset import RuleSet

MatchFunction = Callable[[UOp, Any], "tuple[UOp, Rule] | None"]
Strategy = Literal["fixpoint", "walk", "original"]
_LONGEST_CHAIN = (
    10_000  # rewrites of rewrites at one place; more means that rules feed one another without end
)


@final
class Statistics:
    """Counts since the process started."""

    __slots__ = ("nodes", "rewrites")

    def __init__(self) -> None:
        self.nodes = 0
        self.rewrites = 0


statistics = Statistics()


def allowed_classes() -> frozenset[Numeric]:
    """The numeric classes that the knobs permit."""
    if knobs.UNSAFE_MATH.value:
        return frozenset({EXACT, ZERO_SIGN, REASSOCIATING, UNSAFE})
    if knobs.REASSOCIATE.value:
        return frozenset({EXACT, ZERO_SIGN, REASSOCIATING})
    return frozenset({EXACT, ZERO_SIGN})


def matcher(ruleset: RuleSet) -> MatchFunction:
    """The function that applies the first matching rule: compiled, or the reference if the knob says so."""
    key = (knobs.MATCHER.value, knobs.UNSAFE_MATH.value, knobs.REASSOCIATE.value)
    found: MatchFunction | None = ruleset.matchers.get(key)
    if found is None:
        active = ruleset.active(allowed_classes())
        found = Matcher(ruleset.name, active).match if key[0] == "compiled" else reference(active)
        ruleset.matchers[key] = found
    return found


def reference(active: tuple[Rule, ...]) -> MatchFunction:
    """A matcher that interprets the rules one after the other."""
    by_op: dict[Any, list[Rule]] = {}
    for rule in active:
        for op in rule.root.ops:
            by_op.setdefault(op, []).append(rule)

    def match(node: UOp, ctx: Any = None) -> tuple[UOp, Rule] | None:
        for rule in by_op.get(node.op, ()):
            out = apply_rule(rule, node, ctx)
            if out is not None:
                return out, rule
        return None

    return match


def rewrite(
    root: UOp,
    ruleset: RuleSet,
    ctx: Any = None,
    strategy: Strategy = "fixpoint",
    before: RuleSet | None = None,
) -> UOp:
    """The graph after rewriting. `ctx` is given to rules that ask for it."""
    observer = current()
    if observer is not None:
        by = By("rules", ruleset.name)
        observer = observer if observer.wants(root) else None
    result = None
    outer = here.origin
    try:
        if observer is not None:
            observer.begin(by, root)
        if strategy == "walk":
            result = _walk(root, matcher(ruleset), ctx, observer)
        elif strategy == "original":
            result = _fixpoint(root, _never, ctx, matcher(ruleset), None, observer)
        else:
            early = matcher(before) if before is not None else None
            # an observer sees every match, so nothing is taken from memory
            pure = early is None and observer is None and not ruleset.uses_context
            tag = _memo_tag(ruleset) if pure else None
            result = _fixpoint(root, matcher(ruleset), ctx, early, tag, observer)
        return result
    finally:
        here.origin = outer
        if observer is not None:
            observer.end(by, root, result)


def _never(node: UOp, ctx: Any) -> None:
    return None


def _memo_tag(ruleset: RuleSet) -> tuple[Any, None]:
    """What marks a node as finished under this set; its first entry is the key of remembered results."""
    key = (ruleset.id, knobs.UNSAFE_MATH.value, knobs.REASSOCIATE.value)
    tag: tuple[Any, None] | None = ruleset.matchers.get(("tag", key))
    if tag is None:
        tag = ruleset.matchers[("tag", key)] = (key, None)
    return tag


def _fixpoint(
    root: UOp,
    match: MatchFunction,
    ctx: Any,
    early: MatchFunction | None,
    tag: Any,
    observer: Observer | None,
) -> UOp:
    done: dict[UOp, UOp] = {}
    entered: set[UOp] = set()
    key = tag[0] if tag is not None else None
    rewrites = 0
    # An entry is a node to enter, or (node,) whose sources are done, or (node, rebuilt, result,
    # rule) whose result is.
    stack: list[Any] = [root]
    chain: list[tuple[UOp, Rule]] = []
    while stack:
        item = stack.pop()
        if item.__class__ is UOp:
            node = item
            if node in done:
                continue
            if key is not None:
                memo = node.memo_
                if memo is not None and memo[0] is key:
                    done[node] = node if memo[1] is None else memo[1]
                    continue
            if node in entered:
                raise _cycle(node, chain)
            entered.add(node)
            if early is not None:
                out = early(node, ctx)
                if out is not None:
                    new, rule = out
                    rewrites += 1
                    if observer is not None:
                        observer.rule(rule, node, new)
                    if len(chain) > _LONGEST_CHAIN:
                        raise _cycle(new, chain)
                    chain.append((node, rule))
                    stack.append((node, node, new, rule))
                    stack.append(new)
                    continue
            src = node.src
            pending = [s for s in src if s not in done]
            if pending:
                stack.append((node,))
                stack += pending
                continue
        elif len(item) == 4:  # the result of a rewrite is finished
            node = item[0]
            final_node = done[item[2]]
            done[node] = final_node
            done[item[1]] = final_node
            chain.pop()
            if tag is not None:
                set_memo(node, (key, final_node))
                if final_node is not item[1]:
                    set_memo(item[1], (key, final_node))
            continue
        else:
            node = item[0]
            src = node.src
        new_src = tuple([done[s] for s in src])
        rebuilt = node if new_src == src else make(node.op, node.dtype, new_src, node.arg, node.origin)
        if rebuilt is not node:
            known = done.get(rebuilt)
            if known is None and key is not None:
                memo = rebuilt.memo_
                if memo is not None and memo[0] is key:
                    known = rebuilt if memo[1] is None else memo[1]
            if known is not None:
                done[node] = known
                if tag is not None:
                    set_memo(node, (key, known))
                continue
        out = match(rebuilt, ctx)
        if out is None:
            done[node] = done[rebuilt] = rebuilt
            if tag is not None:
                set_memo(rebuilt, tag)
                if rebuilt is not node:
                    set_memo(node, (key, rebuilt))
            continue
        new, rule = out
        rewrites += 1
        if observer is not None:
            observer.rule(rule, rebuilt, new)
        if len(chain) > _LONGEST_CHAIN:
            raise _cycle(new, chain)
        chain.append((rebuilt, rule))
        stack.append((node, rebuilt, new, rule))
        stack.append(new)
    statistics.nodes += len(entered)
    statistics.rewrites += rewrites
    return done[root]


def _cycle(node: UOp, chain: list[tuple[UOp, Rule]]) -> RewriteCycle:
    """Names the rules between the two visits of a node."""
    start = next((i for i in range(len(chain) - 1, -1, -1) if chain[i][0] is node), max(0, len(chain) - 6))
    names = list(dict.fromkeys(rule.name for _, rule in chain[start:]))
    what = (
        f"the rules {', '.join(names)} undo one another"
        if len(names) > 1
        else f"the rule {names[0]} never comes to an end"
    )
    return RewriteCycle(f"{what} at {expr(node, 120)}", place=place(node))


def _walk(root: UOp, match: MatchFunction, ctx: Any, observer: Observer | None) -> UOp:
    done: dict[UOp, UOp] = {}
    rewrites = 0
    order = toposort(root)
    for node in order:
        rebuilt = node.replace(tuple([done[s] for s in node.src]))
        out = match(rebuilt, ctx)
        if out is None:
            done[node] = rebuilt
            continue
        done[node] = out[0]
        rewrites += 1
        if observer is not None:
            observer.rule(out[1], rebuilt, out[0])
    statistics.nodes += len(order)
    statistics.rewrites += rewrites
    return done[root]


def substitute(root: UOp, mapping: Mapping[UOp, UOp]) -> UOp:
    """The graph with nodes replaced. Replacements are taken as they are and not entered."""
    if not mapping:
        return root
    done: dict[UOp, UOp] = dict(mapping)
    for node in toposort(root, stop=done.__contains__):
        if node not in done:
            done[node] = node.replace(tuple([done[s] for s in node.src]))
    return done[root]
