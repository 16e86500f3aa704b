"""Draws attention weights as heat maps."""
