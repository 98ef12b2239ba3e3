"""torch.compile(model, backend="morok") beside eager torch and inductor: models of `transformers`.

    python benchmarks/torch_models.py [resnet18 vit bert bert_lm gpt2] [--train] [--device cuda]
    python benchmarks/torch_models.py bert --memory --train      the peak of a step, beside eager's
    python benchmarks/torch_models.py bert --cold                first call, above aot_eager's; then again
    python benchmarks/torch_models.py --lengths                  how often sizes that change are compiled
    python benchmarks/torch_models.py fresh --both --jobs 10 --device cuda    the ten of torch_fresh.py

With `--jobs` every row compiles in a process of its own, that many at a time; rows are timed one by one,
first without inductor and then with it. `--both` asks for inference and training;
`seen` are the twenty that were fresh before.

Times are medians of calls in turns, after a warm-up; a ratio above 1 means that morok is faster. A step of
training is a forward pass, a loss, a backward pass and SGD. On a GPU models are the large ones, in bfloat16,
and a turn is as many calls as take 50 ms, with the device waited for once.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from math import exp, log
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import torch  # noqa: E402
from torch_fresh import FRESH  # noqa: E402
from torch_seen import SEEN  # noqa: E402

SMALL = ("resnet18", "vit", "bert", "gpt2")
LARGE = ("bert", "gpt2", "vit", "resnet50")
PAUSE = 0.02  # seconds: threads of others stop waiting for work


def built(name: str, large: bool) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A model and what it is called with; the large ones are those of the papers."""
    import transformers as tf

    torch.manual_seed(0)
    if name in FRESH | SEEN:
        return (FRESH | SEEN)[name](large)
    if name in ("resnet18", "resnet50"):
        deep = name == "resnet50"
        config = tf.ResNetConfig(
            num_labels=1000,
            hidden_sizes=[256, 512, 1024, 2048] if deep else [64, 128, 256, 512],
            depths=[3, 4, 6, 3] if deep else [2, 2, 2, 2],
            layer_type="bottleneck" if deep else "basic",
        )
        return tf.ResNetForImageClassification(config), (torch.randn(32 if deep else 1, 3, 224, 224),), {}
    if name == "vit":
        wide = {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768}
        config = tf.ViTConfig(num_labels=1000, **({} if large else wide))
        return tf.ViTForImageClassification(config), (torch.randn(32 if large else 1, 3, 224, 224),), {}
    if name in ("bert", "bert_lm"):
        wide = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
                "intermediate_size": 2048}  # fmt: skip
        config = tf.BertConfig(**({} if large else wide))
        index = torch.randint(0, 30000, (16, 512) if large else (1, 128))
        if name == "bert_lm":
            return tf.BertForMaskedLM(config), (index,), {}
        return tf.BertModel(config, add_pooling_layer=False), (index,), {}
    if name == "gpt2":
        index = torch.randint(0, 50000, (8, 1024) if large else (1, 64))
        return tf.GPT2LMHeadModel(tf.GPT2Config()), (index,), {"use_cache": False}
    raise SystemExit(f"no model {name}")


def step_of(name: str, backend: Any, train: bool, device: str) -> Callable[[], Any]:
    """A call, or a step of training, that compiles when it is first called."""
    large = device != "cpu"
    model, inputs, more = built(name, large)
    kind = torch.bfloat16 if large else torch.float32
    model = model.to(device, kind).train(train)
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0

    def there(x: Any) -> Any:
        return x.to(device, kind if x.is_floating_point() else x.dtype) if isinstance(x, torch.Tensor) else x

    given, more = list(map(there, inputs)), {key: there(value) for key, value in more.items()}
    run = model if backend == "eager" else torch.compile(model, backend=backend_of(backend))
    if not train:

        def infer() -> Any:
            with torch.no_grad():
                return looked_at(run(*given, **more))

        return infer
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> Any:
        loss = looked_at(run(*given, **more)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def backend_of(name: str) -> Any:
    """morok of this folder, whichever one is installed."""
    if name != "morok":
        return name
    from morok.torch.backend import morok

    return morok


def looked_at(output: Any) -> Any:
    """What a loss is made of."""
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, dict) and "out" in output:
        return output["out"]
    for field in ("logits", "logits_per_image", "last_hidden_state"):
        if getattr(output, field, None) is not None:
            return getattr(output, field)
    raise SystemExit(f"nothing to look at in {type(output).__name__}")


