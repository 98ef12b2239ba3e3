"""Stage 18, legalisation of ops: those that a device does not have, written with those it has."""
