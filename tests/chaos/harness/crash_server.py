"""Commands in processes forked from a warm process, so that hundreds of runs take minutes.

Run as a program, this module is the warm process: it reads orders as lines of JSON, and answers each order
with the exit status of the child that ran it, negative for a signal. A child runs one of our command lines,
as `python -m` would, and may be told to die at a given operation.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from gristmill.storage.disk import LocalPath
from tests.chaos.harness.crashing import Operation, Point, Watch
from tests.trainers.launching import ROOT, environment

_LIMIT_SECONDS = 300  # of one command


class Ended(NamedTuple):
    """The result of a command: its exit status, its seconds, the operations that it reached, and its output."""

    status: int
    seconds: float
    operations: list[Operation]
    said: str


class Server:
    def __init__(self, process: "subprocess.Popen[str]", scratch: Path) -> None:
        self._process, self._scratch, self._errors, self._number = process, scratch, scratch / "errors", 0

    def run(
        self, command: Sequence[Any], root: Path, point: Point | None = None, *, bucket: str = "", record: str = ""
    ) -> Ended:
        """Run `pipelines ...` or `trainers ...` to the end or to `point`, and watch its operations below
        `root`.

        Operations on the object-store bucket `bucket` are also watched. Rows read in training are written to
        `record`.
        """
        self._number += 1
        own = self._scratch / str(self._number)
        own.mkdir()
        order = {"command": [str(word) for word in command], "root": str(root), "own": str(own), "bucket": bucket}
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(order | {"point": point, "record": record}), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        assert line, self._errors.read_text()
        answer = json.loads(line)
        log = own / "operations.json"
        operations = [Operation(**entry) for entry in json.loads(log.read_text())] if log.exists() else []
        said = (own / "said").read_text(errors="replace") if (own / "said").exists() else ""
        subprocess.run(["rm", "-r", str(own)], check=True)
        return Ended(answer["status"], answer["seconds"], operations, said)

    def warm(self, command: Sequence[Any]) -> None:
        """Load what later children need: import the last child's modules, if any, and run a command in the
        warm process itself.

        The command must leave no threads that the children would need.
        """
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps({"warm": [str(word) for word in command]}), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, self._errors.read_text()
        assert json.loads(answer)["status"] == 0, self._errors.read_text()


@contextmanager
def server(scratch: Path) -> Iterator[Server]:
    """Start a process that runs commands.

    `scratch` must be on the same file system as the watched directories.
    """
    with tempfile.TemporaryDirectory(dir=scratch) as own:
        quiet = {"OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "GRISTMILL_CACHE": f"{own}/cache"}
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
        errors = LocalPath(own) / "errors"
        with open(errors, "w") as sink:
            program = [sys.executable, "-m", "tests.chaos.harness.crash_server", str(LocalPath(own) / "imported")]
            process = subprocess.Popen(
                program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sink, text=True, cwd=ROOT,
                env=environment(**quiet, **keys),
            )  # fmt: skip
        try:
            yield Server(process, LocalPath(own))
        finally:
            process.kill()
            process.communicate()


def _main(command: Sequence[str]) -> int:
    if command[0] == "pipelines":
        from pipelines.__main__ import main
    else:
        from trainers.__main__ import main
    return main(list(command[1:]))


def _without_beats() -> None:
    """Disable the lease heartbeat, whose timing would change the sequence of operations from run to run."""
    from gristmill.storage.lease import Lease

    Lease.beat = lambda lease: True


def _with_poison() -> None:
    """Make `text_hash` fail on documents that contain "poison", and the reader fail on files with "poison" in
    their path that are not yet set aside.
    """
    from gristmill.errors import PoisonError
    from pipelines.building import read_step
    from pipelines.stages.measure.text_hash import TextHash

    read, annotate = read_step.read_documents, TextHash.annotate

    def reading(source: Any, files: Any, part_bytes: int, poison: Any = (), forgotten: Any = ()) -> Any:
        for file in files:
            if "poison" in file.path and f"{file.path}#0" not in poison:
                raise PoisonError("broken", "read", source.name, f"{file.path}#0", "crash")
        return read(source, files, part_bytes, poison, forgotten)

    def annotating(stage: Any, docs: Any) -> Any:
        if any("poison" in text for text in docs["text"].to_pylist()):
            raise RuntimeError
        return annotate(stage, docs)

    read_step.read_documents, TextHash.annotate = reading, annotating


def _child(order: dict[str, Any], imported: Path) -> None:
    own = LocalPath(order["own"])
    said = os.open(own / "said", os.O_WRONLY | os.O_CREAT)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, nothing), (1, said), (2, said)):
        os.dup2(source, target)
    signal.alarm(_LIMIT_SECONDS)
    if order["record"]:
        from tests.trainers.launching import Record

        Record(order["record"])
    point = Point(*order["point"]) if order["point"] else None
    watch = Watch(LocalPath(order["root"]), own / "operations.json", point, own)
    if order["bucket"]:
        watch.watch_store(order["bucket"])
    status = _main(order["command"])
    watch.end()
    imported.write_text("\n".join(sys.modules))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what commands print is no answer
    _without_beats()
    _with_poison()
    imported = LocalPath(sys.argv[1])
    for line in sys.stdin:
        order, began = json.loads(line), time.perf_counter()
        status = _warm(order["warm"], imported) if "warm" in order else _fork(order, imported)
        print(json.dumps({"status": status, "seconds": time.perf_counter() - began}), file=answers, flush=True)


def _warm(command: Sequence[str], imported: Path) -> int:
    for name in imported.read_text().split() if imported.exists() else ():
        with suppress(Exception):  # some modules exist only within others
            importlib.import_module(name)
    return _main(command)


def _fork(order: dict[str, Any], imported: Path) -> int:
    child = os.fork()
    if child == 0:
        try:
            _child(order, imported)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(70)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    _serve()
