"""What several commands share: options, the terminal, tables."""
