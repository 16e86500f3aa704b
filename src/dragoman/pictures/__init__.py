"""Pictures of attention as heat maps, drawn without the model."""