def waited(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


Steps = dict[str, Callable[[], Any]]
Differences = dict[str, float]


def compiled(name: str, backends: list[str], train: bool, device: str) -> Iterator[tuple[Steps, Differences]]:
    """Steps that have run twice, one more each time; how far results are from eager's, of the largest."""
    steps: Steps = {}
    firsts: dict[str, Any] = {}
    torch._dynamo.reset()  # once: after it all that was compiled is compiled again
    for backend in backends:
        torch.manual_seed(1)
        steps[backend] = step_of(name, backend, train, device)
        firsts[backend] = steps[backend]().float()
        steps[backend]()
        waited(device)
        right = firsts.get("eager")
        yield (
            steps,
            {}
            if right is None
            else {
                b: float((x - right).abs().max() / right.abs().max())
                for b, x in firsts.items()
                if b != "eager"
            },
        )


def timed(steps: Steps, device: str, rounds: int) -> dict[str, float]:
    """Median seconds of a call."""
    first = next(iter(steps.values()))
    first()
    waited(device)
    started = time.perf_counter()
    first()
    waited(device)
    turn = max(1, int(0.05 / (time.perf_counter() - started)))
    times: dict[str, list[float]] = {backend: [] for backend in steps}
    for _ in range(rounds):
        for backend, step in steps.items():
            time.sleep(PAUSE)
            started = time.perf_counter()
            for _ in range(turn):
                step()
            waited(device)
            times[backend].append((time.perf_counter() - started) / turn)
    return {backend: statistics.median(found) for backend, found in times.items()}


def row(name: str, train: bool, found: dict[str, float], differ: dict[str, float]) -> dict[str, float]:
    """Ratios to the others, which are printed."""
    beside = {b: s / found["morok"] for b, s in found.items() if b != "morok"}
    text = ", ".join(f"{b} {s * 1e3:.2f} ms" for b, s in found.items())
    text += ": " + ", ".join(f"{r:.2f} of {b}" for b, r in beside.items())
    text += "".join(f"; {b} differs by {d:.1e}" for b, d in differ.items())
    print(f"{name + (' train' if train else ''):<24} {text}", flush=True)
    return beside


def worker(name: str, backends: list[str], train: bool, device: str, rounds: int, kernels: int) -> None:
    """Compiles, says so, and times when it is told to: once without the last backend, which may be slow."""
    for steps, differ in compiled(name, backends, train, device):
        if len(steps) < 2 or "morok" not in steps:
            continue
        if device != "cpu":
            torch.cuda.empty_cache()
        print("ready", flush=True)
        sys.stdin.readline()
        times = timed(steps, device, rounds)
        if kernels and len(steps) == len(backends):  # nobody else is timed meanwhile
            print(f"{name}{' train' if train else ''}: " + longest(steps["morok"], kernels), file=sys.stderr)
        print("row " + json.dumps([times, differ]), flush=True)


def longest(step: Callable[[], Any], most: int) -> str:
    """The kernels of morok's that take longest in a step, all of a name together."""
    from morok.runtime.profile import profile

    with profile() as taken:
        step()
    events: dict[tuple[str, str | None], list[Any]] = {}
    for event in taken.events:
        events.setdefault((event.name, event.place), []).append(event)
    # Medians: others on the same device make single kernels look long.
    each = {kernel: statistics.median(event.seconds for event in found) for kernel, found in events.items()}
    times = {kernel: each[kernel] * len(found) for kernel, found in events.items()}
    lines = [f"{len(taken.events)} kernels, {sum(times.values()) * 1e3:.3f} ms one by one"]
    for kernel in sorted(times, key=lambda kernel: -times[kernel])[:most]:
        first, seconds = events[kernel][0], each[kernel]
        rates = f"{first.ops / seconds / 1e12:6.1f} Top/s {first.bytes / seconds / 1e9:6.0f} GB/s"
        lines.append(
            f"  {times[kernel] * 1e3:8.3f} ms {len(events[kernel]):4} x {rates}  {' '.join(map(str, kernel))}"
        )
    return "\n".join(lines)


def at_once(rows: list[tuple[str, bool]], given: argparse.Namespace) -> list[dict[str, float]]:
    """Every row in a process of its own: some compile at a time, one is timed at a time."""
    found: dict[tuple[str, bool], dict[str, float]] = {}
    alone = threading.Lock()
    last = time.monotonic() + given.patience

    def one(asked: tuple[str, bool]) -> None:
        name, train = asked
        if time.monotonic() > last:
            return
        command = [sys.executable, __file__, name, "--worker", "--device", given.device]
        command += ["--rounds", str(given.rounds), "--without", given.without]
        command += ["--kernels", str(given.kernels), *(["--train"] if train else [])]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        late = threading.Timer(max(0.0, last - time.monotonic()), process.kill)
        late.start()
        while until("ready", process) is not None and process.stdin:
            with alone:
                process.stdin.write("\n")
                process.stdin.flush()
                line = until("row ", process)
                if line is not None:
                    found[asked] = row(name, train, *json.loads(line))
        process.wait()
        late.cancel()
        if process.returncode:
            why = "not compiled in time" if process.returncode == -signal.SIGKILL else "failed"
            print(f"{name + (' train' if train else ''):<24} {why}", flush=True)

    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(one, rows))
    return list(found.values())


