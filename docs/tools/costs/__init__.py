"""Counts and measures what each part of a model costs.

Reading order: counting, measuring, report.
"""
