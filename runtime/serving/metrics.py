"""Metrics for Prometheus."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dragoman import __version__

from ..decoding.scheduler import Observer
from .engine.request_handle import Times

if TYPE_CHECKING:
    from .models import ModelRegistry

STEP_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Buckets for parts of a request."""
REQUEST_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Buckets for whole requests."""
LIBRARIES = {
    "onnxruntime": ("onnxruntime", "onnxruntime-gpu"),
    "openvino": ("openvino",),
    "tensorrt": ("tensorrt", "tensorrt-rtx"),
    "tokenizers": ("tokenizers",),
}
"""Distributions whose version is reported under a label: the first that is installed."""
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)


class Metrics:
    """The metrics of a server, in their own registry."""

    def __init__(self) -> None:
        disable_created_metrics()  # a series of its own for each counter, which nobody asks for
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        counter = partial(Counter, namespace="dragoman", registry=self._registry)
        histogram = partial(Histogram, namespace="dragoman", registry=self._registry)
        of_requests = partial(histogram, buckets=REQUEST_SECONDS)
        of_steps = partial(histogram, buckets=STEP_SECONDS)
        Info(
            "dragoman_build", "Versions of Dragoman and its libraries.", registry=self._registry
        ).info(_versions())
        model, request = ["model"], ["model", "protocol", "route"]
        self._requests = counter("requests", "Requests answered.", [*request, "outcome"])
        self._request_seconds = of_requests(
            "request_seconds",
            "From the first byte of a request to the last byte of its answer.",
            request,
        )
        self._queue_seconds = of_requests(
            "queue_seconds", "From the arrival of a request to its admission to a batch.", model
        )
        self._time_to_first_token = of_requests(
            "time_to_first_token_seconds",
            "From the arrival of a request to its first new token.",
            model,
        )
        self._time_per_token = of_steps(
            "time_per_token_seconds", "Per token after the first one.", model
        )
        self._tokens = counter("tokens", "New tokens, without end tokens.", model)
        self.encoder_seconds = of_steps(
            "encoder_seconds", "To encode sources and admit them to a batch.", model
        )
        self.sources = counter("sources", "Sources encoded, or admitted to a batch.", model)
        self._unknown_characters = counter(
            "unknown_characters", "Characters of sources that the vocabulary lacks.", model
        )
        self.decoder_step_seconds = of_steps(
            "decoder_step_seconds", "To decode one token of every row.", model
        )
        self.batch_rows = histogram("batch_rows", "Rows in use at a step.", model, buckets=ROWS)
        self.failures = counter("failures", "Failures that no request caused.", model)

    def engine_observer(self, model: str) -> Observer:
        """Return an observer for the engine of a model."""
        return _EngineMetrics(self, model)

    def watch(self, models: ModelRegistry) -> None:
        """Report queue lengths and loaded models when metrics are read."""
        self._registry.register(_ModelCollector(models))

    def request_ended(
        self, model: str | None, protocol: str, route: str, *, outcome: str, seconds: float
    ) -> None:
        """Count a request.

        Args:
            model: None: the request named none that is served
            outcome: "ok", "client_error", "overloaded", "timeout", "server_error" or "gone"
        """
        labels = (model or "", protocol, route)
        self._requests.labels(*labels, outcome).inc()
        self._request_seconds.labels(*labels).observe(seconds)

    def admitted(self, model: str, times: Sequence[Times]) -> None:
        """Record how long outputs or encoder-only requests waited in the queue."""
        for each in times:
            if each.begun is not None:
                self._queue_seconds.labels(model).observe(each.begun - each.submitted)

    def decoded(
        self, model: str, times: Sequence[Times], tokens: int, unknown: int, end: float
    ) -> None:
        """Record the outputs of a request, with `unknown` characters in its sources."""
        self._tokens.labels(model).inc(tokens)
        self._unknown_characters.labels(model).inc(unknown)
        self.admitted(model, times)
        for each in times:
            if each.first is not None:
                self._time_to_first_token.labels(model).observe(each.first - each.submitted)
        first = [each.first for each in times if each.first is not None]
        if len(first) == 1 and tokens > 1:
            self._time_per_token.labels(model).observe((end - first[0]) / (tokens - 1))

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)


def _versions() -> dict[str, str]:
    versions = {"version": __version__, "python": platform.python_version()}
    for label, names in LIBRARIES.items():
        found = [one.version for name in names for one in metadata.distributions(name=name)]
        versions[label] = found[0] if found else ""
    return versions


class _EngineMetrics(Observer):
    def __init__(self, metrics: Metrics, model: str) -> None:
        self._encoder_seconds = metrics.encoder_seconds.labels(model)
        self._sources = metrics.sources.labels(model)
        self._decoder_step_seconds = metrics.decoder_step_seconds.labels(model)
        self._batch_rows = metrics.batch_rows.labels(model)
        self._failures = metrics.failures.labels(model)

    def encoded(self, sources: int, seconds: float) -> None:
        self._encoder_seconds.observe(seconds)
        self._sources.inc(sources)

    def stepped(self, rows: int, seconds: float) -> None:
        self._decoder_step_seconds.observe(seconds)
        self._batch_rows.observe(rows)

    def failed(self, reason: str) -> None:
        self._failures.inc()


class _ModelCollector(Collector):
    def __init__(self, models: ModelRegistry) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        for name, words, attribute in (
            ("queue_length", "Outputs waiting to be decoded.", "waiting"),
            ("rows_in_use", "Rows being decoded.", "rows"),
            ("model_loaded", "Whether a model is in memory.", "loaded"),
        ):
            gauge = GaugeMetricFamily(f"dragoman_{name}", words, labels=["model"])
            for model in self._models.all:
                gauge.add_metric([model.name], int(getattr(model, attribute)))
            yield gauge
        steps = CounterMetricFamily(
            "dragoman_decoding_steps",
            "Decoding steps on GPUs, as CUDA graphs (captured) or operator by operator (direct).",
            labels=["model", "mode"],
        )
        for model in self._models.all:
            for mode, count in () if model.steps is None else model.steps._asdict().items():
                steps.add_metric([model.name, mode], count)
        yield steps
