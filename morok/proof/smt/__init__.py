"""Terms, types and conditions as formulas of the solver."""
