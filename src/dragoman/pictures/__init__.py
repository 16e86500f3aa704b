"""Pictures for people: attention as heat maps. Needs no model."""
