"""Connections to Ray."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from dragoman.errors import DragomanError

SECONDS = 10.0
"""To find out whether somebody listens."""


@contextmanager
def connected(address: str | None, processors: int) -> Iterator[None]:
    """A connection, until the end of the block.

    Args:
        address: of a running Ray, host:port; None: one is started on this machine
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
        _check_listening(address)
        try:
            ray.init(address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise DragomanError(f"{address}: expected the address of a Ray: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_listening(address: str) -> None:
    """Ray itself would try for more than a minute.

    Raises:
        DragomanError: nobody listens at the address, or it is none.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise DragomanError(f"expected the address of a Ray, as in 10.0.0.1:6379, found {address}")
    try:
        socket.create_connection((host, int(port)), timeout=SECONDS).close()
    except (OSError, OverflowError) as error:
        raise DragomanError(f"{address}: expected a Ray there, found none: {error}") from error
