"""Metrics of a run for Ray's exporter (`gristmill.metrics`). Only the first worker records them."""

from collections.abc import Mapping
from typing import Any

from gristmill.metrics import Exporter, Metric

_RUN = ("run",)
METRICS = (
    Metric("gauge", "training_step", "Optimizer steps done", _RUN),
    Metric("gauge", "training_steps", "Optimizer steps that the run will have", _RUN),
    Metric("gauge", "training_tokens", "Tokens read", _RUN),
    Metric("gauge", "training_tokens_per_second", "Tokens read per second, by all workers", _RUN),
    Metric("gauge", "training_loss", "Mean loss since the last log line, in nats", _RUN),
    Metric("gauge", "training_gradient_norm", "Norm of the gradient before it is clipped", _RUN),
    Metric("gauge", "training_learning_rate", "Learning rate of the last step", _RUN),
    Metric("gauge", "training_mfu", "Model FLOP/s as a share of the devices' peak", _RUN),
    Metric("gauge", "training_memory_bytes", "Peak memory of the first worker, in bytes", _RUN),
    Metric("gauge", "training_data_seconds", "Seconds that the first worker has waited for data, per log line", _RUN),
    Metric("gauge", "validation_loss", "Mean loss on held-out documents, in nats", (*_RUN, "source")),
    Metric("counter", "training_skipped_total", "Steps skipped because their loss or gradient was not finite", _RUN),
    Metric("counter", "training_checkpoints_total", "Checkpoints saved", _RUN),
)
_OF_STEP = (
    "tokens",
    "tokens_per_second",
    "loss",
    "gradient_norm",
    "learning_rate",
    "mfu",
    "memory_bytes",
    "data_seconds",
)


class RunMetrics:
    """The metrics of one run, labelled with the name of its directory."""

    def __init__(self, run: str) -> None:
        self._exporter = Exporter(METRICS, run=run)

    def take(self, event: str, fields: Mapping[str, Any]) -> None:
        """Update the metrics from one event of the run's log."""
        if event == "step":
            self._exporter.record("training_step", fields["step"])
            self._exporter.record("training_steps", fields["steps"])
            for name in _OF_STEP:
                self._exporter.record(f"training_{name}", fields.get(name))
        elif event == "validation":
            for source, entry in fields["sources"].items():
                self._exporter.record("validation_loss", entry["loss"], source=source)
        elif event in ("skipped", "checkpoint"):
            self._exporter.record(f"training_{'skipped' if event == 'skipped' else 'checkpoints'}_total", 1)
