"""Mutants of morok/ir that survive."""

SURVIVORS: dict[str, str] = {}
