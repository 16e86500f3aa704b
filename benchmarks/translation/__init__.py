"""How good translations are: BLEU and chrF of a trained model, in every precision and strategy.

Reading order: sets, scores, measuring, report, __main__.
"""
