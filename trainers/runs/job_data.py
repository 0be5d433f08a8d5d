"""The functions that read the data of each kind of job."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainers.config.job import Job
from trainers.data.document_loss import DocumentData, document_data
from trainers.data.examples.task_corpus import open_tasks, task_training, task_validation
from trainers.data.job_interface import JobCorpus, JobTraining, JobValidation
from trainers.data.packed_corpus import corpus_of, training_data, validation_data


@dataclass(frozen=True)
class DataReader:
    """The functions that read the data of one kind of job.

    `corpus(job)` opens the job's data. The others take the opened corpus and the resolved job: `training`
    returns the training samples in order, `validation` the held-out rows, and `documents` the documents on
    which bits per byte are measured, or None. The third argument of `training` is the ids of documents that
    have no loss in pretraining.
    """

    corpus: Callable[[Any], JobCorpus]
    training: Callable[[Any, Any, frozenset[bytes]], JobTraining]
    validation: Callable[[Any, Any], JobValidation]
    documents: Callable[[Any, Any], DocumentData | None]


READERS: dict[str, DataReader] = {
    "pretraining": DataReader(
        corpus_of,
        training_data,
        lambda corpus, job: validation_data(corpus, job, job.validation.tokens),
        lambda corpus, job: document_data(corpus, job) if job.validation.documents else None,
    ),
    "finetuning": DataReader(open_tasks, task_training, task_validation, lambda corpus, job: None),
}
"""The reader of each kind of job, by `kind`."""


def reader_of(job: Job) -> DataReader:
    """Return the functions that read the data of a job."""
    return READERS[job.kind]
