"""The speed of compiled code on the CPU: morok beside NumPy and every other peer that is installed.

The same as `morok bench`; `--help` says what it takes.

    python benchmarks/cpu.py [--only matmul,softmax] [--quick] [--threads 2] [--json FILE] [--plot FILE]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from morok.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
