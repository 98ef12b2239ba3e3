"""Kernel → list of instructions: stages 8 to 22 in one table (`pipeline.py`). Knows no particular device."""
