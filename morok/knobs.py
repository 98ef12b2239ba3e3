"""Every option of morok: its type, its default, what it does, and whether results cached under it differ.

This is the only file that reads the environment. An option `X` is set by `MOROK_X`; a few that are typed by
hand every day also answer to plain `X` (the prefixed name wins). An empty variable counts as unset.

    knobs.DEBUG.value                     # read
    with knobs.override(DEBUG=2): ...     # set for this thread (or task) and this block only

The environment is read once, when this module is imported. An override is seen by the thread or asyncio task
that made it and by nobody else; to hand it to a worker, pass `**knobs.overridden()` along.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any, Generic, NoReturn, TypeVar

from morok.errors import KnobError
from morok.forks import at_fork

T = TypeVar("T")  # int, bool or str

_UNSET: Any = object()
_TRUE = frozenset(("1", "true", "yes", "on"))
_FALSE = frozenset(("0", "false", "no", "off"))
_lock = Lock()


def _renew_lock() -> None:
    global _lock
    _lock = Lock()


at_fork(child=_renew_lock)


class Knob(Generic[T]):
    """One option. `value` is what holds here and now.

    Options are read on the hottest paths, so `value` is a plain slot. Only while some thread overrides this
    very knob does the object turn into an `_OverriddenKnob`, whose `value` looks into the current context.
    """

    __slots__ = (
        "_active",
        "_var",
        "cache_key",
        "choices",
        "default",
        "help",
        "name",
        "plain",
        "start",
        "value",
    )

    name: str
    help: str
    default: T
    cache_key: bool
    plain: bool
    choices: tuple[str, ...]
    start: T
    value: T
    _active: int
    _var: ContextVar[T]

    def __init__(
        self,
        name: str,
        default: T,
        help: str,
        *,
        cache_key: bool = False,
        plain: bool = False,
        choices: tuple[str, ...] = (),
    ) -> None:
        put = super().__setattr__
        put("name", name)
        put("default", default)
        put("help", help)
        put("cache_key", cache_key)
        put("plain", plain)
        put("choices", choices)
        put("_active", 0)
        put("_var", ContextVar(f"morok.{name}"))
        put("start", self._from_environment())
        put("value", self.start)

    def __setattr__(self, attribute: str, value: object) -> NoReturn:
        raise KnobError(f"knob {self.name} is set by MOROK_{self.name} or by knobs.override({self.name}=...)")

    def __repr__(self) -> str:
        return f"<knob {self.name}={self.value!r}>"

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables it answers to, the strongest first."""
        return (f"MOROK_{self.name}", self.name) if self.plain else (f"MOROK_{self.name}",)

    def check(self, value: object) -> Any:
        """`value` as this knob holds it, or a KnobError."""
        kind = type(self.default)
        if kind is bool and value in (0, 1):
            return bool(value)
        if kind is int and isinstance(value, int) and value >= 0:
            return int(value)
        if kind is str and isinstance(value, str) and (not self.choices or value in self.choices):
            return value
        raise KnobError(f"{self.name}={value!r} is not {self._expected()}")

    def _from_environment(self) -> Any:
        for variable in self.variables:
            text = os.environ.get(variable, "")
            if text:
                return self._parse(variable, text)
        return self.default

    def _parse(self, variable: str, text: str) -> Any:
        word = text.strip().lower()
        kind = type(self.default)
        if kind is bool and word in _TRUE | _FALSE:
            return word in _TRUE
        if kind is int and word.isdecimal():
            return int(word)
        if kind is str and (not self.choices or text in self.choices):
            return text
        raise KnobError(f"environment variable {variable}={text!r} is not {self._expected()}")

    def _expected(self) -> str:
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if isinstance(self.default, bool):
            return "a switch (1/0, true/false, yes/no, on/off)"
        return "a whole number of 0 or more" if isinstance(self.default, int) else "text"


class _OverriddenKnob(Knob[T]):
    """A knob that some context overrides at the moment: every reader gets what holds in its own context."""

    __slots__ = ()

    @property
    def value(self) -> T:  # type: ignore[override]
        return self._var.get(self.start)


