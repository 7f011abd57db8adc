"""What /metrics shows. Every request is counted once, when it has ended, by how it ended."""

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from limelight.serve import logs

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """Counters of one service. Labels are routes, models and status codes, never a user's text."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: Any = {"namespace": "limelight", "registry": self.registry}
        model: Any = {"labelnames": ["model"], **own}
        self.requests = Counter(
            "requests", "Requests that ended; 499: the client left", ["route", "status"], **own
        )
        self.seconds = Histogram(
            "request_seconds", "Duration of requests", ["route"], buckets=_SECONDS, **own
        )
        self.open = Gauge("requests_open", "Requests that have not ended", **own)
        self.waiting = Gauge("jobs_open", "Jobs accepted and not yet answered", **model)
        self.texts = Gauge("texts_written_now", "Texts in the batches of a model", **model)
        self.read = Counter("tokens_read", "Tokens of prompts and sources", **model)
        self.written = Counter("tokens_written", "Tokens of answers", **model)
        self.ready = Gauge("model_ready", "1 when the model accepts requests", **model)
        self.deaths = Counter("worker_deaths", "Workers that ended unexpectedly", **model)
        self.jobs = Counter("worker_jobs", "Jobs sent to a worker", ["model", "worker"], **own)
        self.log_dropped = Counter(
            "log_lines_dropped", "Lines of the log that could not be written", **own
        )

    def shown(self) -> bytes:
        self.log_dropped.inc(logs.pop_dropped())
        return generate_latest(self.registry)
