"""Text models: tokenizers, and the front end that decodes texts or token ids.

Reading order: codecs, tokenizer, surfaces, plan, outputs, front_end.
"""
