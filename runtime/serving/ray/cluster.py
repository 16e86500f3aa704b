"""Connections to a Ray cluster."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from dragoman.errors import DragomanError

CONNECT_SECONDS = 10.0


@contextmanager
def connected(address: str | None, processors: int) -> Iterator[None]:
    """Connect to a Ray cluster within the context.

    Args:
        address: host:port of a running cluster; None: start a cluster on this machine
        processors: number of processors of a started cluster, so that all workers can be placed

    Raises:
        DragomanError: there is no Ray cluster at the address.
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
            raise DragomanError(
                f"{address}: expected the address of a Ray cluster: {error}"
            ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_listening(address: str) -> None:
    """Check that a server listens at an address; Ray would retry for over a minute.

    Raises:
        DragomanError: no server listens there, or the address is malformed.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise DragomanError(
            f"expected the address of a Ray cluster, as in 10.0.0.1:6379, found {address}"
        )
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise DragomanError(
            f"{address}: expected a Ray cluster there, found none: {error}"
        ) from error
