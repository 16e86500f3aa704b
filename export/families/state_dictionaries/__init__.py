"""Families whose checkpoints are bare state dictionaries, without the code of their model."""
