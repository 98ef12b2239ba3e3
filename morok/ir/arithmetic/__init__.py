"""The meaning of every arithmetic op: on Python numbers, on arrays, on intervals."""
