"""The kinds of jobs, told apart by `kind` in `resolved.yaml`. To add one: a dataclass here and how its data is read
(`trainers.data.job_data`).
"""

from collections.abc import Mapping
from typing import Any, Union

from gristmill.config import parse
from gristmill.errors import UserError
from trainers.config.job import Job
from trainers.config.pretraining import Pretraining

JOBS: dict[str, type[Job]] = {"pretraining": Pretraining}


def parse_job(data: Mapping[str, Any], where: str) -> Job:
    """The job of the kind that plain data names: pretraining where it names none. ConfigError begins with `where`."""
    union: Any = Union[tuple(JOBS.values())]  # noqa: UP007
    job: Job = parse(union, {"kind": "pretraining", **data}, where)
    return job


def as_pretraining(job: Job, where: object) -> Pretraining:
    """The job, for commands that only know pretraining. UserError, which begins with `where`, for one of another kind."""
    if not isinstance(job, Pretraining):
        raise UserError(f"{where}: is of kind {job.kind}, allowed pretraining")
    return job
