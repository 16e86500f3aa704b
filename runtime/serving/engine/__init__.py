"""Engines, which decode or encode requests in shared batches, without any network code.

Reading order: request_handle, request_queue, worker, engine; then encoder_engine.
"""
