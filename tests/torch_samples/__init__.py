"""torch's own samples of its operators, run through morok's functions of the same names."""
