"""Kernel → linear list of instructions: stages 8 to 22, one table (`pipeline.py`). Knows no particular device."""
