"""ONNX: models from files, run as lazy tensors. Needs the package `onnx` (`pip install 'morok[onnx]'`).

The operators are one table of functions (`table.py`, `ops/`); `run.py` cuts a model into parts that plans
compute; files are read with care (`files.py`).
"""

from __future__ import annotations

from morok.onnx.model import Model, load

__all__ = ["Model", "load"]
