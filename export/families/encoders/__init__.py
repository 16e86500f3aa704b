"""Families of encoder-only models: BERT, RoBERTa, DistilBERT and models in their formats.

Reading order: family, bert, loading (directories of Hugging Face), sentence_transformers.
"""
