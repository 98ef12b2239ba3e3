"""A script for ranks that fail: `faults.py KIND` makes rank 1 die, fall behind, leave or do otherwise."""

import os
import signal
import sys
import time

import numpy as np

import morok
from morok import P, Tensor
from morok import distributed as dist

kind = sys.argv[1]


def die() -> None:
    """The end of a rank that nobody has told; a file says when."""
    with open(f"{sys.argv[2]}.dying", "w") as file:
        file.write("now")
    os.kill(os.getpid(), signal.SIGKILL)


mesh = morok.mesh(dist.processes(), "data")
x = Tensor(np.ones((8, 4), np.float32)).shard(mesh, P("data")).realize()
for step in range(3):
    if step == 1 and dist.rank() == 1:
        if kind == "step":  # between two collectives
            die()
        if kind == "alone":
            sys.exit()
        if kind == "behind":
            time.sleep(60)
        if kind == "order":
            x.max(0).realize()
        if kind == "error":
            raise RuntimeError("this rank has a mistake")
    if step == 1 and kind == "collective" and dist.rank() == 1:  # in the middle of one
        import threading

        threading.Timer(0.3, die).start()
        while True:
            x.sum(0).realize()
    if step == 1 and kind == "collective":
        while True:
            x.sum(0).realize()
    if step == 1 and kind == "saving":
        from morok.nn.distributed import checkpoint

        if dist.rank() == 1:
            checkpoint.save_safetensors = lambda *args: die()
        dist.save({"x": x}, sys.argv[2])
    x.sum(0).realize()
print("all is well")
