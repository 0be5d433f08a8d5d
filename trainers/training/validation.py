"""Measure a run on held-out data: losses, bits per byte of whole documents, and task metrics."""

from typing import Any

from trainers.config.job import Job
from trainers.data.document_loss import add_document_fields
from trainers.data.examples.held_out import HeldOut
from trainers.data.job_interface import JobCorpus
from trainers.engine.engine import Engine
from trainers.engine.loss_metrics import loss_fields
from trainers.runs.job_data import reader_of
from trainers.training.judge import Judge


class Validator:
    """Measures a run on its held-out data. Every worker has a validator, which measures the worker's share."""

    def __init__(self, config: Job, corpus: JobCorpus, engine: Engine, micro_batch: int, judge: Judge | None) -> None:
        reader = reader_of(config)
        self._held_out, self._documents = reader.validation(corpus, config), reader.documents(corpus, config)
        self._engine, self._judge, self._predicts = engine, judge, config.objective.predicts_text
        self._share = (micro_batch, engine.rank, engine.world)

    def measure(self) -> dict[str, Any] | None:
        """Return the fields of a validation event, or None if there are no held-out targets. The task metrics
        are in the field `scores`, on the first worker only. If the run averages its weights, the averages are
        measured. Every worker must call this.
        """
        if not self._held_out.sources:
            return None
        with self._engine.averaged_weights():
            return self._measure()

    def _measure(self) -> dict[str, Any] | None:
        held_out = self._held_out
        scores: dict[str, float] = {}
        batches = held_out.batches(*self._share)
        if self._judge is not None and isinstance(held_out, HeldOut):
            totals, scores = self._judge.measure(held_out, batches)
        else:
            totals = self._engine.evaluate(batches, len(held_out.sources))
        if not totals.targets:
            return None
        fields = loss_fields(totals.sums, self._engine.names, held_out.sources, self._predicts, held_out.weights)
        fields = add_document_fields(fields, self._document_fields())
        return fields | ({"scores": scores} if scores else {})

    def _document_fields(self) -> dict[str, Any]:
        if self._documents is None:
            return {}
        totals = self._engine.evaluate(self._documents.batches(*self._share), len(self._documents.sources))
        return self._documents.fields(totals.sums[0])
