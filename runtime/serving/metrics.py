"""Metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from .engine.observer import Observer
from .engine.ticket import Times

if TYPE_CHECKING:
    from .hosts import Hosts

SHORT = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Seconds of parts of a request."""
LONG = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Seconds of whole ones."""
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)


class Metrics:
    """All metrics of a server, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

        def histogram(
            name: str, words: str, labels: list[str], buckets: Sequence[float]
        ) -> Histogram:
            return Histogram(
                f"dragoman_{name}", words, labels, buckets=buckets, registry=self._registry
            )

        def counter(name: str, words: str, labels: list[str]) -> Counter:
            return Counter(f"dragoman_{name}", words, labels, registry=self._registry)

        of_model = ["model"]
        self._requests = counter("requests", "Requests that were answered.", ["route", "outcome"])
        self._seconds = histogram(
            "request_seconds",
            "From the first byte of a request to the last of its answer.",
            ["route"],
            LONG,
        )
        self._waited = histogram(
            "queue_seconds", "From arrival to joining a batch.", of_model, LONG
        )
        self._first = histogram(
            "time_to_first_token_seconds", "From arrival to the first new token.", of_model, LONG
        )
        self._each = histogram(
            "time_per_token_seconds",
            "Of an output after its first token, by its tokens.",
            of_model,
            SHORT,
        )
        self._tokens = counter("tokens", "New tokens, without end tokens.", of_model)
        self._encoder = histogram(
            "encoder_seconds", "To encode sources and let them join a batch.", of_model, SHORT
        )
        self._sources = counter("sources", "Sources that were encoded.", of_model)
        self._decoder = histogram(
            "decoder_step_seconds", "To decode one token of every row.", of_model, SHORT
        )
        self._occupancy = histogram("batch_rows", "Rows in use at a step.", of_model, ROWS)
        self._failures = counter("failures", "Failures that are no request's fault.", of_model)

    def observe(self, model: str) -> Observer:
        """Who watches the engine of a model."""
        return _Watch(
            self._encoder.labels(model),
            self._sources.labels(model),
            self._decoder.labels(model),
            self._occupancy.labels(model),
            self._failures.labels(model),
        )

    def watch_hosts(self, hosts: Hosts) -> None:
        """Show what waits and what is loaded, whenever the metrics are read."""
        self._registry.register(_HostCollector(hosts))

    def answered(self, route: str, outcome: str, seconds: float) -> None:
        """
        Args:
            outcome: "ok", "client_error", "overloaded", "timeout", "server_error" or "gone"
        """
        self._requests.labels(route, outcome).inc()
        self._seconds.labels(route).observe(seconds)

    def waited(self, model: str, times: Sequence[Times]) -> None:
        """
        Args:
            times: of outputs, or of requests for what an encoder alone makes of texts
        """
        for each in times:
            if each.begun is not None:
                self._waited.labels(model).observe(each.begun - each.submitted)

    def decoded(self, model: str, times: Sequence[Times], tokens: int, ended: float) -> None:
        """
        Args:
            times: of the outputs of a request
            tokens: of all of them
            ended: when the last one did
        """
        self._tokens.labels(model).inc(tokens)
        self.waited(model, times)
        for each in times:
            if each.first is not None:
                self._first.labels(model).observe(each.first - each.submitted)
        first = [each.first for each in times if each.first is not None]
        if len(first) == 1 and tokens > 1:
            self._each.labels(model).observe((ended - first[0]) / (tokens - 1))

    def text(self) -> bytes:
        """In Prometheus's format."""
        return generate_latest(self._registry)


class _Watch:
    """See `Observer`."""

    def __init__(
        self,
        encoder: Histogram,
        sources: Counter,
        decoder: Histogram,
        occupancy: Histogram,
        failures: Counter,
    ) -> None:
        self._encoder, self._sources, self._decoder = encoder, sources, decoder
        self._occupancy, self._failures = occupancy, failures

    def encoded(self, sources: int, seconds: float) -> None:
        self._encoder.observe(seconds)
        self._sources.inc(sources)

    def stepped(self, rows: int, seconds: float) -> None:
        self._decoder.observe(seconds)
        self._occupancy.observe(rows)

    def failed(self, reason: str) -> None:
        self._failures.inc()


class _HostCollector(Collector):
    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, words, value in (
            ("queue_length", "Outputs that wait to be decoded.", lambda host: host.waiting),
            ("rows_in_use", "Rows that are being decoded.", lambda host: host.rows),
            ("model_loaded", "Whether a bundle is in memory.", lambda host: int(host.loaded)),
        ):
            gauge = GaugeMetricFamily(f"dragoman_{name}", words, labels=["model"])
            for host in self._hosts.all:
                gauge.add_metric([host.name], value(host))
            yield gauge
