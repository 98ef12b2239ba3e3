"""`morok demo`: a network learns to read, and the compiler tells what it did."""
