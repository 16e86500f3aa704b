"""Models of CTranslate2 -> reference models and tokenizers, without that library.

Reading order: stored_model, text and whisper (the two kinds of models), loading.
"""

from .loading import SPECIFICATIONS, load_ctranslate2, read_ctranslate2

__all__ = ["SPECIFICATIONS", "load_ctranslate2", "read_ctranslate2"]
