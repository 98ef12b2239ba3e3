"""The content hash: the same graph gives the same bytes in every process, on every machine and Python.

It covers op, type, argument (with its type: 1, True and 1.0 differ, as do 0.0 and -0.0) and sources in order,
and nothing else: no provenance, no addresses, no op numbers. Caches on disk are keyed by it.
"""

from __future__ import annotations

from collections.abc import Iterable

from morok.ir.args import encode_arg
from morok.ir.node import UOp, set_digest

try:
    from _blake2 import blake2b as blake2b  # hashlib's own; it loads OpenSSL as well, which takes 4 ms
except ImportError:
    from hashlib import blake2b as blake2b


_SIZE = 20
_FORMAT = b"morok.1"  # change it when the encoding changes, so that old cache entries are not found


def digest(n: UOp) -> bytes:
    """20 bytes that stand for the graph under a node."""
    known = n.digest_
    if known is not None:
        return known
    stack = [n]
    while stack:
        node = stack[-1]
        pending = [s for s in node.src if s.digest_ is None]
        if pending:
            stack += pending
            continue
        stack.pop()
        if node.digest_ is None:
            set_digest(node, _hash(node))
    assert n.digest_ is not None
    return n.digest_


def hexdigest(n: UOp) -> str:
    """The content hash for people and file names."""
    return digest(n).hex()


def digest_all(nodes: Iterable[UOp]) -> None:
    """Notes the hashes of whole graphs, all of whose nodes are given, sources first."""
    for node in nodes:
        if node.digest_ is None:
            set_digest(node, _hash(node))


def _hash(node: UOp) -> bytes:
    # Names hold no spaces, and the sources come last and are all of one length, so no two nodes are written
    # alike.
    src = node.src
    parts = [f"{node.op.name} {node.dtype.name} {len(src)} ".encode(), encode_arg(node.arg)]
    parts += [s.digest_ for s in src]  # type: ignore[misc]
    return blake2b(b"".join(parts), digest_size=_SIZE, person=_FORMAT).digest()