_overrides = 0  # in all threads together
# The surroundings inside of the innermost override, once somebody has asked: they cost some microseconds.
_found: ContextVar[list[tuple[object, object]] | None] = ContextVar("morok.compile_environment", default=None)


def _count_override(knob: Knob[Any], change: int) -> None:
    global _overrides
    with _lock:
        _overrides += change
        object.__setattr__(knob, "_active", knob._active + change)
        object.__setattr__(knob, "__class__", _OverriddenKnob if knob._active else Knob)


@contextmanager
def override(**values: object) -> Iterator[None]:
    """Set knobs by name inside a `with` block (or, as a decorator, inside a function). Nests and restores."""
    checked = [(knob, knob.check(value)) for knob, value in ((get(name), v) for name, v in values.items())]
    tokens = []
    for knob, value in checked:
        _count_override(knob, +1)
        tokens.append((knob, knob._var.set(value)))
    outside = _found.set([])
    try:
        yield
    finally:
        _found.reset(outside)
        for knob, token in reversed(tokens):
            knob._var.reset(token)
            _count_override(knob, -1)


def overridden() -> dict[str, object]:
    """What the current context overrides: hand it to a worker thread as `override(**overridden())`."""
    found = ((name, knob._var.get(_UNSET)) for name, knob in KNOBS.items())
    return {name: value for name, value in found if value is not _UNSET}


def get(name: str) -> Knob[Any]:
    """The knob of that name."""
    knob = KNOBS.get(name)
    if knob is None:
        raise KnobError(f"there is no knob {name!r}; the knobs are {', '.join(KNOBS)}")
    return knob


def cache_key() -> tuple[tuple[str, int | bool | str], ...]:
    """Names and values of the knobs that change what the compiler produces, in the order of their names."""
    return tuple((knob.name, knob.value) for knob in _KEYED)


def explains(topic: str) -> bool:
    """Whether EXPLAIN asks for one of its topics."""
    return bool(EXPLAIN.value) and topic in words(EXPLAIN.value)


def explained_rules() -> tuple[str, ...]:
    """What EXPLAIN asks for besides its topics: parts of the names of rules."""
    return tuple(word for word in words(EXPLAIN.value) if word not in TOPICS) if EXPLAIN.value else ()


def words(text: str) -> tuple[str, ...]:
    """The parts of an option that names several things with commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def compile_environment() -> tuple[object, object]:
    """What makes equal computations different programs: the cache key, and where new tensors live."""
    if not _overrides:
        return _AT_START
    found = _found.get()
    if found is None:
        return _AT_START
    if not found:
        found.append((cache_key(), default_device()))
    return found[0]


def canonical_device(name: str) -> str:
    """A device's name as it is written in graphs: upper case, without a ":0"."""
    if str(name).startswith("MESH:"):
        return str(name)  # names of axes are as they were given
    kind, _, number = str(name).strip().upper().partition(":")
    if number.isdecimal():
        number = str(int(number))  # "CUDA:01" is no other GPU than "CUDA:1"
    return kind if number in ("", "0") else f"{kind}:{number}"


def default_device() -> str:
    """Where new tensors live, and what has no memory is computed: the DEVICE knob, else the CPU."""
    return canonical_device(DEVICE.value) if DEVICE.value else "CPU"


def describe() -> list[tuple[str, str, str, str, str]]:
    """One row per knob for people: name, value, default, whether it is part of the cache key, help."""
    return [
        (k.name, _show(k.value), _show(k.default), "yes" if k.cache_key else "", k.help)
        for k in KNOBS.values()
    ]


def _show(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value) or "-"


def _warn_of_unknown() -> None:
    """A misspelt option would be silently without effect."""
    for variable in os.environ:
        name = variable.removeprefix("MOROK_")
        if name == variable or name in KNOBS:
            continue
        from difflib import get_close_matches

        near = get_close_matches(name, KNOBS, 1)
        hint = f"did you mean MOROK_{near[0]}?" if near else "`morok knobs` lists the options"
        print(f"morok: there is no option {variable}; {hint}", file=sys.stderr)


