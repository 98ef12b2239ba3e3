"""The rewrite engine: applies a rule set to a graph until nothing changes, or once.

Three strategies, all iterative:
- `fixpoint`: sources first, then the node; what a rule makes is rewritten again. The usual one.
- `walk`: sources first, each node once; what a rule makes is taken as it is.
- `original`: the rules see a node with its original sources, before those are rewritten; what a rule makes
  is entered anew.
`rewrite(…, before=early)` combines the last with the first: `early` sees original sources, `ruleset`
rewritten ones.

A set without context is a pure function of a node, so its results are remembered on the nodes and shared by
all later calls, unless the set is for a few ops only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, final

from morok import knobs
from morok.errors import RewriteCycle
from morok.ir.node import UOp, make, set_memo, toposort
from morok.ir.ops import Op
from morok.ir.provenance import here_origin, place, set_origin
from morok.ir.text import expr
from morok.rewrite.compile import Matcher
from morok.rewrite.keep import kept_results
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
_FEW = 8  # ops


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
    about: Any = None,
) -> UOp:
    """The graph after rewriting. `ctx` is given to rules that ask for it.

    `about` is all of the context that results depend on, if they may be remembered for other graphs.
    """
    observer = current()
    if observer is not None:
        observer = observer if observer.wants(root) else None
    result = None
    outer = here_origin()
    try:
        if observer is not None:
            by = By("rules", ruleset.name)
            observer.begin(by, root)
        if strategy == "walk":
            result = _walk(root, matcher(ruleset), ctx, observer)
        elif strategy == "original":
            result = _fixpoint(root, _never, ctx, matcher(ruleset), None, observer)
        else:
            early = matcher(before) if before is not None else None
            match = matcher(ruleset)
            pure = early is None and not ruleset.uses_context and not _is_quick(match)
            tag = _memo_tag(ruleset, observer is not None) if pure else None
            if early is None:
                kept = None
                if about is not None and observer is None:
                    kept = kept_results((about, _memo_key(ruleset, False), knobs.MATCHER.value))
                result = _sweep(root, match, ctx, tag, observer, kept)
            else:
                result = _fixpoint(root, match, ctx, early, tag, observer)
        return result
    finally:
        set_origin(outer)
        if observer is not None:
            observer.end(by, root, result)


def _never(node: UOp, ctx: Any) -> None:
    return None


def _is_quick(match: MatchFunction) -> bool:
    """Whether a set is for so few ops that looking at them again is less than remembering all nodes: a node
    remembers one result, and that of a larger set is worth more."""
    ops = _root_ops(match)
    return ops is not None and len(ops) <= _FEW


def _memo_tag(ruleset: RuleSet, is_observed: bool) -> tuple[Any, None]:
    """What marks a node as finished under this set; its first entry is the key of remembered results.

    An observer sees every match: what it listens to remembers only where there is none.
    """
    key = _memo_key(ruleset, is_observed)
    tag: tuple[Any, None] | None = ruleset.matchers.get(("tag", key))
    if tag is None:
        tag = ruleset.matchers[("tag", key)] = (key, None)
    return tag


def _memo_key(ruleset: RuleSet, is_observed: bool) -> tuple[Any, ...]:
    return (ruleset.id, knobs.UNSAFE_MATH.value, knobs.REASSOCIATE.value, is_observed)


def _sweep(
    root: UOp,
    match: MatchFunction,
    ctx: Any,
    tag: Any,
    observer: Observer | None,
    kept: dict[UOp, UOp] | None = None,
) -> UOp:
    """What `_fixpoint` does, for graphs that mostly stay as they are: their nodes are put in order first, in
    which each is a matter of a few lines, and only what a rule makes is walked step by step.

    `kept` is what is finished of graphs before; it takes in this one.
    """
    key = tag[0] if tag is not None else None
    if key is not None and root.memo_ is not None and root.memo_[0] is key:
        return root if root.memo_[1] is None else root.memo_[1]
    if kept and root in kept:
        return kept[root]
    done: dict[UOp, UOp] = {} if kept is None else kept  # what is finished; complete from the first change on
    changed = bool(done)
    order = _order(root, key, done)
    ops = _root_ops(match)
    changed = changed or any(new is not old for old, new in done.items())
    for number, node in enumerate(order):
        if not changed and tag is None and ops is not None and node.op not in ops:
            continue
        rebuilt, known, out = node, None, None
        if changed:
            if node in done:
                continue
            src = node.src
            new_src = tuple([done[s] for s in src])
            if new_src != src:
                rebuilt = make(node.op, node.dtype, new_src, node.arg, node.origin)
                known = done.get(rebuilt)
                if known is None and key is not None:
                    memo = rebuilt.memo_
                    if memo is not None and memo[0] is key:
                        known = rebuilt if memo[1] is None else memo[1]
        if known is None:
            known = rebuilt
            if ops is None or node.op in ops:
                out = match(rebuilt, ctx)
                if out is not None:
                    if not changed:
                        changed = True
                        done.update(zip(order[:number], order[:number], strict=True))
                    statistics.rewrites += 1
                    if observer is not None:
                        observer.rule(out[1], rebuilt, out[0])
                    known = _result(node, rebuilt, out, match, ctx, tag, observer, done)
        if changed:
            done[node] = done[rebuilt] = known
        if tag is None:
            continue
        if observer is None:
            set_memo(node, tag if known is node else (key, known))
            if rebuilt is not node:
                set_memo(rebuilt, tag if known is rebuilt else (key, known))
        elif known is rebuilt:
            set_memo(rebuilt, tag)
    statistics.nodes += len(order)
    if kept is not None and not changed:
        kept.update(zip(order, order, strict=True))
    return done[root] if changed else root


def _order(root: UOp, key: Any, done: dict[UOp, UOp]) -> list[UOp]:
    """The nodes to look at: sources first, and among these the last first.

    Those with a remembered result go to `done`, where some may be already, and are not entered.
    """
    order: list[UOp] = []
    seen = {root}
    known = done.keys() if done else seen
    node, rest = root, reversed(root.src)
    waiting: list[tuple[UOp, Any]] = []
    while True:
        for s in rest:
            if s in seen or s in known:
                continue
            seen.add(s)
            if key is not None:
                memo = s.memo_
                if memo is not None and memo[0] is key:
                    done[s] = s if memo[1] is None else memo[1]
                    continue
            if s.src:
                waiting.append((node, rest))
                node, rest = s, reversed(s.src)
                break
            order.append(s)
        else:
            order.append(node)
            if not waiting:
                return order
            node, rest = waiting.pop()


def _result(
    node: UOp,
    rebuilt: UOp,
    out: tuple[UOp, Rule],
    match: MatchFunction,
    ctx: Any,
    tag: Any,
    observer: Observer | None,
    done: dict[UOp, UOp],
) -> UOp:
    """What becomes of a node that a rule has made another one."""
    new, rule = out
    found = done.get(new)
    if found is not None:
        return found
    return _fixpoint(new, match, ctx, None, tag, observer, done, node, (rebuilt, rule))


def _fixpoint(
    root: UOp,
    match: MatchFunction,
    ctx: Any,
    early: MatchFunction | None,
    tag: Any,
    observer: Observer | None,
    done: dict[UOp, UOp] | None = None,
    parent: UOp | None = None,
    made_by: tuple[UOp, Rule] | None = None,
) -> UOp:
    """Walks the graph once, sources first; what a rule makes is walked at once, before whoever uses it.

    It may be part of a larger walk, with what is `done` there, and with the node that a rule made it of.
    """
    key = tag[0] if tag is not None else None
    if key is not None and root.memo_ is not None and root.memo_[0] is key:
        return root if root.memo_[1] is None else root.memo_[1]
    changed = done is not None  # whether some node is another one now; until then nobody looks sources up
    done = {} if done is None else done
    ops = _root_ops(match)
    early_ops = None if early is None else _root_ops(early)
    chain: list[tuple[UOp, Rule]] = []
    being_rewritten: set[UOp] = set()
    if parent is not None and made_by is not None:
        chain.append(made_by)
        being_rewritten.update((parent, made_by[0]))
    # What waits: (node, its sources that are left), or (node, rebuilt, result, rule) for the result.
    waiting: list[Any] = []
    entered: UOp | None = root
    nodes = rewrites = 0
    while True:
        out = None
        if entered is not None:
            node = rebuilt = entered
            nodes += 1
            if chain and node in being_rewritten:
                raise _cycle(node, chain)
            if early is not None and (early_ops is None or node.op in early_ops):
                out = early(node, ctx)
            rest = reversed(node.src)
        if out is None:
            for s in rest:
                if s in done:
                    continue
                if key is not None:
                    memo = s.memo_
                    if memo is not None and memo[0] is key:
                        if memo[1] is None:
                            done[s] = s
                        else:
                            done[s] = memo[1]
                            changed = True
                        continue
                if not s.src and early is None and ops is not None and s.op not in ops:
                    done[s] = s
                    continue
                waiting.append((node, rest))
                entered = s
                break
            else:
                entered = None
            if entered is not None:
                continue
            rebuilt, known = node, None
            if changed:
                src = node.src
                new_src = tuple([done[s] for s in src])
                if new_src != src:
                    rebuilt = make(node.op, node.dtype, new_src, node.arg, node.origin)
                    known = done.get(rebuilt)
                    if known is None and key is not None:
                        memo = rebuilt.memo_
                        if memo is not None and memo[0] is key:
                            known = rebuilt if memo[1] is None else memo[1]
            if known is not None:
                done[node] = known
                if tag is not None and observer is None:
                    set_memo(node, (key, known))
            else:
                if ops is None or node.op in ops:
                    out = match(rebuilt, ctx)
                if out is None:
                    done[node] = done[rebuilt] = rebuilt
                    if tag is not None:
                        set_memo(rebuilt, tag)
                        if rebuilt is not node and observer is None:
                            set_memo(node, (key, rebuilt))
        if out is not None:
            new, rule = out
            rewrites += 1
            changed = True
            if observer is not None:
                observer.rule(rule, rebuilt, new)
            if len(chain) > _LONGEST_CHAIN:
                raise _cycle(new, chain)
            chain.append((rebuilt, rule))
            being_rewritten.add(node)
            being_rewritten.add(rebuilt)
            waiting.append((node, rebuilt, new, rule))
            if new not in done:
                memo = new.memo_ if key is not None else None
                if memo is None or memo[0] is not key:
                    entered = new
                    continue
                done[new] = new if memo[1] is None else memo[1]
        while waiting:
            item = waiting.pop()
            if len(item) == 2:
                node, rest = item
                entered = None
                break
            node, rebuilt = item[0], item[1]  # the result of a rewrite is finished
            done[node] = done[rebuilt] = result = done[item[2]]
            chain.pop()
            being_rewritten.discard(node)
            being_rewritten.discard(rebuilt)
            if tag is not None and observer is None:
                set_memo(node, (key, result))
                if result is not rebuilt:
                    set_memo(rebuilt, (key, result))
        else:
            break
    statistics.nodes += nodes
    statistics.rewrites += rewrites
    return done[root]


def _root_ops(match: MatchFunction) -> Collection[Op] | None:
    """The ops that a matcher has rules for; None if it does not tell."""
    compiled = getattr(match, "__self__", None)
    return compiled.ops if compiled.__class__ is Matcher else None


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
    done: dict[UOp, UOp] = dict(mapping)  # nodes that become others
    changed = done.keys()
    for node in toposort(root, stop=done.__contains__):
        if not changed.isdisjoint(node.src) and node not in done:
            done[node] = node.replace(tuple([done.get(s, s) for s in node.src]))
    return done.get(root, root)
