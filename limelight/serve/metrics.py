"""What /metrics shows. Every request is counted once, when it has ended, by how it ended."""

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """Numbers of one service. Labels are routes, models and status codes, never a user's words."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: Any = {"namespace": "limelight", "registry": self.registry}
        self.requests = Counter(
            "requests", "Requests that ended, 499: the client left", ["route", "status"], **own
        )
        self.seconds = Histogram(
            "request_seconds", "How long requests took", ["route"], buckets=_SECONDS, **own
        )
        self.open = Gauge("requests_open", "Requests that have not ended", **own)
        self.waiting = Gauge("jobs_open", "Accepted, and not yet answered", ["model"], **own)
        self.texts = Gauge("texts_written_now", "Texts that the model works on", ["model"], **own)
        self.read = Counter("tokens_read", "Tokens of prompts and sources", ["model"], **own)
        self.written = Counter("tokens_written", "Tokens of answers", ["model"], **own)
        self.ready = Gauge("model_ready", "1 when the model can be asked", ["model"], **own)
        self.deaths = Counter("worker_deaths", "Times that a worker ended", ["model"], **own)

    def shown(self) -> bytes:
        """In Prometheus' own format."""
        return generate_latest(self.registry)
