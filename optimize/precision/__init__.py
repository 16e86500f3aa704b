"""Fewer bits: weights in 8 or 4, where the measured error allows it."""
