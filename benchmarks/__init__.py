"""Measurements: parity with the trained model, latency, throughput, other tools beside it."""
