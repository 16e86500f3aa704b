"""Teaches a small, fast student model to translate as its teacher does (Kim & Rush 2016)."""
