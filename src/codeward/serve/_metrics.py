"""What the endpoint counts, for Prometheus. Labels take few values: no client can grow them."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

#: Paths with figures of their own.
PATHS = ("/predict", "/healthz", "/metrics", "/code", "/incidents", "/evidence", "/gallery", "/openapi.json", "/")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counters of one application, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter("codeward_requests", "Requests answered.", ("path", "status"), registry=self.registry)
        self._seconds = Histogram(
            "codeward_request_seconds", "Time to answer.", ("path",), buckets=_SECONDS, registry=self.registry
        )
        self.inputs = Counter("codeward_inputs", "Inputs judged.", ("flagged",), registry=self.registry)
        self.incidents = Counter("codeward_incidents", "Incidents recorded durably.", registry=self.registry)
        self.passes = Histogram(
            "codeward_pass_inputs",
            "Inputs of one pass over the models.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
            registry=self.registry,
        )
        self.waiting = Gauge("codeward_waiting_inputs", "Inputs waiting for the models.", registry=self.registry)

    def count_request(self, path: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        known = path if path in PATHS else "/page" if path.startswith("/page/") else "other"
        self._requests.labels(known, str(status)).inc()
        self._seconds.labels(known).observe(seconds)

    def expose(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self.registry)
