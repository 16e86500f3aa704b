"""Encoder-only models: embeddings, hidden states, classification, tagging, mask filling, answers.

Reading order: results, tokenizer, running (batches of texts through the graph), tasks (the outputs
of each head), front_end.
"""
