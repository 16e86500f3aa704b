"""Engines: they decode or encode requests that arrive at any time, without any network.

Reading order: request_handle, request_queue, worker, engine; then encoder_engine.
"""
