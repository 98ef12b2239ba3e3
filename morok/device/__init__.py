"""Devices: memory, and what runs kernels in it. One file per device; the interpreter is the oracle."""
