"""Draws the pictures of the documentation from the code that they show.

`diagram` draws the blocks of a model, `formulas` its formulas, and `attention_and_costs` the
attention of the shipped model and a record of `docs.tools.costs`.
"""
