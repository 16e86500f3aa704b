"""Encoder-only models: embeddings, hidden states, classification, tagging, mask filling, answers.

Reading order: results, tokenizer, running, tasks, front_end.
"""
