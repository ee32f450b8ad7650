"""The metrics of a server, in Prometheus' text format."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

MODEL = ("model", "version")
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counters of one server.  Labels are names of models that exist, never texts of clients."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "flow_serve_requests", "Requests by result: ok or the reason of an error",
            (*MODEL, "result"), registry=registry,
        )  # fmt: skip
        self.errors = Counter(
            "flow_serve_other_errors", "Errors of requests for no model that exists", ("reason",),
            registry=registry,
        )  # fmt: skip
        self.seconds = Histogram(
            "flow_serve_request_seconds", "Time from the end of a request's body to its answer",
            MODEL, buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self.run_seconds = Histogram(
            "flow_serve_batch_seconds", "Time of a batch in a worker", MODEL, buckets=SECONDS,
            registry=registry,
        )  # fmt: skip
        self.rows = Histogram(
            "flow_serve_batch_rows", "Rows of a batch", MODEL,
            buckets=tuple(1 << k for k in range(9)), registry=registry,
        )  # fmt: skip
        self.waiting = Gauge(
            "flow_serve_waiting_requests", "Requests that wait for a worker", MODEL,
            registry=registry,
        )  # fmt: skip
        self.workers = Gauge("flow_serve_workers", "Workers that are ready", registry=registry)
        self.busy = Gauge(
            "flow_serve_busy_workers", "Workers that compute a batch", registry=registry
        )
        self.lost = Counter(
            "flow_serve_lost_workers", "Workers that have ended unexpectedly", registry=registry
        )

    def text(self) -> bytes:
        """Return all metrics."""
        return generate_latest(self._registry)
