"""Cost of the library against ordinary work on the same machine: ``python -m benchmarks``, or ``make bench``."""
