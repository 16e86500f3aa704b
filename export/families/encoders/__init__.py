"""Families of encoder-only models: BERT, RoBERTa, DistilBERT and what is stored as one of them.

Reading order: family (the record, and heads), bert (the families), loading (a directory of Hugging
Face), sentence_transformers (a directory of that library).
"""
