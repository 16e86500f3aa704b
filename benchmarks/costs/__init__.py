"""What each part of a model costs, counted by formulas and measured.

Reading order: counting, measuring, report.
"""
