"""Cases of ONNX's test suite that are not passed, each with its reason.

A refusal says before it computes anything that it cannot; a difference is a result other than the file's.
"""

REFUSED: dict[str, str] = {}

DIFFERENT: dict[str, str] = {}
