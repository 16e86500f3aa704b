"""Families of encoder-only models: BERT, RoBERTa, DistilBERT and models in their formats.

Reading order: family (the record, and heads), bert (the families), loading (directories of Hugging
Face), sentence_transformers (directories of that library).
"""
