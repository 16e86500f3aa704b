"""What is measured: shapes, seeded random weights in them, and bundles made of a checkpoint."""
