"""Other runtimes given the same weights, to be measured beside Dragoman's own."""
