"""Code shared by commands: options, terminal output, tables."""