# Who starts ranks, and what it calls the rank, their number, and the rank on its own host.
_LAUNCHERS = (
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),  # MPICH, Intel MPI
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),  # torchrun
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)


def launched() -> tuple[int, int, int] | None:
    """The rank of this process, how many there are, and the rank on its host; None if it is alone."""
    for names in _LAUNCHERS:
        found = [os.environ.get(name, "") for name in names]
        if found[0].isdecimal() and found[1].isdecimal():
            return int(found[0]), int(found[1]), int(found[2]) if found[2].isdecimal() else 0
    return None


def own_gpu() -> str | None:
    """What CUDA_VISIBLE_DEVICES has to be so that a rank sees a GPU of its own; None: leave it as it is.

    A launcher that has given a process one GPU has seen to it, and programs under torchrun choose themselves.
    """
    found, seen = launched(), os.environ.get("CUDA_VISIBLE_DEVICES")
    if found is None or found[1] < 2 or os.environ.get("TORCHELASTIC_RUN_ID"):
        return None
    if seen is None:
        return str(found[2])
    names = [name for name in seen.split(",") if name]
    return names[found[2]] if 1 < len(names) and found[2] < len(names) else None


def show_own_gpu() -> str | None:
    """Has CUDA show this process its own GPU alone, before CUDA wakes up; which, if there is a choice."""
    own = own_gpu()
    if own is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = own
    return own


def planned_mesh() -> tuple[int, ...]:
    """The sizes of the mesh that is planned for; none if a program is to run."""
    return tuple(int(size) for size in PLAN_MESH.value.split("x")) if PLAN_MESH.value else ()


def environment_with(**values: object) -> dict[str, str]:
    """The environment of a child process in which some options are set."""
    return {**os.environ, **{f"MOROK_{get(name).name}": str(value) for name, value in values.items()}}


def run_name() -> str:
    """What ranks that were started together call their run."""
    step = [os.environ[name] for name in ("SLURM_JOB_ID", "SLURM_STEP_ID") if os.environ.get(name)]
    if step:
        return "-".join(step)
    parent = os.getppid()  # who has started them; a number that comes again has begun at another time
    try:
        with open(f"/proc/{parent}/stat", encoding="utf-8", errors="replace") as file:
            began = file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        began = os.environ.get("TORCHELASTIC_RUN_ID", "").replace("/", "_")
    return f"{os.getuid()}-{parent}-{began}"


def _cache_home() -> str:
    home = os.environ.get("XDG_CACHE_HOME")
    return os.path.join(home or os.path.join(os.path.expanduser("~"), ".cache"), "morok")


