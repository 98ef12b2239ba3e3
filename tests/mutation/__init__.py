"""`make mutate`: rules and interval arithmetic with one thing changed; the prover or the tests must notice.

`terms.py` changes rules that are data, `code.py` Python functions, `kill.py` judges one mutant in a process
of its own, `reasons` says why some survive. A golden file never counts as a judge: only the prover and
tests of values, of bounds and of what simplifies to what.
"""
