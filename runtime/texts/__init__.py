"""Text models: tokenizers, and the front end that decodes texts or token ids.

Reading order: codecs, clean_up, tokenizer, surfaces, phrases, plan, outputs, front_end.
"""
