"""Files of all kinds: read only if they are what they should be, written whole or not at all.

This package knows nothing of models; every other part may import it.
"""
