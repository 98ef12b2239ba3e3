"""Two products with a softmax between them in one kernel: where scores are kept, and when."""
