"""One rank of `morok run`: runs a script, and ends in a way that the others can see.

An error of morok's about other ranks is printed with the rank's number, and the process ends at once: waiting
for ranks that are gone, as MPI's own end would, helps nobody.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from pathlib import Path

from morok import knobs
from morok.device.mesh.watch import own_watch
from morok.errors import MeshError


def main(arguments: list[str]) -> int:
    script = arguments[0]
    sys.argv = list(arguments)
    sys.path.insert(0, str(Path(script).resolve().parent))
    number, count, _ = knobs.launched() or (0, 1, 0)
    watch = own_watch(number, count)
    try:
        runpy.run_path(script, run_name="__main__")
    except MeshError as error:
        print(f"morok: rank {number}: {error}", file=sys.stderr, flush=True)
        os._exit(2)
    except SystemExit as end:
        if end.code not in (None, 0):
            watch.fail(f"sys.exit({end.code!r})")
            os._exit(end.code if isinstance(end.code, int) else 1)
    except BaseException as error:
        traceback.print_exc()
        watch.fail(f"{type(error).__name__}: {error}")
        sys.stderr.flush()
        os._exit(1)
    watch.end()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
