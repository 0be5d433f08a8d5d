"""Metrics of a build. The driver sends them to Ray's exporter (gristmill.metrics) as the results of tasks
arrive.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from gristmill.metrics import Exporter, Metric
from pipelines.contracts.document_counts import Counts
from pipelines.contracts.manifest import StepManifest
from pipelines.contracts.parts import Part

Result = TypeVar("Result")
_STEP = ("corpus", "step", "source")
METRICS = (
    Metric("counter", "documents_total", "Documents that a step has processed", _STEP),
    Metric("counter", "bytes_total", "Bytes of their text, in UTF-8", _STEP),
    Metric("counter", "drops_total", "Documents that a rule has dropped", (*_STEP, "rule")),
    Metric("counter", "quarantined_total", "Records that were set aside when they were read", (*_STEP, "reason")),
    Metric("histogram", "task_seconds", "Seconds that a task has spent on a step", ("corpus", "step")),
    Metric("gauge", "steps", "Steps of the build", ("corpus",)),
    Metric("gauge", "steps_published", "Steps of the build that are published", ("corpus",)),
)


class BuildMetrics:
    """Records the metrics of one build of a corpus."""

    def __init__(self, corpus: str) -> None:
        self._exporter = Exporter(METRICS, corpus=corpus)

    def progress(self, published: int, steps: int) -> None:
        """Record how many steps there are and how many of them are published."""
        self._exporter.record("steps", steps)
        self._exporter.record("steps_published", published)

    def task(self, step: str, source: str, counts: Counts, text_bytes: int, seconds: float) -> None:
        """Record a task's work on one step and source: the seconds it took, the documents by outcome, and the
        size of their text.
        """
        self._exporter.record("task_seconds", seconds, step=step)
        self._count(step, source, counts, text_bytes)

    def corpus_step(self, step: str, manifest: StepManifest, parts: Sequence[Part]) -> None:
        """Record, for each source, the documents of a published corpus step by outcome and the size of their
        text.
        """
        for source, counts in manifest.counts.items():
            self._count(step, source, counts, sum(part.text_bytes for part in parts if part.source == source))

    def _count(self, step: str, source: str, counts: Counts, text_bytes: int) -> None:
        tags = {"step": step, "source": source}
        self._exporter.record("documents_total", counts.arrived, **tags)
        self._exporter.record("bytes_total", text_bytes, **tags)
        for rule, number in counts.dropped.items():
            self._exporter.record("drops_total", number, rule=rule, **tags)
        for reason, number in counts.quarantined.items():
            self._exporter.record("quarantined_total", number, reason=reason, **tags)


def counted(
    results: Iterable[tuple[int, Result]], count: Callable[[int, Result], None]
) -> Iterator[tuple[int, Result]]:
    """Yield the pairs of `results` unchanged, calling `count(position, result)` for each one as it arrives."""
    for position, result in results:
        count(position, result)
        yield position, result
