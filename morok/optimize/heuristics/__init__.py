"""The default choice of actions, without measuring: `cpu.py` and `gpu.py`, and a file per kind of kernel."""
