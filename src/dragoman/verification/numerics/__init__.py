"""Compares a bundle's numbers with the oracle's and with its own, on inputs made for that."""
