"""What only a grid of blocks has: hardware indices, shared tiles, warp roles."""
