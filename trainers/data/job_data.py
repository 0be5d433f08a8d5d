"""How the data of each kind of job is read: what the loop and the launcher ask for without knowing the kind."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainers.config.job import Job
from trainers.data.document_loss import DocumentData, document_data
from trainers.data.packed_corpus import (
    TrainingCorpus,
    TrainingData,
    ValidationData,
    corpus_of,
    training_data,
    validation_data,
)


@dataclass(frozen=True)
class DataReader:
    """The functions that read the data of one kind of job; the job that they get is resolved and of that kind.

    `corpus` opens what the job reads. `training` is its order of samples without the loss of excluded documents,
    `validation` the rows held out, and `documents` what bits per byte of whole documents are measured on, or None.
    """

    corpus: Callable[[Any], TrainingCorpus]
    training: Callable[[TrainingCorpus, Any, frozenset[bytes]], TrainingData]
    validation: Callable[[TrainingCorpus, Any], ValidationData]
    documents: Callable[[TrainingCorpus, Any], DocumentData | None]


READERS: dict[str, DataReader] = {
    "pretraining": DataReader(
        corpus_of,
        training_data,
        lambda corpus, job: validation_data(corpus, job, job.validation.tokens),
        document_data,
    )
}
"""By `kind`."""


def reader_of(job: Job) -> DataReader:
    """How the data of a job is read."""
    return READERS[job.kind]
