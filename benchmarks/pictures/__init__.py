"""The pictures of the documentation, made by the code that they show.

Reading order: style (how pictures look and are written), diagram (the blocks of a model), formulas
(what they give), attention (what the shipped model attends to), costs (a record).
"""
