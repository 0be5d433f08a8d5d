"""Storage failures: full disks, read and write errors, withdrawn permissions, and sources that change."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gristmill.storage.disk import LocalPath
from tests.chaos.harness.disks import disk, enlarge, used
from tests.chaos.harness.faults import (
    FOREVER,
    NOBODY,
    OPEN_TO_READ,
    OPEN_TO_WRITE,
    READ,
    RENAME,
    SYNC,
    WRITE,
    Fault,
)
from tests.chaos.harness.outcome import Outcome, build_outcome
from tests.chaos.harness.small_corpus import Small, one_line, planned_again, reference, write_config
from tests.conftest import paragraph
from tests.trainers.launching import ROOT, environment

Injected = Callable[[str, str, Outcome, float], None]
GROUP = "Storage"
GOES_ON = "fix that and run the same command"
chaos = pytest.mark.chaos


@pytest.mark.long
def test_a_disk_that_gets_full(small: Small, injected: Injected, thorough: bool, tmp_path: Path) -> None:
    with disk(tmp_path / "whole", 1 << 26) as whole:
        assert small.build(whole / "out").status == 0
        needed = used(whole)
    struck = set()
    for share in range(4, 100, 8) if thorough else (45,):
        with disk(tmp_path / f"disk{share}", needed * share // 100 // 4096 * 4096) as full:
            out = full / "out"
            said = one_line(small.build(out), f"{out}.*: No space left on device", GOES_ON)
            struck.add(said.partition(":")[0])
            enlarge(full, 1 << 26)
            injected(GROUP, "disk of the output full (ENOSPC)", *small.finished(out))


@chaos
def test_a_limit_on_the_size_of_a_file(small: Small, injected: Injected, tmp_path: Path) -> None:
    """A limit on file size stands in for a full disk where the test may not mount one."""
    out = tmp_path / "out"
    one_line(small.build(out, file_bytes=4000), f"{out}.*: File too large", GOES_ON)
    injected(GROUP, "file of the output over a limit (EFBIG)", *small.finished(out))


def calls(small: Small, place: Path, kinds: int, out: Path) -> int:
    done = small.build(out, Fault(str(place), kinds, first=FOREVER))
    assert done.status == 0
    shutil.rmtree(out)
    return done.seen


def spread(count: int, most: int) -> list[int]:
    return sorted({1 + (count - 1) * n // max(1, most - 1) for n in range(most)}) if most > 1 else [count // 2]


WRITING = {"write": WRITE, "fsync": SYNC, "rename": RENAME, "open": OPEN_TO_WRITE}


@pytest.mark.long
@pytest.mark.parametrize("call", [*(pytest.param(call, marks=chaos) for call in WRITING if call != "fsync"), "fsync"])
def test_an_error_of_writing_that_passes(
    small: Small, injected: Injected, thorough: bool, tmp_path: Path, call: str
) -> None:
    """After one failed call the file is written again from the start, and nothing whose fsync failed is published."""
    out = tmp_path / "out"
    number = calls(small, out, WRITING[call], out) if thorough else 20
    for first in spread(number, 5) if thorough else (9,):
        done = small.build(out, Fault(str(out), WRITING[call], first=first, count=1))
        assert (done.status, done.fired, done.published_unsynced) == (0, 1, False), (first, done.errors)
        injected(GROUP, f"{call} fails once (EIO)", build_outcome(small.reference, out), done.seconds)
        shutil.rmtree(out)


@chaos
@pytest.mark.parametrize(("call", "error"), [*((call, errno.EIO) for call in WRITING), ("open", errno.EACCES)])
def test_an_error_of_writing_that_stays(
    small: Small, injected: Injected, tmp_path: Path, call: str, error: int
) -> None:
    out = tmp_path / "out"
    for first in spread(calls(small, out, WRITING[call], out) * 9 // 10, 3):
        ended = small.build(out, Fault(str(out), WRITING[call], error=error, first=first))
        # The first opening is a trial before anything is read.
        one_line(ended, f"{out}.*: {os.strerror(error)}", "choose another" if (call, first) == ("open", 1) else GOES_ON)
        what = "permission to write withdrawn (EACCES)" if error == errno.EACCES else f"{call} fails from then on (EIO)"
        assert not ended.published_unsynced
        injected(GROUP, what, *small.finished(out))
        shutil.rmtree(out)


@pytest.mark.long
@pytest.mark.parametrize("name", ["rows", *(pytest.param(name, marks=chaos) for name in ("lines", "arrow", "members"))])
def test_an_error_of_reading_a_source(
    small: Small, injected: Injected, thorough: bool, tmp_path: Path, name: str
) -> None:
    """A read error does not mean that the file is damaged, so nothing is set aside. Reads of mapped memory
    are not covered: if they fail, SIGBUS ends the process.
    """
    out, source = tmp_path / "out", small.raw / name
    number = calls(small, source, READ, out) if thorough else 12
    for first in spread(number, 4) if thorough else (number,):
        done = small.build(out, Fault(str(source), READ, first=first, count=1))
        assert (done.status, done.fired) == (0, 1), (first, done.errors)
        injected(GROUP, "reading a source fails once (EIO)", build_outcome(small.reference, out), done.seconds)
        shutil.rmtree(out)
    for first in spread(number, 2) if thorough else ():
        one_line(
            small.build(out, Fault(str(source), READ, first=first)), f"{source}/.*Input/output error", "same command"
        )
        injected(GROUP, "reading a source fails from then on (EIO)", *small.finished(out))
        shutil.rmtree(out)


@chaos
def test_an_error_of_reading_what_was_built(small: Small, injected: Injected, tmp_path: Path) -> None:
    out = tmp_path / "out"
    number = calls(small, out, READ, out)
    for first in spread(number * 9 // 10, 5):
        done = small.build(out, Fault(str(out), READ, first=first, count=1))
        assert (done.status, done.fired) == (0, 1), (first, done.errors)
        injected(GROUP, "reading the output fails once (EIO)", build_outcome(small.reference, out), done.seconds)
        shutil.rmtree(out)
    for first in spread(number * 9 // 10, 4):
        one_line(small.build(out, Fault(str(out), READ, first=first)), f"{out}/.*Input/output error", "same command")
        injected(GROUP, "reading the output fails from then on (EIO)", *small.finished(out))
        shutil.rmtree(out)


@chaos
def test_permission_that_is_withdrawn(small: Small, injected: Injected, tmp_path: Path) -> None:
    """The build runs as an unprivileged user, whose access to the output directory and to a source really can
    be withdrawn.
    """
    if os.geteuid() or not os.access(sys.base_prefix, os.X_OK):
        pytest.skip("another user is needed, and only root may become one")
    mine = LocalPath(tempfile.mkdtemp(dir="/var/tmp"))
    try:
        mine.chmod(0o777)
        out, raw = mine / "out", mine / "raw"
        shutil.copytree(small.raw, raw)
        config = write_config(mine / "small.yaml", str(raw))
        for path in (mine, *mine.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        theirs = replace(small, config=config, raw=raw)
        user = {"uid": NOBODY, "variables": {"HOME": str(mine), "NUMBA_CACHE_DIR": str(mine / "numba")}}
        if theirs.build(mine / "first", **user).status:
            pytest.skip("another user cannot read this installation")
        for held, kinds, first in ((out, WRITE, 20), (raw / "rows" / "rows.parquet", OPEN_TO_READ, 2)):
            fault = Fault(str(held), kinds, first=first, action="c", target=str(held))
            one_line(theirs.build(out, fault, **user), f"{held}.*Permission denied")
            held.chmod(0o755)
            injected(GROUP, "permission withdrawn (chmod)", *theirs.finished(out, **user))
            shutil.rmtree(out)
    finally:
        shutil.rmtree(mine)


@dataclass(frozen=True)
class Change:
    """A change to a source file; `size` is the size of the new content as a fraction of the old."""

    name: str
    action: str
    size: float = 1.0


CHANGES = (
    Change("is overwritten, size and times kept", "o"),
    Change("is replaced", "r", 0.7),
    Change("grows", "o", 1.5),
    Change("is cut off", "t"),
    Change("vanishes", "u"),
)


@chaos
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_a_source_that_changes(small: Small, injected: Injected, tmp_path: Path, change: Change) -> None:
    """A source changes after planning, or while it is read. If the file is restored, the next build gives the
    old corpus; otherwise it gives that of the new file.
    """
    raw = tmp_path / "raw"
    shutil.copytree(small.raw, raw)
    target, other, out = raw / "lines" / "1.jsonl", tmp_path / "other", tmp_path / "out"
    lines = [json.dumps({"text": paragraph(200 + number, 60)}) for number in range(5_000)]
    whole = ("\n".join(lines) + "\n").encode()
    size = 600 << 10
    first = whole[: size - 1] + b"\n"
    new = whole[-int(size * change.size) :]
    own = replace(small, config=write_config(tmp_path / "own.yaml", str(raw), part_bytes=1 << 20), raw=raw)
    target.write_bytes(first)
    own = replace(own, reference=reference(small.server, own.config, tmp_path / "reference"))
    # The first opening, and the first reads, are those of the inventory.
    before, amid = (OPEN_TO_READ, 2), (READ, 5)
    for kinds, number in (before, amid):
        target.write_bytes(first)
        other.write_bytes(new)
        fault = Fault(str(target), kinds, first=number, action=change.action, target=str(target), other=str(other),
                      number=size // 2)  # fmt: skip
        ended = own.build(out, fault)
        one_line(ended, r"1\.jsonl.* (changed while it was being read|cannot be read \(No such file)")
        assert ended.fired == 1
        what = f"a source {change.name}"
        if change.action != "u":  # as it is now
            done = own.build(out)
            assert done.status == 0, done.errors
            fresh = reference(small.server, own.config, tmp_path / "fresh")
            injected(GROUP, f"{what}, planned again", planned_again(fresh, out), done.seconds)
            shutil.rmtree(tmp_path / "fresh")
            shutil.rmtree(out)
            target.write_bytes(first)
            other.write_bytes(new)
            own.build(out, fault)
        target.write_bytes(first)
        outcome, seconds = own.finished(out)
        injected(GROUP, f"{what}, then put back", outcome, seconds)
        shutil.rmtree(out)


@chaos
def test_a_listing_that_changes(small: Small, injected: Injected, tmp_path: Path) -> None:
    """A file that appears after planning belongs to the next build."""
    raw, out, new = tmp_path / "raw", tmp_path / "out", tmp_path / "new.jsonl"
    shutil.copytree(small.raw, raw)
    new.write_text(json.dumps({"text": paragraph(300, 60)}) + "\n")
    own = replace(small, config=write_config(tmp_path / "own.yaml", str(raw)), raw=raw)
    fault = Fault(
        str(raw / "lines"), OPEN_TO_READ, first=4, action="r", target=str(raw / "lines" / "2.jsonl"), other=str(new)
    )
    done = own.build(out, fault)
    assert (done.status, done.fired) == (0, 1), done.errors
    injected(GROUP, "a file joins a source while it is read", build_outcome(own.reference, out), done.seconds)
    done = own.build(out)
    assert done.status == 0
    fresh = reference(small.server, own.config, tmp_path / "fresh")
    injected(GROUP, "the build after a file has joined", planned_again(fresh, out), done.seconds)


@pytest.mark.ray
@chaos
@pytest.mark.parametrize(("size", "goes_on"), [(1 << 18, True), (1 << 13, False)])
def test_rays_own_disk(small: Small, injected: Injected, tmp_path: Path, size: int, goes_on: bool) -> None:
    """Ray keeps running when its logs fill the disk. If there is no room for Ray to start, the error says so."""
    out = tmp_path / "out"
    build = [sys.executable, "-m", "pipelines", "build", small.config, "--workers", "1", f"output={out}"]
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as short,
        disk(LocalPath(short) / "ray", size) as full,
    ):  # sockets: 107 bytes
        began = time.perf_counter()
        variables = environment(RAY_TMPDIR=str(full))
        done = subprocess.run(build, capture_output=True, text=True, cwd=ROOT, env=variables, check=False)
        seconds = time.perf_counter() - began
    if goes_on:
        assert done.returncode == 0, done.stderr
        injected(GROUP, "temporary directory of Ray full (ENOSPC)", build_outcome(small.reference, out), seconds)
        return
    assert done.returncode == 2
    assert f"{full} is full" in done.stderr.splitlines()[-1]
    injected(GROUP, "no room for Ray to start (ENOSPC)", *small.finished(out))
