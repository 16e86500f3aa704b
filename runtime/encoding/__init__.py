"""Encoders alone: texts in; vectors, labels, tags, fillings or answers out.

Reading order: results, lines, tokenizer, running (batches of texts through the graph), tasks (what
each head makes of the outputs of the graph), front_end.
"""
