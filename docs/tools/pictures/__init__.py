"""Draws the pictures of the documentation with the code that they show.

`diagram` draws the blocks of a model, `formulas` what its formulas give, `attention_and_costs` the
attention of the shipped model and a record of `docs.tools.costs`.
"""
