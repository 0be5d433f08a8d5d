"""The kinds of jobs, selected by `kind`. To add one, register its dataclass here and the reader of its data
in `trainers.runs.job_data`.
"""

from collections.abc import Mapping
from typing import Any, Union

from gristmill.config import parse
from gristmill.errors import UserError
from trainers.config.finetuning import Finetuning
from trainers.config.job import Job
from trainers.config.pretraining import Pretraining

JOBS: dict[str, type[Job]] = {"pretraining": Pretraining, "finetuning": Finetuning}


def parse_job(data: Mapping[str, Any], where: str) -> Job:
    """Parse plain data into a job, pretraining by default. Raises ConfigError for invalid data."""
    union: Any = Union[tuple(JOBS.values())]  # noqa: UP007
    job: Job = parse(union, {"kind": "pretraining", **data}, where)
    return job


def as_pretraining(job: Job, where: object) -> Pretraining:
    """Return `job`, which must be a pretraining job. Raises UserError, with `where` in its message, for other
    kinds.
    """
    if not isinstance(job, Pretraining):
        raise UserError(f"{where}: is of kind {job.kind}, allowed pretraining")
    return job