def until(word: str, process: subprocess.Popen[str]) -> str | None:
    """The rest of the first line that begins with a word."""
    return next((line[len(word) :] for line in process.stdout or () if line.startswith(word)), None)


def peak(name: str, backend: str, train: bool, device: str) -> tuple[int, int]:
    """Bytes that a step takes on top of the model, and of it what plans of morok's hold themselves."""
    from torch.profiler import ProfilerActivity, profile

    from morok.torch.watch import watching

    torch._dynamo.reset()
    with watching() as graphs:
        step = step_of(name, backend, train, device)
        step()
        step()
    own = sum(a.nbytes for graph in graphs for plan in graph.plans for a in plan._arenas.values())
    gc.collect()
    if device != "cpu":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before + own, own
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most + own, own


def cold(name: str, backend: str, train: bool, cache: str) -> float:
    """Seconds of a first call, in a process of its own."""
    command = [sys.executable, __file__, name, "--first", backend, *(["--train"] if train else [])]
    made = {**os.environ, "XDG_CACHE_HOME": cache}
    out = subprocess.run(command, env=made, capture_output=True, text=True, check=True)
    return float(out.stdout.split()[-1])


def first(name: str, backend: str, train: bool) -> None:
    step = step_of(name, "aot_eager" if backend == "plain" else backend, train, "cpu")
    started = time.perf_counter()
    step()
    print(time.perf_counter() - started)


def memory(name: str, train: bool, device: str) -> None:
    eager, _ = peak(name, "eager", train, device)
    found, own = peak(name, "morok", train, device)
    print(f"{name:<10} eager {eager / 1e6:.1f} MB, morok {found / 1e6:.1f}, of it plans {own / 1e6:.1f}")


def starts(name: str, train: bool, device: str) -> None:
    with tempfile.TemporaryDirectory() as cache:
        plain, new, again = (cold(name, b, train, cache) for b in ("plain", "morok", "morok"))
    print(f"{name:<10} aot_eager {plain:.2f} s, first {new - plain:+.2f}, again {again - plain:+.2f}")


def lengths() -> None:
    """Calls of the forward compiler for 20 lengths, and for batches of 1 to 8, in order."""
    from morok.torch.backend import morok

    for what in ("lengths", "batches"):
        for name in ("bert", "gpt2"):
            torch._dynamo.reset()
            count = 0

            def counted(gm: Any, inputs: Any, **kwargs: Any) -> Any:
                nonlocal count
                count += 1
                return morok(gm, inputs, **kwargs)

            model, _, more = built(name, False)
            run = torch.compile(model.eval(), backend=counted)
            worst = 0.0
            for n in range(1, 21) if what == "lengths" else range(1, 9):
                index = torch.randint(0, 30000, (2, n) if what == "lengths" else (n, 16))
                with torch.no_grad():
                    right = looked_at(model(index, **more))
                    worst = max(worst, float((looked_at(run(index, **more)) - right).abs().max()))
            print(f"{name:<10} {what:<8} {count} compilations, differs by {worst:.1e}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--without", default="", help="backends that are left out, with commas")
    parser.add_argument("--jobs", type=int, default=0, help="processes that compile at the same time")
    parser.add_argument("--kernels", type=int, default=0, help="so many of each, with --jobs")
    parser.add_argument("--patience", type=float, default=600, help="seconds for those to compile")
    for flag in ("--memory", "--cold", "--lengths", "--both"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--first", default="", help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(int(os.environ.get("MOROK_THREADS", "2")))
    names = given.names or (SMALL if given.device == "cpu" else LARGE)
    names = [known for name in names for known in {"fresh": FRESH, "seen": SEEN}.get(name, (name,))]
    backends = [b for b in ("eager", "morok", "inductor") if b not in given.without.split(",")]
    if given.lengths:
        lengths()
        return
    if given.first:
        first(names[0], given.first, given.train)
        return
    if given.worker:
        worker(names[0], backends, given.train, given.device, given.rounds, given.kernels)
        return
    if given.memory or given.cold:
        for name in names:
            (memory if given.memory else starts)(name, given.train, given.device)
        return
    rows = [(name, train) for name in names for train in ((False, True) if given.both else (given.train,))]
    if given.jobs:
        found = at_once(rows, given)
    else:
        found = []
        for name, train in rows:
            *_, (steps, differ) = compiled(name, backends, train, given.device)
            found.append(row(name, train, timed(steps, given.device, given.rounds), differ))
    for b in backends:
        beside = [ratios[b] for ratios in found if b in ratios]
        if beside:
            mean = exp(sum(map(log, beside)) / len(beside))
            print(f"geometric mean {mean:.3f} of {b}, least {min(beside):.2f}, {len(beside)} rows")


if __name__ == "__main__":
    main()
