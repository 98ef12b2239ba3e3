"""Mutants of morok/symbolic that survive."""

SURVIVORS: dict[str, str] = {}
