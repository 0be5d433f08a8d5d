"""Jobs on a Ray cluster: submit or attach, follow, retry, stop.

The submission id of a job includes the fingerprint of its work, and Ray accepts an id only once. Submitting
the same work again attaches to its job if that is active, returns the job if it has succeeded, and starts a
retry if it has failed or was stopped. A retry has the same id with the suffix -2, -3, ...
"""

import asyncio
import logging
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gristmill.errors import ConflictError, UserError
from gristmill.host import host
from gristmill.libraries.advisories import refuse_known
from pipelines.commands.submit.submission import Upload, Work

ACTIVE = ("PENDING", "RUNNING")
_SILENCE_SECONDS = 300.0  # without an answer, then give up: a restarted head or a broken tunnel is back within minutes
_PAUSE_SECONDS = 2.0
_STOP_SECONDS = 60.0
_LONGEST_PAUSE = 60.0
Say = Callable[[str], None]


class Client(Protocol):
    """The methods of Ray's JobSubmissionClient that the commands `submit` and `jobs` call."""

    def list_jobs(self) -> list[Any]: ...
    def get_job_info(self, job_id: str) -> Any: ...
    def get_job_logs(self, job_id: str) -> str: ...
    def tail_job_logs(self, job_id: str) -> Any: ...
    def stop_job(self, job_id: str) -> bool: ...
    def submit_job(self, **options: Any) -> str: ...


@dataclass(frozen=True)
class SubmittedJob:
    """A job on the cluster: one attempt at some work. `exit_code` is that of the command, or None while the
    job runs or if Ray reports none. `started` and `ended` are Unix times in seconds.
    """

    id: str
    status: str
    entrypoint: str
    message: str
    exit_code: int | None
    started: float | None
    ended: float | None
    metadata: Mapping[str, str]

    @property
    def active(self) -> bool:
        """Whether the job is pending or running."""
        return self.status in ACTIVE


@dataclass(frozen=True)
class Launch:
    """How to run some work: the interpreter on the cluster, the files to upload, the environment variables,
    and the CPUs and GPUs that the command itself reserves.
    """

    python: str
    upload: Upload | None
    variables: Mapping[str, str]
    cpus: float = 0
    gpus: float = 0


def connect(address: str) -> Client:
    """Return a client of the cluster whose dashboard is at `address`. Raises UserError if no cluster answers
    there, if it rejects the token, or if the installed Ray has a known advisory.

    Removes RAY_ADDRESS and RAY_API_SERVER_ADDRESS from the environment.
    """
    refuse_known("ray")
    from ray.job_submission import JobSubmissionClient

    for module in ("dashboard.modules.dashboard_sdk", "dashboard.modules.job.sdk", "_private.runtime_env.packaging"):
        logging.getLogger(f"ray.{module}").setLevel(logging.WARNING)  # they report every upload and connection
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        os.environ.pop(name, None)  # Ray would prefer them to the address it is given
    client: Client = _asking(address, lambda: JobSubmissionClient(address))
    return client


def _asking(address: str, ask: Callable[[], Any]) -> Any:
    import requests
    from ray.exceptions import AuthenticationError

    try:
        return ask()
    except AuthenticationError:
        raise UserError(
            f"{address}: the cluster rejects this token (401 or 403): set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or "
            f"~/.ray/auth_token to the token of its head"
        ) from None
    except (ConnectionError, requests.RequestException) as error:
        raise UserError(
            f"{address}: no cluster answers ({type(error).__name__}); start one, open the tunnel to it (ray dashboard "
            f"ray_cluster.yaml), or name another with --address"
        ) from None


def attempts(client: Client, submission: str) -> list[SubmittedJob]:
    """Return all attempts of a submission, oldest first. `submission` may also be the id of a later attempt,
    which is then returned alone.
    """
    by_number = {}
    for details in client.list_jobs():
        if number := _number(details.submission_id or "", submission):
            by_number[number] = _job(details)
    return [by_number[number] for number in sorted(by_number)]


