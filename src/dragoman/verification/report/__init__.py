"""Writes a report of bundles as one page, to sign a deployment off or to debug one.

Reading order: contents, manifest_facts, parity_rows, attention, gathering, charts, speed_charts,
page. The templates are next to them.
"""
