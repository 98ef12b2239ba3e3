"""The default choice of actions, without measuring: `cpu.py` and `gpu/`, and a file per kind of kernel."""