def _number(job_id: str, submission: str) -> int:
    """Return the number of an attempt at a submission: 1 for the job whose id is `submission`, N for the job
    `submission-N`, and 0 for a job that is not an attempt at it.
    """
    if job_id == submission:
        return 1
    suffix = job_id.removeprefix(f"{submission}-")
    return int(suffix) if suffix != job_id and suffix.isdecimal() else 0


def jobs(client: Client) -> list[SubmittedJob]:
    """Return all submitted jobs, newest first."""
    submitted = [_job(details) for details in client.list_jobs() if details.submission_id]
    return sorted(submitted, key=lambda job: -(job.started or host().time()))


def newest(client: Client, submission: str) -> SubmittedJob:
    """Return the newest attempt of a submission. Raises UserError if there is none."""
    found = attempts(client, submission)
    if not found:
        raise UserError(f"{submission}: the cluster has no such job; see: python -m pipelines jobs list")
    return found[-1]


def _job(details: Any) -> SubmittedJob:
    started, ended = (None if at is None else at / 1000 for at in (details.start_time, details.end_time))
    return SubmittedJob(
        details.submission_id, str(getattr(details.status, "value", details.status)), details.entrypoint,
        details.message or "", details.driver_exit_code, started, ended, details.metadata or {},
    )  # fmt: skip


def submit(client: Client, work: Work, launch: Launch, say: Say) -> SubmittedJob:
    """Start a job for this work and return it. If a job for the work is already active, for this or another
    slot of the schedule, or has succeeded for this slot, return that job instead.

    Raises ConflictError if the same command is running with other code or another configuration, and
    UserError if the cluster does not accept the job.
    """
    for oldest in _same_command(client, work):
        return _attach(oldest, work, say)
    before = attempts(client, work.id)
    if before and before[-1].active:  # submitted just now, and perhaps to be stopped because another job is older
        return submit(client, work, launch, say)
    if before and before[-1].status == "SUCCEEDED":
        say(f"{before[-1].id}: has already succeeded; to run the same work again, name a --slot")
        return before[-1]
    # Earlier attempts may have been deleted.
    job = _start(client, work, launch, _number(before[-1].id, work.id) + 1 if before else 1, say)
    older = [other for other in _same_command(client, work) if _age(other) < _age(job)]
    if older:
        say(f"{job.id}: {older[0].id} was submitted at the same moment, but earlier; stopping {job.id}")
        stop(client, job)
        return _attach(older[0], work, say)
    return job


def _same_command(client: Client, work: Work) -> list[SubmittedJob]:
    same = (job for job in jobs(client) if job.active and job.metadata.get("words") == work.words)
    return sorted(same, key=_age)


def _age(job: SubmittedJob) -> tuple[float, str]:
    """Return a sort key that is smaller for older jobs and differs between any two jobs."""
    return (math.inf if job.started is None else job.started, job.id)


def _attach(other: SubmittedJob, work: Work, say: Say) -> SubmittedJob:
    if other.metadata.get("submission") == work.id:
        say(f"{other.id}: is already running; attached to it")
        return other
    if other.metadata.get("work") == work.key:
        say(f"{other.id}: the same work is still running for another slot; attached to it")
        return other
    raise ConflictError(
        f"{other.id} is running the same command with other code or another configuration; wait for it, or stop it: "
        f"python -m pipelines jobs stop {other.id}"
    )


