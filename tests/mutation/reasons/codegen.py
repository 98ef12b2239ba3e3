"""Mutants of morok/codegen that survive."""

SURVIVORS: dict[str, str] = {}
