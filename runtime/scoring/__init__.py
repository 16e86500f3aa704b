"""Scoring: the log-probabilities that a model assigns to given targets.

Reading order: results, options, teacher_forcing, texts, speech.
"""
