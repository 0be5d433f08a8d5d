"""Metrics for Ray's exporter, from which Prometheus scrapes them and Ray's dashboard and Grafana show them.

Ray puts `ray_` before each name. Without a running Ray nothing is recorded, and Ray is not imported. Whoever reaches the port of
the exporter can read the tags, as it asks for no token: they hold names of corpora, runs, steps, sources and rules, which stand
in configurations, and never text or names of documents, so that their number is bounded too.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

PREFIX = "gristmill_"
_SECONDS = [0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0]  # upper bounds of a histogram's buckets


@dataclass(frozen=True)
class Metric:
    """A metric: its name without PREFIX, what it says, and the names of its tags.

    A counter grows, and its name ends in `_total`; a gauge is what was said last; a histogram counts seconds.
    """

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    text: str
    tags: tuple[str, ...]


class Exporter:
    """Records values of some metrics, all with the tags that it is made with."""

    def __init__(self, metrics: Sequence[Metric], **tags: str) -> None:
        self._known = {metric.name: metric for metric in metrics}
        self._tags = tags
        self._opened: dict[str, Any] = {}

    def record(self, name: str, value: float | None, **tags: str) -> None:
        """Add to a counter, set a gauge, or observe seconds; nothing without Ray, or where there is no finite value."""
        ray = sys.modules.get("ray")
        if ray is None or value is None or not math.isfinite(value) or not ray.is_initialized():
            return
        metric = self._known[name]
        if name not in self._opened:
            self._opened[name] = _open(metric)
        act = {"counter": "inc", "gauge": "set", "histogram": "observe"}[metric.kind]
        if value or metric.kind != "counter":  # Ray refuses to add nothing
            getattr(self._opened[name], act)(value, tags=self._tags | tags)


def _open(metric: Metric) -> Any:
    from ray.util.metrics import Counter, Gauge, Histogram

    name, options = PREFIX + metric.name, {"description": metric.text, "tag_keys": metric.tags}
    if metric.kind == "histogram":
        return Histogram(name, boundaries=_SECONDS, **options)
    return Counter(name, **options) if metric.kind == "counter" else Gauge(name, **options)
