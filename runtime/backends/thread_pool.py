"""One pool of threads for both sessions of a model, and for all models of a process.

A pool each makes two sessions wait for each other: on two cores a step of a base model at batch 1
took 10 % longer, the encoder 40 %. The first model decides the size of the pool; one that asks for
another number of threads gets threads of its own.
"""

from __future__ import annotations

import threading

import onnxruntime

_lock = threading.Lock()
_size: int | None = None
"""Threads of the pool, 0 for all cores; None: there is none yet; -1: somebody else made one."""


def use_threads(options: onnxruntime.SessionOptions, threads: int | None) -> bool:
    """Tell a session how many threads to use, all cores if None; whether they are the shared ones.

    ONNX Runtime's pool cannot be replaced once it exists.
    """
    wanted = threads or 0
    global _size
    with _lock:
        if _size is None:
            try:
                onnxruntime.set_global_thread_pool_sizes(wanted, 1)
                _size = wanted
            except Exception:  # made outside of Dragoman, its size unknown
                _size = -1
    if _size == wanted:
        options.use_per_session_threads = False
        return True
    options.intra_op_num_threads = wanted
    options.inter_op_num_threads = 1
    return False
