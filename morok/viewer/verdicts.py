"""What the prover says: of rules, from what earlier runs of `morok prove` have stored, and of kernels.

The only part of the viewer that loads the prover, which may be missing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, final

from morok.errors import ProofError
from morok.ir.node import UOp
from morok.rewrite.rules import Rule

Data = dict[str, Any]
NOT_YET = "`morok prove`, or --prove, proves it and remembers"


def rule_verdicts(fired: Iterable[Rule], prove: bool = False) -> dict[str, tuple[str, str]]:
    """Verdict and note of each rule: those that are known, or, if asked, proved now."""
    rules = list(fired)
    try:
        from morok.proof import cache
        from morok.proof.prove import prove_rule
        from morok.proof.registry import prove_all
        from morok.proof.verdicts import DEFAULT
    except (ProofError, ImportError) as error:
        return {rule.name: ("unknown", str(error)) for rule in rules}
    if prove:
        return {r.name: (r.verdict, r.note) for r in prove_all(rules)}
    known = cache.load()
    found = {}
    for rule in rules:
        entry = known.get(cache.key_of(rule, DEFAULT))
        if entry is not None:
            found[rule.name] = (entry["verdict"], entry["note"])
        elif rule.unproved is not None:
            report = prove_rule(rule)  # nothing is proved: it only says which kind it is
            found[rule.name] = (report.verdict, report.note)
        else:
            found[rule.name] = ("not yet", NOT_YET)
    return found


@final
class KernelProofs:
    """Obligations of lists of instructions, as long as the time lasts."""

    def __init__(self, seconds: float) -> None:
        self.left = seconds
        self.missing = ""
        try:
            import morok.proof.kernels.safety  # noqa: F401
        except (ProofError, ImportError) as error:
            self.missing = str(error)

    def examine(self, linear: UOp, kernel: UOp) -> Data:
        """What has to be shown about a list, how it was, and by which instruction."""
        if self.missing:
            return {"status": "not asked", "why": self.missing}
        from morok.proof.kernels.safety import MEANING, examine, examine_accesses

        began = time.thread_time()
        asked = self.left > 0
        try:
            found = examine(linear, kernel, self.left) if asked else examine_accesses(linear)
        except ProofError as error:
            return {"status": "not asked", "why": error.message}
        finally:
            self.left -= time.thread_time() - began
        if not asked:
            found.left["bounds"], found.open = len(found.open), []
        whole = asked and not found.left
        position = {node: i for i, node in enumerate(linear.src)}
        refuted = any(o.refuted for o in found.open)
        status = "refuted" if refuted else "open" if found.open else "proved"
        return {
            "status": status if whole or found.open else "in part" if found.left["bounds"] else "accesses",
            "kinds": dict(found.kinds),
            "how": dict(found.counts),
            "shown": sorted({(position.get(n, -1), kind, how) for kind, n, how in found.shown}),
            "open": [
                {
                    "instruction": position.get(o.about, -1),
                    "kind": o.kind,
                    "text": f"{MEANING[o.kind]}: {o.detail}",
                    "refuted": o.refuted,
                }
                for o in found.open
            ],
            "left": found.left.total(),
        }
