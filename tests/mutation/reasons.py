"""Mutants that survive, and why that is right. The key is what changed, so it outlives a move of lines."""

SURVIVORS: dict[str, str] = {}
