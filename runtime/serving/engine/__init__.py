"""Requests that come at any time, decoded together: no network, no clock but for deadlines.

Reading order: ticket, line, loop, engine; texts for encoders alone.
"""
