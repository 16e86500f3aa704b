"""Decoding: which inputs share a batch, the loop over steps, and what it yields.

Reading order: options, limits, batching, logits_processors, request, search; single, greedy,
sampling; beam, required_phrases, constrained; strategies, loop, scheduling, streaming, results. The
backend is behind `backends.interface`; texts and speech are clients.
"""
