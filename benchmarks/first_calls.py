"""How long the first call of each function takes, with nothing stored on disk: examples of all docstrings.

    python benchmarks/first_calls.py [--over 1.0] [--used] [--part 0/1] [names …]

Each example of a tensor's method, of the namespaces and of `nn` runs in this process, one after the other, so
kernels that several share are compiled for the first of them. Names: only examples of these.
"""

from __future__ import annotations

import argparse
import contextlib
import doctest
import inspect
import io
import os
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from typing import Any


def functions() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """(name, function, what its example may use) of everything that docs/api.md lists."""
    from morok import Tensor
    from morok.cli.api_page import MODULES, SPACES, _exports, _plain, _space, tensor_methods

    seen: set[Any] = set()
    for rows in tensor_methods().values():
        for name, member in rows:
            plain = _plain(member)
            if plain not in seen:
                seen.add(plain)
                yield name, plain, {"Tensor": Tensor}
    for module in (*SPACES, "morok.nn", *MODULES):
        loaded = import_module(module)
        rows = _exports(module) if module.startswith("morok.nn") else _space(module)
        for name, member in rows:
            if member not in seen:
                seen.add(member)
                space = module.removeprefix("morok.").removeprefix("functions.")
                yield f"{space}.{name}", member, {"Tensor": Tensor, **vars(loaded)}


def first_call(name: str, member: Any, known: dict[str, Any], clock: Any) -> float | None:
    """Seconds for the example of a function; None if it has none."""
    text = inspect.getdoc(member) or ""
    module = import_module(member.__module__)
    text = text.replace(".shape", ".realize()")  # examples that only look at sizes compute nothing
    test = doctest.DocTestParser().get_doctest(text, {**vars(module), **known}, name, None, None)
    if not test.examples:
        return None
    started = clock()
    with contextlib.redirect_stdout(io.StringIO()):
        doctest.DocTestRunner(verbose=False).run(test, out=lambda _: None)
    return clock() - started


def used() -> float:
    """Seconds that processors have worked for this process and its children: no less than what passed."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="functions; all if there are none")
    parser.add_argument("--over", type=float, default=1.0, help="seconds from which a function is listed")
    parser.add_argument("--used", action="store_true", help="processors' time, where others work, too")
    parser.add_argument("--part", default="0/1", help="1/4: the second quarter")
    options = parser.parse_args()
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()
    from morok import Tensor

    (Tensor([1.0, 2.0]) * 3.0).tolist()  # what is loaded once belongs to no function
    part, parts = map(int, options.part.split("/"))
    found: list[tuple[float, str]] = []
    without: list[str] = []
    for name, member, known in list(functions())[part::parts]:
        if options.names and name not in options.names:
            continue
        taken = first_call(name, member, known, used if options.used else time.perf_counter)
        if taken is None:
            without.append(name)
        else:
            found.append((taken, name))
    found.sort(reverse=True)
    for taken, name in found:
        if taken >= options.over:
            print(f"{taken:7.2f} s  {name}")
    slow = sum(taken >= options.over for taken, _ in found)
    print(f"{slow} of {len(found)} take {options.over} s or more; the slowest: "
          + ", ".join(f"{name} {taken:.2f} s" for taken, name in found[:8]))  # fmt: skip
    print(f"without an example: {len(without)}: {', '.join(without)}")


if __name__ == "__main__":
    main()
