"""Measures how far each product in int8 or int4 moves the predictions of a model.

It also measures what keeping the worst products in fp32 gains. Reading order: results, variants,
measuring.
"""
