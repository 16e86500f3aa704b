"""The tasks of comparisons, by name."""
