"""Language models from one file: read, run, behind an API (`pip install 'morok[llm]'`)."""

from morok.llm.generate import Model, load
from morok.llm.text import Piece

__all__ = ["Model", "Piece", "load"]
