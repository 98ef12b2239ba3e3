"""Random programs of the tensor API, judged by NumPy: `python -m tests.programs.api --count 1000 --seed 1`.

`reference` is a second tensor class with the API's method names, in plain NumPy and with a bound on the
rounding error of every element. `steps` draws lines of a program, `program` draws whole ones and compares,
`shrink` makes a failing one small, `__main__` runs many in processes that may crash.
"""
