"""Are the random programs about memory strong enough? Each fix of an identity is taken out again.

    python -m tests.programs.state_mutants

prints after how many programs the mistake is found.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from morok import knobs
from tests.programs.state_judge import difference
from tests.programs.state_programs import make_program

MOST = 2000


def _everything_alone(given: Any, outside: Any = ()) -> Any:
    """Arguments as if none of them shared memory with another."""
    first: dict[int, int] = {}
    return tuple([first.setdefault(id(t), n) for n, t in enumerate(given)])


def _places_without_versions() -> Any:
    """A place is the memory, in whichever state it is, and not the state that was written to."""
    from morok.ir.memory import base_of
    from morok.ir.node import make as real
    from morok.ir.ops import Ops

    def make(op: Any, dtype: Any, src: Any = (), *rest: Any) -> Any:
        return real(op, dtype, (base_of(src[0]),) if op is Ops.PLACE else src, *rest)

    return patch("morok.tensor.assign.make", make)


def _forgets_views(storage: Any, chain: Any, node: Any) -> None:
    """What a compiled function writes to an argument that is a part stays where it was computed."""
    if not chain:
        storage.become(node)


def _asks_for_the_last_write() -> Any:
    """Writes that are overwritten go where nobody reads the last of them, whoever reads the others."""
    from morok.tensor.assign import _pending as real

    def ends(state: Any) -> Any:
        states = real(state)
        return states if len(states) < 2 else [states[0], states[-1]]

    return patch("morok.tensor.assign._pending", ends)


def _takes_over() -> Any:
    """Memory whose owner is gone is the next one's who asks, whoever reads it."""
    from morok.tensor.memory import storage

    real = storage.claim

    def claim(memory: Any, asks: Any) -> bool:
        if storage.owner_of(memory) is None:
            storage.hand_over(memory, asks)
        return real(memory, asks)

    return patch.multiple("morok.tensor.realize", claim=claim)


MUTANTS: dict[str, Callable[[], Any]] = {
    "values are found in memory that was overwritten": lambda: patch(
        "morok.tensor.realize.forget_values", lambda memory: None
    ),
    "whoever wants to write memory owns it": lambda: patch(
        "morok.tensor.assign.claim", lambda memory, storage: True
    ),
    "memory goes to whoever asks next": _takes_over,
    "the target of an assignment has no version": _places_without_versions,
    "only the last of several writes is read": _asks_for_the_last_write,
    "views are values": lambda: patch(
        "morok.tensor.core.Core._moved", lambda self, node, chain: self._new(node)
    ),
    "every reshape is a view": lambda: patch("morok.tensor.core.is_strided", lambda *args: True),
    "no reshape of a view is a view": lambda: patch(
        "morok.tensor.core.is_strided", lambda chain, known, whole: not known
    ),
    "equal constants are one": lambda: patch("morok.tensor.calls.record.identified", lambda node: node),
    "a copied value is the value": lambda: patch("morok.tensor.assign.identified", lambda node: node),
    "jit: a prefix of a buffer is the whole": lambda: patch(
        "morok.tensor.jit.arguments._fills", lambda memory, sizes: True
    ),
    "jit: arguments never share memory": lambda: patch.multiple(
        "morok.tensor.jit.jit", arrangement=_everything_alone
    ),
    "jit: writes to a part of a tensor are lost": lambda: patch("morok.tensor.jit.trace.put", _forgets_views),
    "jit: results are overwritten while they are held": lambda: patch(
        "morok.tensor.jit.results.Results.free", lambda self: True
    ),
    "jit: equal results are one": lambda: patch.multiple(
        "morok.tensor.jit.functionalize", shown=lambda node: object(), places=lambda plan: {}
    ),
    "jit: what was assigned has no owner": lambda: patch(
        "morok.tensor.jit.functionalize.hand_over", lambda memory, storage: None
    ),
    "what somebody outside writes is not seen by later lines": lambda: patch(
        "morok.tensor.core.renew", lambda storage: None
    ),
    "values lie where somebody outside can write": lambda: patch(
        "morok.tensor.realize._part_from", lambda storage: None
    ),
    "values lie in memory that is shown": lambda: patch(
        "morok.tensor.export.part_guests", lambda memory: None
    ),
    "values of graphs lie in memory that is shown": lambda: patch(
        "morok.tensor.realize._lend_values", lambda memory: None
    ),
    "readers of an earlier state are forgotten": lambda: patch(
        "morok.tensor.realize.pending_readers", lambda *args: ([], {})
    ),
}


def found_after(name: str, most: int = MOST) -> int | None:
    """How many programs it takes to find a mistake; None if none does."""
    with MUTANTS[name](), knobs.override(DEVICE="PYTHON"):
        for seed in range(most):
            if difference(make_program(seed)) is not None:
                return seed + 1
    return None


def found_alone(name: str) -> int | None:
    """The same in a process of its own: a mistake leaves plans behind that are wrong without it."""
    command = [sys.executable, "-m", __name__ if __name__ != "__main__" else __spec__.name, name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said = done.stdout.split()[-1]
    return None if said == "None" else int(said)


def main() -> None:
    if len(sys.argv) > 1:
        print(found_after(sys.argv[1]))
        return
    for name in MUTANTS:
        print(f"{name}: {found_alone(name) or 'not found'}", flush=True)


if __name__ == "__main__":
    main()
