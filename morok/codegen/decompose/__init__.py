"""Stage 18: ops that a device does not have, written with those it has."""
