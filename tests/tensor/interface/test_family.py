"""One family of exceptions: what the user does wrong is a MorokError, and also what Python would call it."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from morok import Tensor
from morok.errors import MorokError, OutOfMemory
from morok.nn import losses

ROOT = Path(__file__).parents[3]
X = Tensor(np.ones((2, 3), np.float32))

WRONG: dict[str, tuple[type[Exception], Callable[[], object]]] = {
    "pad": (ValueError, lambda: X.pad((1, 1), mode="bogus")),
    "interpolate": (ValueError, lambda: X.reshape(1, 1, 2, 3).interpolate((4, 6), mode="bogus")),
    "meshgrid": (ValueError, lambda: Tensor.meshgrid(X[0], X[0], indexing="bogus")),
    "scatter_reduce": (ValueError, lambda: X.scatter_reduce(0, Tensor([[0, 1, 0]]), X, "bogus")),
    "rearrange": (ValueError, lambda: X.rearrange("a b")),
    "rearrange names": (ValueError, lambda: X.rearrange("a$ b -> b a$")),
    "einsum": (ValueError, lambda: Tensor.einsum("i1,i2->", X, X)),
    "gelu": (ValueError, lambda: X.gelu(approximate="bogus")),
    "searchsorted": (ValueError, lambda: X[0].searchsorted(X[0], side="bogus")),
    "quantile": (ValueError, lambda: X.quantile(2.0)),
    "dropout": (ValueError, lambda: X.dropout(2.0)),
    "loss": (ValueError, lambda: losses.mse_loss(X, X, reduction="bogus")),
    "len": (TypeError, lambda: len(X.sum())),
    "iter": (TypeError, lambda: list(X.sum())),
    "index": (TypeError, lambda: [1, 2][X.sum()]),  # type: ignore[call-overload]
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_one_of_the_family(name: str) -> None:
    kind, call = WRONG[name]
    with pytest.raises(MorokError) as caught:
        call()
    assert isinstance(caught.value, kind)


# What is raised besides: by protocols of Python, or where another `except` of the same file waits for it.
ALLOWED = {
    "nn/optim/base.py": {"NotImplementedError"}, "nn/recurrent.py": {"NotImplementedError"},
    "nn/checkpoint.py": {"AttributeError"}, "nn/safetensors.py": {"ValueError"},
    "tensor/core.py": {"AttributeError", "NotImplementedError"},
    "tensor/arrays/movement.py": {"NotImplementedError"},
}  # fmt: skip
PLAIN = re.compile(
    r"raise ((?:Value|Type|Index|Key|Runtime|Assertion|NotImplemented|Attribute|Overflow)Error)\b"
)


def test_no_other_exception_is_raised_on_purpose() -> None:
    for room in ("tensor", "nn"):
        for path in sorted((ROOT / "morok" / room).glob("*.py")):
            found = set(PLAIN.findall(path.read_text()))
            assert found <= ALLOWED.get(f"{room}/{path.name}", set()), path


def little(script: str, megabytes: int) -> str:
    """A process that may take so much more than it has."""
    begin = f"""
import resource
import numpy as np
from morok import Tensor
from morok.device.cpu.llvm import binding
from morok.errors import MorokError
binding()  # a kernel that was found on disk does without
(Tensor([1.0]) + 1).numpy()
with open("/proc/self/status") as file:
    size = next(int(line.split()[1]) for line in file if line.startswith("VmSize")) * 1024
resource.setrlimit(resource.RLIMIT_AS, (size + ({megabytes} << 20),) * 2)
"""
    unproved = os.environ | {"PROVE": "0", "MOROK_PROVE": "0"}  # the solver alone takes more
    command = [sys.executable, "-c", begin + script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=unproved)
    assert done.returncode == 0, done.stderr
    return done.stdout


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of memory are Linux's")


@linux
def test_too_little_memory_is_one_of_the_family() -> None:
    script = """
calls = (
    lambda: Tensor.ones(60_000_000).contiguous().realize(),
    lambda: Tensor(np.broadcast_to(np.float32(1), (60_000_000,))) + 1,
    lambda: (Tensor.ones(60_000_000) + 1).numpy(),
    lambda: Tensor.arange(6_000_000).tolist(),
)
for call in calls:
    try:
        call()
    except MorokError as error:
        assert isinstance(error, MemoryError), error
        print(error)
assert (Tensor([1.0]) + 1).tolist() == [2.0]
"""
    assert little(script, 100).count("no room") == 4  # LLVM itself needs some, and ends the process without


@linux
def test_a_process_of_200_megabytes() -> None:
    """There is not even room for LLVM: one sentence about it, and no traceback of a library."""
    script = """
from morok import Tensor
from morok.errors import MorokError
try:
    print((Tensor([1.0]) + 1).tolist())
except MorokError as error:
    print("told:", error)
"""
    limited = f"ulimit -v 200000; exec {sys.executable} -c '{script}'"
    single = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # NumPy's own memory grows with the cores
    done = subprocess.run(["sh", "-c", limited], capture_output=True, text=True, cwd=ROOT, env=single)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("told:") or done.stdout.strip() == "[2.0]"


def test_the_family_is_also_what_python_calls_it() -> None:
    assert issubclass(OutOfMemory, MemoryError) and issubclass(OutOfMemory, MorokError)
