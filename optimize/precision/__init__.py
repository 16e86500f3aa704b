"""Reduced precision: 16-bit floats, and weights in 8 or 4 bits where the measured error allows."""
