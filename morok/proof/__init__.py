"""Proofs with Z3: rules one by one, two graphs against each other, indices against the size of buffers.

Z3 is an optional dependency; importing a module of this room without it raises a ProofError that says how
to get it.
"""
