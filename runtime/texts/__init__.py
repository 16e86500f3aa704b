"""Text models: tokenizers, and the front end that decodes texts or token ids."""
