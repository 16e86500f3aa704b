"""Decoding: requests, the scheduler that runs them in batches, strategies and results.

Reading order: request, logits_processors, search; greedy_and_sampling, beam_search,
constrained_beam_search; running_batch, scheduler; strategies, results.
"""
