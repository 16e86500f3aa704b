"""Scoring: the log-probabilities that a model assigns to given targets.

Reading order: interface, teacher_forcing, texts, speech.
"""
