"""An error as data: what was said, the user's lines that led to it, and what the compiler was at."""

from __future__ import annotations

import os
import traceback
from typing import Any

from morok.errors import MorokError, RewriteCycle
from morok.ir.provenance import is_internal
from morok.rewrite.record import Change, Recorder
from morok.rewrite.rules import Rule
from morok.viewer.graphs import Graphs
from morok.viewer.sources import Sources, clip

Data = dict[str, Any]
MOST_CHANGES = 400  # the last ones of a rewrite that was stopped

ADVICE = {
    "RewriteCycle": "Two rules undo one another, or one makes what it matches. The last changes below show "
    "the round; give one of the rules a condition that the other's result does not meet.",
    "CompileError": "The page of the kernel that was refused has its stages and what was rendered. PROVE=1 "
    "says which access is wrong, MOROK_SPEC=2 which stage broke it.",
    "SpecError": "The stage below has made a graph that the next one does not take. MOROK_SPEC=2 checks "
    "after each stage.",
    "ProofError": "A proof could not be made. `morok prove --no-cache NAME` tries one rule again.",
    "SystemExit": "The program has ended itself with this code; what ran until then is on the other pages.",
    "KeyboardInterrupt": "The program was interrupted; what ran until then is on the other pages.",
    "SyntaxError": "Python could not read the file, so nothing of it has run.",
    "OutOfRange": "A position lies outside of its axis. The value that it came from is in the line above.",
}
OTHERWISE = "The message says what was wrong; the stages that were done until then are on the kernels' pages."


def failure_data(error: BaseException, recorder: Recorder, sources: Sources, fired: dict[str, Rule]) -> Data:
    """An exception, and the changes that it has interrupted, the outermost first."""
    stopped = _stopped(recorder)
    fired.update({rule.name: rule for change in stopped for rule, _, _ in change.matches[-MOST_CHANGES:]})
    graphs = Graphs(sources)
    chain = [_change(c, graphs) for c in stopped]
    frames = [
        [sources.file(f.filename), f.lineno or 0]
        for f in traceback.extract_tb(error.__traceback__)
        if not is_internal(f.filename) and os.path.exists(f.filename) and not _is_tool(f.filename)
    ]
    if isinstance(error, SyntaxError) and error.filename and os.path.exists(error.filename):
        frames.append([sources.file(error.filename), error.lineno or 0])
    message = error.message if isinstance(error, MorokError) else _text(error)
    return {
        "type": type(error).__name__,
        "message": clip(_without_paths(message, sources), 4000),
        "place": getattr(error, "place", None),
        "frames": frames,
        "cycle": isinstance(error, RewriteCycle),
        "advice": ADVICE.get(type(error).__name__, OTHERWISE),
        "stopped": chain,
        "graphs": graphs.data(),
    }


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # somebody's own exception, which cannot say what it is
        return "(it has no text)"


def _is_tool(path: str) -> bool:
    parts = path.replace(os.sep, "/")
    return "/morok/cli/" in parts or parts.endswith(("/runpy.py", "/contextlib.py")) or "<frozen" in path


def _without_paths(message: str, sources: Sources) -> str:
    if sources.paths:
        return message
    return message.replace(os.path.expanduser("~"), "~").replace(os.getcwd(), ".")


def _stopped(recorder: Recorder) -> list[Change]:
    """The last change that failed, and those inside of it that did."""
    found: list[Change] = []
    level = recorder.changes
    while True:
        failed = [c for c in level if c.after is None]
        if not failed:
            return found
        found.append(failed[-1])
        level = failed[-1].inner


def _change(change: Change, graphs: Graphs) -> Data:
    matches = change.matches[-MOST_CHANGES:]
    return {
        "kind": change.by.kind,
        "number": change.by.number,
        "name": change.by.name,
        "place": change.by.place,
        "before": graphs.number(change.before),
        "changes": len(change.matches),
        "rules": [graphs.strings.number(rule.name) for rule, _, _ in matches],
        "old": [graphs.number(old) for _, old, _ in matches],
        "new": [graphs.number(new) for _, _, new in matches],
    }
