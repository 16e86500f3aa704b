"""Commands that make bundles and check them."""
