"""Latency under load: requests that arrive when they like, at Dragoman's server and at others over
the same HTTP layer.

Reading order: load, served, peer_server, measuring, report, and __main__; soak by itself.
"""
