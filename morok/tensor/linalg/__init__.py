"""Products, convolutions, norms and systems of equations."""
