"""Checkpoints of other libraries -> reference models."""
