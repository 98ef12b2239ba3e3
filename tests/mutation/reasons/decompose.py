"""Mutants of morok/codegen/decompose that survive."""

SURVIVORS: dict[str, str] = {}
