"""Runs a command line as one of two competing drivers: `python driver.py OPTIONS MODULE ARGUMENTS ...`.

OPTIONS is a JSON object with any of:

- `lease`: false to take no lease, or an object of other timings for the lease
- `host`: a host name to pretend to run on
- `hours`: how far the driver's clock is ahead
- `hold`: [WRITE, FILE]: before write number WRITE, or before the first write of a file named WRITE, make FILE.held and wait for
  FILE.go
- `gate`: a file to wait for before starting; FILE.PID is made first
- `record`: the file where `launching.Record` writes what is trained on
"""

import contextlib
import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from tests.trainers.launching import Record

PAUSE_SECONDS = 0.02


def until(path: Path) -> None:
    while not path.exists():
        time.sleep(PAUSE_SECONDS)


def change_lease(numbers) -> None:
    from gristmill.storage import lease
    from trainers.runs import run

    changed = partial(lease.lock, **numbers) if numbers else lambda *arguments, **named: contextlib.nullcontext()
    lease.lock = run.lock = changed


def move_to(host: str) -> None:
    import gristmill.host

    own = os.uname()
    os.uname = lambda: SimpleNamespace(nodename=host, sysname=own.sysname, release=own.release, machine=own.machine)
    gristmill.host.kernel = lambda: f"{host} another kernel"


def move_clock(hours: float) -> None:
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + hours * 3600
    time.time_ns = lambda: now_ns() + int(hours * 3600 * 1e9)


def hold(which: int | str, file: str) -> None:
    from gristmill.storage.disk import LocalPath

    write, written = LocalPath.write_atomic, []

    def holding(path, content, check=None):
        written.append(path.name)
        if which == len(written) or (which == path.name and written.count(which) == 1):
            Path(f"{file}.held").touch()
            until(Path(f"{file}.go"))
        write(path, content, check)

    LocalPath.write_atomic = holding


def main() -> int:
    options, module, arguments = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3:]
    from pipelines.building import publish

    publish.write_report = lambda *arguments: False  # charts take longer than all the rest of a small build
    if "lease" in options:
        change_lease(options["lease"])
    if "host" in options:
        move_to(options["host"])
    if "hours" in options:
        move_clock(options["hours"])
    if "hold" in options:
        hold(*options["hold"])
    if "record" in options:
        Record(options["record"])
    if module == "trainers":
        from trainers.__main__ import main as run
    else:
        from pipelines.__main__ import main as run
    if "gate" in options:
        Path(f"{options['gate']}.{os.getpid()}").touch()
        until(Path(options["gate"]))
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
