"""Connections to Ray."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from dragoman.errors import DragomanError


@contextmanager
def connected(address: str | None, processors: int) -> Iterator[None]:
    """A connection, until the end of the block.

    Args:
        address: of a running Ray; None: one is started on this machine
        processors: that a started one takes to have, so that all workers find a place

    Raises:
        DragomanError: there is no Ray at the address.
    """
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        ray.init(
            "local",
            num_cpus=processors,
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            **quiet,
        )
    else:
        try:
            ray.init(address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise DragomanError(f"{address}: expected the address of a Ray: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()
