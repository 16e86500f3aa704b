"""Directories of CTranslate2: the binary model file and the vocabularies beside it."""

from .model_file import MODEL_FILE, ModelFile, read_model_file
from .vocabulary import Vocabulary, read_vocabulary

__all__ = ["MODEL_FILE", "ModelFile", "Vocabulary", "read_model_file", "read_vocabulary"]
