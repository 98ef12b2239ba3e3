"""The history of a kernel as text, at three distances. It is made of `history_data`."""

from __future__ import annotations

from collections import Counter
from typing import Any

Data = dict[str, Any]
_RULE, _VERDICT, _EXPRESSION = 34, 13, 50  # columns
_RULES_SHOWN = 3  # behind an instruction
_PLACES_SHOWN = 4  # that a function has changed


def heading(kernel: Data) -> str:
    """Who it is, and what it took."""
    changed = [s for s in kernel["stages"] if s["steps"]]
    changes = sum(_count(s) for s in changed)
    lines = [f"kernel {kernel['number']}: {kernel['name']} for {kernel['target']}"]
    if kernel["place"]:
        lines.append(f"  {kernel['place']}  {kernel['source']}")
    many = f"{changes} changes in {len(changed)} of {len(kernel['stages'])} stages"
    lines.append(f"  {many}, {len(kernel['instructions'])} instructions")
    return "\n".join(lines)


def overview(kernel: Data) -> str:
    """A line per stage that changed something."""
    return "\n".join([heading(kernel), *(_stage_line(s) for s in kernel["stages"] if s["steps"]), ""])


def kernel_text(kernel: Data, rules: Data, code: bool) -> str:
    """The stages with what each rule, function and action did; then the instructions."""
    lines = [heading(kernel)]
    for stage in kernel["stages"]:
        if stage["steps"]:
            lines.append(_stage_line(stage))
            for step in stage["steps"]:
                lines += _grouped(step, rules)
    lines += ["", "  instructions"]
    width = max(len(i["place"]) for i in kernel["instructions"])
    for number, instruction in enumerate(kernel["instructions"]):
        lines.append(_instruction_line(number, instruction, width))
    for part in kernel["code"] if code else ():
        lines += ["", f"  {part['language']}", part["text"]]
    return "\n".join(lines)


def stage_text(kernel: Data, rules: Data, names: set[str]) -> str:
    """Every change of some stages, one by one."""
    lines = [heading(kernel)]
    for stage in kernel["stages"]:
        if stage["name"] in names:
            lines.append(_stage_line(stage))
            for step in stage["steps"]:
                lines += _one_by_one(step, rules)
    return "\n".join([*lines, ""])


def value_text(kernel: Data, rules: Data, number: int) -> str:
    """The rewrites behind an instruction, the first one first."""
    instruction = kernel["instructions"][number]
    lines = [heading(kernel), f"  instruction {number}: {instruction['text']}"]
    if instruction["place"]:
        lines.append(f"  made for {instruction['place']}")
    steps = instruction["history"][::-1]
    if not steps:
        lines.append("  no rule has changed it")
    for n, step in enumerate(steps):
        rule = rules.get(step["rule"])
        after = steps[n + 1]["before"] if n + 1 < len(steps) else "the instruction"
        lines.append(f"  {_named(step['rule'], rule)}{step['before']}  →  {after}")
    return "\n".join(lines)


def _count(stage: Data) -> int:
    return sum(len(step["changes"]) for step in stage["steps"])


def _stage_line(stage: Data) -> str:
    """Number, name, who made how many changes, nodes, time."""
    parts = []
    matches = [c["rule"] for step in stage["steps"] if step["kind"] == "rules" for c in step["changes"]]
    if matches:
        parts.append(f"{len(matches)} by {_number(len(set(matches)), 'rule')}")
    functions = [step for step in stage["steps"] if step["kind"] == "function"]
    if functions:
        places = sum(len(step["changes"]) for step in functions)
        parts.append(f"{places} by {_number(len(functions), 'function')}")
    actions = sum(step["kind"] == "action" for step in stage["steps"])
    if actions:
        tried = f" of {stage['tried']} tried" if stage["tried"] > actions else ""
        parts.append(f"{_number(actions, 'action')}{tried}")
    before, after = stage["nodes"]
    what = ", ".join(parts) or "no change"
    size = f"{before} → {after} nodes" if before != after else f"{before} nodes"
    label = f"{stage['number']:>4}  {stage['name']}"
    return f"{label:<28}{what:<36}{size:<20}{stage['seconds'] * 1e3:7.1f} ms"


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


def _grouped(step: Data, rules: Data) -> list[str]:
    """A step with equal rules counted, each with its first change."""
    if step["kind"] != "rules":
        lines = _one_by_one(step, rules)
        more = len(lines) - 1 - _PLACES_SHOWN
        return lines if more <= 1 else [*lines[: 1 + _PLACES_SHOWN], f"          … and {more} more"]
    counts = Counter(change["rule"] for change in step["changes"])
    first: dict[str, Data] = {}
    for change in step["changes"]:
        first.setdefault(change["rule"], change)
    lines = []
    for name, count in counts.items():
        times = f"×{count}" if count > 1 else ""
        lines.append(f"      {_named(name, rules[name])}{times:>5}  {_arrow(first[name])}")
    return lines


def _one_by_one(step: Data, rules: Data) -> list[str]:
    if step["kind"] == "rules":
        return [f"      {_named(c['rule'], rules[c['rule']])}{_arrow(c)}" for c in step["changes"]]
    if step["kind"] == "action":
        return [f"      {step['name']:<{_RULE}} {'action':<{_VERDICT}} {_arrow(c)}" for c in step["changes"]]
    head = f"      {step['name']:<{_RULE}} {'function':<{_VERDICT}} {step['place']}".rstrip()
    return [head, *(f"          {_arrow(c)}" for c in step["changes"])]


def _named(name: str, rule: Data | None) -> str:
    verdict = rule["verdict"] if rule is not None else ""
    return f"{name:<{_RULE}} {verdict:<{_VERDICT}} "


def _arrow(change: Data) -> str:
    where = f"   [{change['place']}]" if change["place"] else ""
    return f"{change['before']}  →  {change['after']}{where}"


def _instruction_line(number: int, instruction: Data, width: int) -> str:
    names = [step["rule"].rpartition(".")[2] for step in instruction["history"]]
    shown = " ← ".join(names[:_RULES_SHOWN]) + (" ← …" if len(names) > _RULES_SHOWN else "")
    text = f"{number:>6}  {instruction['place']:<{width}}  {'  ' * instruction['depth']}{instruction['text']}"
    return f"{text:<{width + 70}}  {shown}".rstrip()
