"""Reverse-mode differentiation: rules, the walk, `backward`."""
