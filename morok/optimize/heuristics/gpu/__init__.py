"""The default choice of actions for machines with a grid of blocks."""
