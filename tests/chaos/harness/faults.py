"""Commands on failing disks, run in children of one warm process into which faults.c is loaded.

Run as a program, this module is the warm process: it reads orders as lines of JSON, and answers each order
when its child has ended. A child arms its fault and runs one command line, as `python -m` would.
"""

import ctypes
import errno
import importlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from tests.trainers.launching import ROOT, Record, environment

READ, WRITE, SYNC, OPEN_TO_READ, OPEN_TO_WRITE, RENAME = (1 << bit for bit in range(6))  # as in faults.c
FOREVER = 1 << 40
NOBODY = 65534
_LIMIT_SECONDS = 240  # of one command
_SOURCE = Path(__file__).with_suffix(".c")


@dataclass(frozen=True)
class Fault:
    """System calls that fail with `error`, or that trigger a change to a file.

    The calls are those of `kinds` on paths below `place`: `count` of them, from number `first` on. A place
    that ends in * is a prefix of paths.

    With `action`, no call fails. Instead, the file `target` is changed before the first of these calls: "r"
    replaces it by `other`, "o" overwrites it with `other` and keeps its times, "u" removes it, "t" truncates
    it to `number` bytes, "c" sets its mode to `number`.
    """

    place: str
    kinds: int
    error: int = errno.EIO
    first: int = 1
    count: int = FOREVER
    action: str = ""
    target: str = ""
    other: str = ""
    number: int = 0


class Ended(NamedTuple):
    """The result of a command.

    `status` is negative for a signal. `seen` and `fired` count the calls that the fault looked at and those
    that it hit. `published_unsynced` says whether a file was published after its fsync had failed.
    """

    status: int
    seconds: float
    out: str
    errors: str
    seen: int = 0
    fired: int = 0
    published_unsynced: bool = False


class Server:
    def __init__(self, process: "subprocess.Popen[str]", scratch: Path) -> None:
        self._process, self._scratch, self._number = process, scratch, 0

    def run(
        self,
        *command: Any,
        fault: Fault | None = None,
        uid: int = 0,
        file_bytes: int = 0,
        seconds: float = 0,
        record: str = "",
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> Ended:
        """Run `pipelines ...` or `trainers ...` to its end.

        It may run as another user (`uid`), with a limit on the size of a file (`file_bytes`), with a timeout
        for responses of a store (`seconds`), and with more environment variables. Rows read in training are
        written to `record`.
        """
        order = {
            "command": [str(word) for word in command],
            "fault": asdict(fault) if fault else None,
            "uid": uid,
            "file_bytes": file_bytes,
            "seconds": seconds,
            "record": record,
            "variables": dict(variables),
        }
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(order), file=self._process.stdin, flush=True)
        self._number += 1
        answer: dict[str, Any] = {}
        while answer.get("number") != self._number:  # a test that was given up may have left one
            line = self._process.stdout.readline()
            assert line, (self._scratch / "server").read_text()
            answer = json.loads(line)
        said = [(self._scratch / name).read_text(errors="replace") for name in ("out", "errors")]
        told = self._scratch / "told.json"
        more = json.loads(told.read_text() or "{}") if told.exists() else {}
        more.pop("modules", None)
        told.unlink(missing_ok=True)
        return Ended(answer["status"], answer["seconds"], *said, **more)


def compiled(directory: Path) -> Path | None:
    """Compile faults.c to a shared library; return its path, or None if there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    library = directory / "faults.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, _SOURCE, "-ldl"], check=True)
    return library


@contextmanager
def server(scratch: Path, library: Path | None) -> Iterator[Server]:
    """Start the warm process, with the fault library preloaded if there is one."""
    variables = {"OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    if library is not None:
        variables["LD_PRELOAD"] = str(library)
    scratch.chmod(0o777)
    with open(scratch / "server", "w") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.harness.faults", str(scratch)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=sink, text=True, cwd=ROOT, env=environment(**variables),
        )  # fmt: skip
        try:
            yield Server(process, scratch)
        finally:
            assert process.stdin
            assert process.stdout
            process.stdin.close()
            process.stdout.close()
            process.wait()


def main() -> None:
    scratch = Path(sys.argv[1])
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for number, line in enumerate(sys.stdin, 1):
        order, began = json.loads(line), time.perf_counter()
        child = os.fork()
        if child == 0:
            _run(order, scratch)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - began
        _import_what_it_did(scratch / "told.json")
        print(json.dumps({"number": number, "status": code, "seconds": seconds}), flush=True)


def _import_what_it_did(told: Path) -> None:
    """Import the modules that the last child imported, so that the next child finds them loaded."""
    with suppress(OSError, ValueError, KeyError):
        for module in json.loads(told.read_text())["modules"]:
            if module not in sys.modules:
                with suppress(Exception):
                    importlib.import_module(module)


def _run(order: Mapping[str, Any], scratch: Path) -> None:
    """Run one order in the child; never returns."""
    signal.alarm(_LIMIT_SECONDS)
    os.environ.update(order["variables"])
    told = os.open(scratch / "told.json", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number, name in ((1, "out"), (2, "errors")):
        os.dup2(os.open(scratch / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    if order["uid"]:
        os.setgroups([])
        os.setgid(order["uid"])
        os.setuid(order["uid"])
    if order["file_bytes"]:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_bytes"], resource.RLIM_INFINITY))
    if order["seconds"]:
        answers = importlib.import_module("gristmill.storage.timeouts")
        answers._SECONDS, answers._LEAST_RATE = order["seconds"], 1 << 20
    if order["record"]:
        Record(order["record"])
    library = _arm(order["fault"]) if order["fault"] else None
    status = _status(order["command"])
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    facts: dict[str, Any] = {"modules": [name for name in sys.modules if not name.startswith(("__", "tests."))]}
    if library is not None:
        facts |= {"seen": library.fault_seen(), "fired": library.fault_fired()}
        facts["published_unsynced"] = bool(library.fault_renamed_unsynced())
    os.write(told, json.dumps(facts).encode())
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _arm(fault: Mapping[str, Any]) -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    library.fault_seen.restype = library.fault_fired.restype = ctypes.c_long
    text = [str(fault[name]).encode() for name in ("place", "other", "target")]
    first, count = ctypes.c_long(fault["first"]), ctypes.c_long(1 if fault["action"] else fault["count"])
    action = ord(fault["action"]) if fault["action"] else 0
    library.fault_arm(text[0], fault["kinds"], fault["error"], first, count, action, *text[1:], fault["number"])
    return library


def _status(command: Sequence[str]) -> int:
    """Run a command line and return its exit status: 70, with a traceback, for an unexpected exception."""
    import traceback

    try:
        return int(importlib.import_module(f"{command[0]}.__main__").main(command[1:]))
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 70


if __name__ == "__main__":
    main()
