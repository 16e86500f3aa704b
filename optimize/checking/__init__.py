"""How passes are checked: the interface, samples that reach every branch, and rounding."""
