"""The checks of parity, one in each file."""
