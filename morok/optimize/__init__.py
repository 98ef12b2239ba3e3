"""Stage 7: which loops become vectors, threads, tiles and packed copies. Knows no device and no timer."""
