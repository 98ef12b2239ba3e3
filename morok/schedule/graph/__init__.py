"""The tensor graph: clean-up, boundaries, fusion: stage 1."""
