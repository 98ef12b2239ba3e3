"""One observer for every change of a graph: by a rule, by a function stage, by an action of the optimiser.

    with observing(observer):
        model(x).realize()

A change is told as (by whom, before, after). Changes lie inside of each other: rules in a stage, actions in
the stage of the optimiser, stages in a kernel. Who listens is asked once per rewrite, stage or action, never
per node; when nobody does, that question is all that it costs.

Everything that shows how a program is compiled is an observer: traces (`trace.py`), the history of kernels
(`record.py`), dumps (`morok/device/dump.py`), and the knobs EXPLAIN and DUMP.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Concatenate, ParamSpec

from morok import knobs
from morok.ir.node import UOp
from morok.rewrite.observer import By, Observer, Several, place_of
from morok.rewrite.trace import Trace, with_knobs

_explain, _dump = knobs.EXPLAIN, knobs.DUMP


class _Listening(threading.local):
    observer: Observer | None = None  # of a thread; that of the class belongs to all which have none


_listening = _Listening()


def current() -> Observer | None:
    """Who listens, if anybody does."""
    if _explain.value or _dump.value:
        return with_knobs(_listening.observer)
    return _listening.observer


@contextmanager
def observing(observer: Observer, everywhere: bool = False) -> Iterator[None]:
    """Tells an observer of every change that is made inside, by this thread or by all."""
    own = None if everywhere else vars(_listening).get("observer")
    outer = _Listening.observer if everywhere else own
    inner = observer if _listening.observer is None else Several((_listening.observer, observer))
    if everywhere:
        _Listening.observer = inner
    else:
        _listening.observer = inner
    try:
        yield
    finally:
        if everywhere:
            _Listening.observer = outer
        elif own is None:
            del _listening.observer
        else:
            _listening.observer = own


@contextmanager
def tracing() -> Iterator[Trace]:
    """Records every match of a rule made inside, in this thread."""
    trace = Trace()
    with observing(trace):
        yield trace


def report(by: By, before: UOp, after: UOp) -> None:
    """Tells of a change that was made in one go."""
    observer = current()
    if observer is not None:
        observer.begin(by, before)
        observer.end(by, before, after)


def observed(by: By, before: UOp, make: Callable[[], UOp]) -> UOp:
    """What a function makes of a graph; whoever listens is told."""
    observer = current()
    if observer is None:
        return make()
    after = None
    observer.begin(by, before)
    try:
        after = make()
        return after
    finally:
        observer.end(by, before, after)


P = ParamSpec("P")
_Change = Callable[Concatenate[UOp, P], UOp]


def change(function: _Change[P]) -> _Change[P]:
    """For a function from a whole graph to another: a step of a stage, told by its own name."""
    by = By("function", function.__name__, place=place_of(function))

    @functools.wraps(function)
    def told(root: UOp, /, *args: P.args, **options: P.kwargs) -> UOp:
        if current() is None:
            return function(root, *args, **options)
        return observed(by, root, lambda: function(root, *args, **options))

    return told
