"""Mutants of morok/schedule that survive."""

SURVIVORS: dict[str, str] = {}
