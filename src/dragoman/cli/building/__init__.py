"""Commands that build and check bundles."""
