"""Measurements: parity with the trained model, latency, throughput, comparisons with other tools.

Commands (`python -m dragoman.benchmarks.NAME`): compare, queue, speech, gpu,
operator_profile, fusion_table, real_models, demo.
"""
