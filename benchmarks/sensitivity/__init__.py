"""Where a precision hurts: how far each product of a model, in int8 or int4 alone, moves what the
model predicts, and what keeping the worst ones in fp32 gives.

Reading order: results, variants, probes, measuring.
"""
