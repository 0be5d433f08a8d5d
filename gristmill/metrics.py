"""Metrics for Ray's exporter, from which Prometheus reads them.

Unless Ray is running, nothing is recorded and Ray is not imported. Anyone who can reach the exporter's port
can read the tags, so they must never contain text or names of documents.
"""

import math
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

PREFIX = "gristmill_"
_AGAIN_SECONDS = 5.0  # Ray drops a gauge that is not set within its report interval, by default 10 s
_SECONDS = [0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0]  # upper bounds of a histogram's buckets


@dataclass(frozen=True)
class Metric:
    """The declaration of a metric. `name` omits PREFIX; a counter's name ends in `_total`. `text` is the
    description, and `tags` are the names of its tags. A histogram counts durations in seconds.
    """

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    text: str
    tags: tuple[str, ...]


class Exporter:
    """Records metric values for Ray's exporter. `tags` are added to every value."""

    def __init__(self, metrics: Sequence[Metric], **tags: str) -> None:
        self._known = {metric.name: metric for metric in metrics}
        self._tags = tags
        self._opened: dict[str, Any] = {}
        self._gauges: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._thread: threading.Thread | None = None

    def record(self, name: str, value: float | None, **tags: str) -> None:
        """Record a value of the metric `name`: add it to a counter, set a gauge to it, or count it in a
        histogram. Does nothing if Ray is not running or if the value is None or not finite.
        """
        if value is None or not math.isfinite(value) or not _ray_runs():
            return
        metric, tags = self._known[name], self._tags | tags
        if name not in self._opened:
            self._opened[name] = _open(metric)
        act = {"counter": "inc", "gauge": "set", "histogram": "observe"}[metric.kind]
        if value or metric.kind != "counter":  # Ray refuses to add 0
            getattr(self._opened[name], act)(value, tags=tags)
        if metric.kind == "gauge":
            self._gauges[name, tuple(tags.items())] = value
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=_set_again, args=(weakref.ref(self),), name="gauges", daemon=True
                )
                self._thread.start()

    def set_again(self) -> None:
        """Set every gauge to its last value again, because Ray drops gauges that are not set regularly."""
        for (name, tags), value in list(self._gauges.items()):
            self._opened[name].set(value, tags=dict(tags))


def _ray_runs() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def _set_again(reference: "weakref.ref[Exporter]") -> None:
    while True:
        time.sleep(_AGAIN_SECONDS)
        exporter = reference()
        if exporter is None or not _ray_runs():
            return
        exporter.set_again()
        del exporter


def _open(metric: Metric) -> Any:
    from ray.util.metrics import Counter, Gauge, Histogram

    name, options = PREFIX + metric.name, {"description": metric.text, "tag_keys": metric.tags}
    if metric.kind == "histogram":
        return Histogram(name, boundaries=_SECONDS, **options)
    return Counter(name, **options) if metric.kind == "counter" else Gauge(name, **options)
