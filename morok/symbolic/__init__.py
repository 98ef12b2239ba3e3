"""The algebra of indices, conditions and values: rules by family, joined in `sets.py`; one normal form."""
