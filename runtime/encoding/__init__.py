"""Encoder-only models: embeddings, hidden states, classification, tagging, mask filling, answers.

Reading order: results, tokenizer, tasks, front_end, methods.
"""
