"""Models that take texts: tokenizers, and the front end that decodes texts or token ids."""
