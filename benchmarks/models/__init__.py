"""Models to measure: shapes, checkpoints with seeded random weights, trained models, bundles."""
