"""What a model attends to: weights with their tokens, and word alignments out of them.

Reading order: maps (the weights of one input), words (which word a token belongs to), alignment,
reader (which makes them).
"""
