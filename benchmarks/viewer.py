"""How a page of `morok view` behaves in a browser, and what recording costs.

    python benchmarks/viewer.py run.html [run.html ...]
    python benchmarks/viewer.py --record script.py

Of a page: bytes, milliseconds until it can be used, those until each of its views is drawn; while a list of
10,000 rewrites (the page's own, repeated) is scrolled and filtered, how long the page's thread works for one
step, in all its tasks, and which single tasks have blocked it for more than 50 ms.
With --record: seconds of a script with cold caches, with and without a recording, in processes in turns.
Needs playwright and a chromium on the PATH, as the tests do (`tests/viewer/browser.py`).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

VIEWS = ("page=code", "page=kernels", "page=timeline", "page=rules")
# Scrolls, or types into the filter, and is back two frames later.
STEP = """(n) => new Promise((done) => {
  const list = document.querySelector('.changes'), input = document.querySelector('.filters input');
  if (n === 40) { input.value = 'range'; input.dispatchEvent(new Event('input')); }
  list.scrollTop = (n * 3331) % list.scrollHeight;
  requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done)));
})"""
# Tasks of more than 50 ms, by the clock: only on a machine that nobody else uses.
LONG = """() => {
  window.longTasks = [];
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) window.longTasks.push(entry.duration);
  }).observe({ type: 'longtask' });
}"""
DRAWN = """(target) => new Promise((done) => {
  const began = performance.now();
  const finish = (_, o) => { o.disconnect(); requestAnimationFrame(() => done(performance.now() - began)); };
  new MutationObserver(finish).observe(document.querySelector('main'), { childList: true });
  location.hash = target;
})"""


def look(path: Path) -> None:
    """One page."""
    from morok.viewer.page import read_page
    from tests.viewer import browser

    index, chunks = read_page(path)
    compiled = [k for k in index["kernels"] if k["chunk"] >= 0]
    busiest = max(compiled, key=lambda k: len(_steps(chunks[k["chunk"]])), default=None)
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB, {len(index['kernels'])} kernels")
    with browser.browser() as started:
        times = []
        for _ in range(5):
            tab = browser.Tab(started, path)
            times.append(tab.page.evaluate("window.morokReady"))
            tab.close()
        print(f"  usable after {statistics.median(times):.0f} ms ({', '.join(f'{t:.0f}' for t in times)})")
        tab = browser.Tab(started, path)
        address = f"kernel={busiest['number']}" if busiest is not None else "page=search"
        for view in (*VIEWS, address, f"{address}&stage=all", f"{address}&view=code"):
            print(f"  {view} drawn after {tab.page.evaluate(DRAWN, view):.0f} ms")
        tab.close()
        if busiest is None:
            return
        with tempfile.TemporaryDirectory() as folder:
            tab = browser.Tab(started, many(Path(folder) / "many.html", index, chunks, busiest["chunk"]))
            tab.page.evaluate(DRAWN, f"{address}&stage=all")
            tab.page.wait_for_timeout(1500)
            count = tab.page.inner_text(".filters .faint")
            tab.page.evaluate(LONG)
            times = busy(tab)
            long = tab.page.evaluate("window.longTasks")
            step = f"{statistics.median(times):.1f} ms of work a step, at most {max(times):.1f} ms"
            told = ", ".join(f"{t:.0f} ms" for t in long) or "none"
            print(f"  {count}: {step}; tasks above 50 ms: {told}")
            tab.close()


def busy(tab: Any) -> list[float]:
    """Milliseconds of the page's own thread per step: others may use the machine meanwhile."""
    session = tab.context.new_cdp_session(tab.page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def spent() -> float:
        metrics = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
        return 1e3 * float(metrics["TaskDuration"])

    times = []
    for n in range(80):
        before = spent()
        tab.page.evaluate(STEP, n)
        times.append(spent() - before)
    return times


def many(path: Path, index: dict[str, Any], chunks: list[dict[str, Any]], number: int) -> Path:
    """The same page with 10,000 rewrites of one kernel."""
    from morok.viewer.page import write_page

    steps = _steps(chunks[number])
    times = 10_000 // max(1, sum(len(s["rules"]) for s in steps)) + 1
    for step in steps:
        for name in ("rules", "old", "new"):
            step[name] = step[name] * times
    return write_page(path, index, chunks)


def _steps(chunk: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for stage in chunk["stages"] for step in stage["steps"] if step.get("rules")]


def record(script: str, turns: int) -> None:
    """A script with and without a recording."""
    found: dict[str, list[tuple[float, float]]] = {"plain": [], "recorded": []}
    with tempfile.TemporaryDirectory() as folder:
        view = ["-m", "morok", "view", "-o", f"{folder}/run.html", script]
        for turn in range(turns):
            for name, command in (("plain", [script]), ("recorded", view)):
                own = {**os.environ, "XDG_CACHE_HOME": f"{folder}/{name}{turn}", "PYTHONPATH": str(ROOT)}
                began, before = time.perf_counter(), os.times()
                subprocess.run([sys.executable, *command], env=own, check=True, stdout=subprocess.DEVNULL)
                wall, after = time.perf_counter() - began, os.times()
                user = after.children_user - before.children_user
                found[name].append((wall, user + after.children_system - before.children_system))
    best = {name: [min(column) for column in zip(*times, strict=True)] for name, times in found.items()}
    for name, (wall, spent) in best.items():
        print(f"{name}: {wall:.1f} s, {spent:.1f} s of processors (the best of {turns})")
    wall, spent = (b / a for a, b in zip(best["plain"], best["recorded"], strict=True))
    print(f"recorded over plain: {wall:.2f} by the clock, {spent:.2f} by processors")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="*", type=Path)
    parser.add_argument("--record", default="", metavar="SCRIPT")
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    for path in args.pages:
        look(path)
    if args.record:
        record(args.record, args.turns)


if __name__ == "__main__":
    main()
