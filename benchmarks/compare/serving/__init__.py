"""Servers under load: goodput compared with other tools, and a soak."""