DEBUG = Knob(
    "DEBUG", 0, "how much morok tells about what it does: 0 nothing, 1 kernels, 2 stages, 4 code", plain=True
)
DEVICE = Knob(
    "DEVICE",
    "",
    "where new tensors live: CPU, CUDA (CUDA:1 …), PYTHON, EMULATOR; see morok devices",
    plain=True,
)
PROVENANCE = Knob("PROVENANCE", True, "remember the user's line and the rule behind every node")
SPEC = Knob("SPEC", 0, "check the IR against its specs: 0 never, 1 at boundaries, 2 after every stage")
DUMP = Knob(
    "DUMP", "", "print the graph after these stages (numbers or names with commas, or all)", plain=True
)
STOP_AFTER = Knob("STOP_AFTER", "", "stop the pipeline after this stage (number or name)", plain=True)
TOPICS = ("fusion", "opts", "jit")
EXPLAIN = Knob(
    "EXPLAIN",
    "",
    "say why, with commas: fusion, opts, jit, or a part of rules' names: where they fire",
    plain=True,
)
PROFILE = Knob("PROFILE", False, "print the time of every kernel when the program ends", plain=True)
PROVE = Knob(
    "PROVE",
    0,
    "prove every kernel while compiling: 1 that its instructions are safe, 2 also that they compute the same",
    cache_key=True,
    plain=True,
)
CHECK_INDICES = Knob(
    "CHECK_INDICES",
    True,
    "positions outside of an axis raise an error; off: they read 0 and write nothing",
    cache_key=True,
)
VARYING_SIZES = Knob(
    "VARYING_SIZES",
    True,
    "outside of jit: sizes that were others four times become a variable, so that no more is compiled",
)
NOOPT = Knob("NOOPT", False, "skip the optimiser: plain loops", cache_key=True)
BEAM = Knob(
    "BEAM", 0, "width of the search for the fastest kernel: 0 uses the heuristics", cache_key=True, plain=True
)
BEAM_SECONDS = Knob("BEAM_SECONDS", 30, "time that the search may take for one kernel", plain=True)
THREADS = Knob("THREADS", 0, "threads that a kernel may use on the CPU: 0 uses all cores", cache_key=True)
EARLY_START = Knob(
    "EARLY_START",
    False,
    "kernels of a GPU's graph are brought to it while the one before still runs",
    cache_key=True,
)
COMPILE_PROCESSES = Knob(
    "COMPILE_PROCESSES", 0, "processes that compile kernels of one plan: 0 as many as cores, 1 this one alone"
)
MACHINE = Knob(
    "MACHINE",
    "",
    "plan kernels for this machine instead of the one that is here: sm_80, avx512, …, or a .toml file",
    cache_key=True,
)
VIRTUAL_DEVICES = Knob(
    "VIRTUAL_DEVICES", 0, "devices of a mesh that this process stands for: 0 as many as the mesh has"
)
MESH_TIMEOUT = Knob(
    "MESH_TIMEOUT", 60, "seconds that a rank of a mesh waits for others before it says so; 0: for ever"
)
RUN_DIR = Knob("RUN_DIR", "", "where ranks leave notes for each other: a folder that all of a host see")
PLAN_MACHINE = Knob(
    "PLAN_MACHINE", "h100-nvlink", "what DEVICE=PLAN plans for: see morok plan", cache_key=True
)
PLAN_MESH = Knob("PLAN_MESH", "", "sizes that meshes have instead of their own, as in 64x8: for morok plan")
CUDA_MANAGED = Knob(
    "CUDA_MANAGED", False, "memory on a GPU is shared with the host, and moves to where it is touched"
)
CACHE = Knob("CACHE", True, "keep compiled kernels on disk between processes")
CACHE_DIR = Knob("CACHE_DIR", _cache_home(), "where they are kept")
CACHE_PLANS = Knob("CACHE_PLANS", True, "keep schedules on disk as well")
DOWNLOAD_LIMIT = Knob("DOWNLOAD_LIMIT", 16384, "the largest file that from_url fetches, in MiB")
MATCHER = Knob(
    "MATCHER",
    "compiled",
    "which matcher runs the rules: compiled, or the slow reference",
    choices=("compiled", "reference"),
)
UNSAFE_MATH = Knob(
    "UNSAFE_MATH", False, "allow rules that may change results beyond rounding", cache_key=True
)
TF32 = Knob("TF32", False, "let matrix units round float32 inputs to 10 bits of mantissa", cache_key=True)
FAST_FP8 = Knob(
    "FAST_FP8", False, "let matrix units add products of 8-bit floats in fewer bits", cache_key=True
)
REASSOCIATE = Knob("REASSOCIATE", False, "allow rules that change the rounding of floats", cache_key=True)
SPLIT_REDUCE = Knob(
    "SPLIT_REDUCE",
    0,
    "reduce axes of at least this length in two kernels; 0: as suits the device",
    cache_key=True,
)

KNOBS: dict[str, Knob[Any]] = {k.name: k for k in tuple(globals().values()) if isinstance(k, Knob)}
_KEYED = tuple(sorted((k for k in KNOBS.values() if k.cache_key), key=lambda k: k.name))

_warn_of_unknown()
_AT_START = (cache_key(), default_device())