def _start(client: Client, work: Work, launch: Launch, attempt: int, say: Say) -> SubmittedJob:
    name = work.id if attempt == 1 else f"{work.id}-{attempt}"
    metadata = {"submission": work.id, "words": work.words, "work": work.key, "attempt": str(attempt)}
    environment: dict[str, Any] = {"env_vars": dict(launch.variables)} if launch.variables else {}
    with tempfile.TemporaryDirectory(prefix="gristmill-") as copy:
        if launch.upload is not None:
            launch.upload.copy_to(Path(copy))
            environment["working_dir"] = copy
        try:
            client.submit_job(
                entrypoint=work.entrypoint(launch.python), submission_id=name, runtime_env=environment,
                metadata=metadata | ({"slot": work.slot} if work.slot else {}),
                entrypoint_num_cpus=launch.cpus or None, entrypoint_num_gpus=launch.gpus or None,
            )  # fmt: skip
            say(
                f"{name}: submitted"
                + (f", attempt {attempt}: it continues where the last one stopped" if attempt > 1 else "")
            )
        except RuntimeError as error:
            if not any(job.id == name for job in attempts(client, work.id)):
                raise UserError(f"{name}: the cluster did not accept the job: {_first_line(str(error))}") from error
            say(f"{name}: another process submitted it just now; attached to it")
    return _job(client.get_job_info(name))


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")[:300]


def follow(client: Client, job: SubmittedJob, write: Say) -> SubmittedJob:
    """Pass the log of a job to `write` as it grows, and return the job once it has ended.

    Reconnects if the connection breaks. Raises UserError if the cluster has not answered for five minutes.
    """
    printed, last, is_writing = 0, host().monotonic(), False

    async def tail() -> None:
        nonlocal printed, last, is_writing
        seen = 0
        async for chunk in client.tail_job_logs(job.id):
            last = host().monotonic()
            new = chunk[max(0, printed - seen) :]
            seen += len(chunk)
            if new:
                is_writing = True
                write(new)
                is_writing, printed = False, seen

    while True:
        try:
            asyncio.run(tail())
            found = _job(client.get_job_info(job.id))
            last = host().monotonic()
        # The connection, the head or the tunnel may be broken while the job runs, so only a long silence ends
        # the wait.
        except Exception as error:
            if is_writing:  # to a pipe whose reader has exited
                raise
            if host().monotonic() - last > _SILENCE_SECONDS:
                raise UserError(
                    f"{job.id}: the cluster has not answered for {_SILENCE_SECONDS:.0f} s ({type(error).__name__}); the job may "
                    f"still be running; the same command attaches to it"
                ) from error
        else:
            if not found.active:
                return found
        host().sleep(_PAUSE_SECONDS)


def run(client: Client, work: Work, launch: Launch, retries: int, write: Say, say: Say) -> SubmittedJob:
    """Submit a job, or attach to one that does the same work, and follow it to its end. If it fails, retry up
    to `retries` times. Return the last job.
    """
    job = follow(client, submit(client, work, launch, say), write)
    for retry in range(1, retries + 1):
        if job.status != "FAILED":
            break
        say(f"{job.id}: {_ending(job)}; retry {retry} of {retries}")
        host().sleep(min(_LONGEST_PAUSE, _PAUSE_SECONDS * 2**retry))
        job = follow(client, submit(client, work, launch, say), write)
    say(f"{job.id}: {_ending(job)}")
    return job


def _ending(job: SubmittedJob) -> str:
    if job.status == "SUCCEEDED":
        return "succeeded"
    if job.exit_code is not None:
        return f"{job.status.lower()} with exit status {job.exit_code}"
    return f"{job.status.lower()}: {_first_line(job.message) or 'Ray gives no reason'}"


def exit_status(job: SubmittedJob) -> int:
    """Return 0 for success. Otherwise return the exit status of the job's command: 128 + signal if a signal
    killed it, and 1 if Ray reports none.
    """
    if job.status == "SUCCEEDED":
        return 0
    code = job.exit_code or 1
    return code if code > 0 else 128 - code


def stop(client: Client, job: SubmittedJob) -> SubmittedJob:
    """Stop a job and return it once it has ended. Raises UserError if it has not ended within a minute."""
    client.stop_job(job.id)
    before = host().monotonic()
    while (found := _job(client.get_job_info(job.id))).active:
        if host().monotonic() - before > _STOP_SECONDS:
            raise UserError(
                f"{job.id}: is still {found.status.lower()} {_STOP_SECONDS:.0f} s after the request to stop"
            )
        host().sleep(_PAUSE_SECONDS)
    return found
