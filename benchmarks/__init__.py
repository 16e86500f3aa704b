"""Measurements: parity with the trained model, latency, throughput, other tools beside Dragoman.

Commands (`python -m dragoman.benchmarks.NAME`): compare, speech, gpu, operator_profile,
fusion_table, real_models, demo.
"""
