"""How passes are checked: the interface, samples, and the branches that they reach."""
