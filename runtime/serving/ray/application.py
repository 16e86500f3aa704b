"""The server as an application of Ray Serve."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ray import serve
from starlette.applications import Starlette

from dragoman.errors import DragomanError
from dragoman.settings.generation import DEFAULT_BATCH_SIZE

from ..app import create_app
from ..options import ReplicaOptions, ServerOptions, bundle_names, read_options
from ..process import log_as_json

NAME = "dragoman"
"""The deployment, in Ray's logs and metrics."""


class Server:
    """The deployment class of Ray Serve, which passes requests to `app`."""

    app: Starlette
    """Application, created by Ray Serve with the function passed to `ingress`."""

    async def check_health(self) -> None:
        """Raise an error, so that Ray Serve replaces the replica, if it is not ready."""
        dead = [served.name for served in self.app.state.models.all if not served.alive]
        if dead:
            raise DragomanError(f"not ready: the device of {', '.join(dead)} was lost")


def application(
    bundles: Sequence[str | Path] | Mapping[str, Path],
    options: ServerOptions | None = None,
    replicas: ReplicaOptions | None = None,
) -> Any:
    """Create an application for `ray.serve.run`: replicas of `dragoman serve`, with its routes.

    A replica accepts as many requests as its batches have rows, plus `max_waiting`, and
    `max_waiting` more wait for a replica. All others are refused with status 429.

    Args:
        bundles: bundle directories, which every machine must have; a list names models by
            directory, a mapping by key

    Raises:
        DragomanError: two bundles have the same name.
    """
    if not isinstance(bundles, Mapping):
        bundles = bundle_names([Path(bundle) for bundle in bundles])
    directories = {name: Path(path).absolute() for name, path in bundles.items()}
    options, replicas = options or ServerOptions(), replicas or ReplicaOptions()
    engine = options.engine
    # The number of processors that Ray reserves for a replica, whatever its machine has. Its rows
    # must be known before it has loaded the bundle.
    workers, threads = engine.workers or 1, engine.threads or 1
    batch_size = engine.batch_size or DEFAULT_BATCH_SIZE
    engine = dataclasses.replace(engine, workers=workers, threads=threads, batch_size=batch_size)
    options, rows = dataclasses.replace(options, engine=engine), workers * batch_size

    def build() -> Starlette:
        log_as_json()
        return create_app(directories, options)

    server = serve.deployment(
        name=NAME,
        ray_actor_options={"num_cpus": workers * threads, "num_gpus": replicas.gpus},
        autoscaling_config={
            "min_replicas": replicas.min_replicas,
            "max_replicas": replicas.max_replicas,
            "target_ongoing_requests": replicas.target_ongoing_requests or max(1, rows // 2),
            "upscale_delay_s": replicas.upscale_delay,
            "downscale_delay_s": replicas.downscale_delay,
        },
        max_ongoing_requests=rows + engine.max_waiting,
        max_queued_requests=engine.max_waiting,
        backpressure_config={"status_code": 429, "retry_after_s": 1},
        health_check_period_s=replicas.health_seconds,
        graceful_shutdown_timeout_s=replicas.drain_seconds,
        graceful_shutdown_wait_loop_s=min(1.0, replicas.drain_seconds),
    )
    return server(serve.ingress(build)(Server)).bind()


def app(values: dict[str, Any]) -> Any:
    """Create the application from the arguments of `serve run` or a file of `serve deploy`.

    serve run dragoman.runtime.serving.ray:app bundles=/models/g2p-en max_replicas=8

    Raises:
        DragomanError: an argument is wrong, see `read_options`.
    """
    options = read_options(values)
    return application(options.bundles, options.server, options.replicas)
