"""Scoring: what probability a model gives to targets that are there already.

Reading order: results, options, teacher_forcing, batches, targets, texts, speech.
"""
