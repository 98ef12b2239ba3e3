"""From a lazy tensor graph to kernels in order: fusion, range assignment (rangeify), memory planning."""
