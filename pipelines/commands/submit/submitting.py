"""The commands `submit` and `jobs`: their arguments and output."""

import argparse
import json
import math
import os
import sys
from dataclasses import asdict
from pathlib import Path
from urllib.parse import urlsplit

from gristmill.errors import UserError
from gristmill.storage.paths import local_path


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands `submit` and `jobs`."""
    submit = commands.add_parser(
        "submit", help="run a command on a Ray cluster; submitting the same work again attaches to its job"
    )
    submit.add_argument("--follow", action="store_true", help="show its log; exit as the command does")
    submit.add_argument(
        "--slot", help="slot of a schedule, such as 2026-11-21: the same work in a different slot is a different job"
    )
    submit.add_argument(
        "--retries", type=int, default=0, help="further attempts after a failure; needs --follow (default 0)"
    )
    submit.add_argument(
        "--python", help="absolute path of the cluster's interpreter (default: this one's, on a loopback address)"
    )
    submit.add_argument(
        "--directory", type=local_path, default=Path(), help="the files to run from (default: the working directory)"
    )
    submit.add_argument(
        "--exclude", action="append", default=[], metavar="PATTERN",
        help="files not to upload: a name, or with a slash a path from the directory; may be repeated",
    )  # fmt: skip
    submit.add_argument("--no-upload", action="store_true", help="run the code that is on the nodes, as in an image")
    submit.add_argument(
        "--env", action="append", default=[], metavar="NAME[=VALUE]", help="a variable for the job; no secrets"
    )
    submit.add_argument(
        "--cpus", type=float, default=0, help="CPUs that the command itself needs (default 0: the head)"
    )
    submit.add_argument("--gpus", type=float, default=0, help="GPUs that the command itself needs (default 0)")
    _address_argument(submit)
    submit.add_argument("words", nargs="+", metavar="-- COMMAND", help="python and its arguments")
    submit.set_defaults(handler=submit_command)
    jobs = commands.add_parser("jobs", help="list submitted jobs, or show, follow and stop one")
    _address_argument(jobs)
    jobs.set_defaults(handler=show_jobs)
    actions = jobs.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="all jobs of the cluster, newest first")
    _address_argument(listing, argparse.SUPPRESS)
    for name, text in (
        ("status", "show the state of a job; exits 0 only if it succeeded"),
        ("logs", "show the output of a job"),
        ("stop", "end a job: SIGTERM, then SIGKILL"),
    ):
        action = actions.add_parser(name, help=text)
        action.add_argument("job", metavar="ID", help="its submission id; without -2, -3, ... its newest attempt")
        _address_argument(action, argparse.SUPPRESS)
        if name == "logs":
            action.add_argument("--follow", action="store_true", help="wait until the job ends; exit as it does")


def _address_argument(command: argparse.ArgumentParser, default: str | None = None) -> None:
    """Add the argument `--address`. `default` is SUPPRESS for the actions of `jobs`, so that they do not
    override an address given before the action.
    """
    command.add_argument(
        "--address",
        default=default or os.environ.get("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:8265"),
        metavar="URL",
        help="the cluster's dashboard (default: RAY_API_SERVER_ADDRESS, or http://127.0.0.1:8265)",
    )


def submit_command(options: argparse.Namespace) -> int:
    """Submit a job or attach to one. Print its id, or with --follow its log. Return the exit status for the
    shell.
    """
    from pipelines.commands.submit import jobs, submission

    if options.retries and not options.follow:
        raise UserError("--retries: needs --follow: Ray runs a job once, so it is this command that tries again")
    if options.retries < 0 or not (0 <= options.cpus < math.inf and 0 <= options.gpus < math.inf):
        raise UserError("--retries, --cpus, --gpus: expected 0 or more")
    address = submission.check_address(options.address, os.environ)
    python = options.python or _python_of(address)
    if not Path(python).is_absolute():
        raise UserError(
            f"--python: got {python!r}, expected an absolute path: a job's PATH finds the system's interpreter"
        )
    directory = options.directory.resolve()
    work = submission.describe(options.words, directory, options.slot)
    upload = None if options.no_upload else submission.collect(directory, options.exclude)
    submission.check_uploaded(options.words, directory, upload)
    launch = jobs.Launch(
        python, upload, submission.environment(options.env, os.environ), options.cpus, options.gpus
    )  # fmt: skip
    if upload is not None and upload.left_out:
        links = ", ".join(upload.left_out)
        _to_stderr(
            f"not uploaded, because they are links to directories, to missing or excluded files or out of {directory}: {links}"
        )
    client = jobs.connect(address)
    if options.follow:
        return jobs.exit_status(jobs.run(client, work, launch, options.retries, _write_log, _to_stderr))
    print(jobs.submit(client, work, launch, _to_stderr).id)
    return 0


def _python_of(address: str) -> str:
    if urlsplit(address).hostname in ("127.0.0.1", "::1", "localhost"):
        return sys.executable
    raise UserError(
        "--python: name the interpreter on the cluster that runs the command, such as /opt/gristmill/.venv/bin/python"
    )


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _write_log(text: str) -> None:
    from gristmill.terminal import printable

    print(printable(text, lines=True), end="", flush=True)


def show_jobs(options: argparse.Namespace) -> int:
    """List jobs, show one, print or follow its log, or stop it. Return the exit status for the shell."""
    from gristmill.terminal import printable
    from pipelines.commands.submit import jobs
    from pipelines.commands.submit.submission import check_address

    client = jobs.connect(check_address(options.address, os.environ))
    if options.action == "list":
        for job in jobs.jobs(client):
            print(f"{job.status:9}  {printable(job.id)}  {printable(job.entrypoint)}")
        return 0
    job = jobs.newest(client, options.job)
    if options.action == "logs" and options.follow:
        return jobs.exit_status(jobs.follow(client, job, _write_log))
    if options.action == "logs":
        _write_log(client.get_job_logs(job.id))
        return 0
    if options.action == "stop":
        print(f"{job.id}: {jobs.stop(client, job).status.lower()}")
        return 0
    print(json.dumps(asdict(job), indent=1))
    return jobs.exit_status(job)
