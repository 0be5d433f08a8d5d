"""Two drivers in one directory. With leases one of them waits, unless the other is dead or suspended; without
leases both work. The result is the same.
"""

import os
import random
import shutil
import signal
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from gristmill.storage.disk import LocalPath
from gristmill.storage.lease import LEASE, lock
from gristmill.storage.parsing import parse_location
from pipelines.__main__ import main
from pipelines.building import publish
from pipelines.building.build import plan_and_build
from pipelines.cluster import local as cluster
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.lineage import open_corpus
from pipelines.contracts.manifest import load_corpus, load_step
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from tests.chaos.harness.drivers import GROUP, QUICK, Driver, dead_lease, end_all
from tests.chaos.harness.outcome import (
    Outcome,
    build_outcome,
    documents_of,
    files_of,
    reference_of,
)

pytestmark = [pytest.mark.timeout(3600), pytest.mark.faults]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Leave out charts and pauses between attempts, which would take most of the time of a small build."""
    monkeypatch.setattr(publish, "write_report", lambda *arguments: False)
    monkeypatch.setattr(cluster, "PAUSE_SECONDS", 0.01)


@pytest.fixture(autouse=True)
def ended():
    yield
    end_all()


def build(config, output):
    """Build in this process, without a lease."""
    loaded = load_corpus_config(config, [f"output={output}"])
    said = []
    plan_and_build(loaded, take_inventory(loaded.sources, loaded.place), LocalCluster(), said.append)
    return said


class Died(BaseException):
    """Raised in place of a kill."""


@contextmanager
def before_write(number, act):
    """Call `act` before the Nth atomic write in this context; yield the list of paths written."""
    write, paths = LocalPath.write_atomic, []

    def counting(path, content, check=None):
        paths.append(path)
        if len(paths) == number:
            act()
        write(path, content, check)

    LocalPath.write_atomic = counting
    try:
        yield paths
    finally:
        LocalPath.write_atomic = write


def die():
    raise Died


@pytest.fixture
def writes(corpus_file, tmp_path):
    with before_write(0, die) as paths:
        build(corpus_file, tmp_path / "undisturbed")
    return len(paths)


@pytest.fixture
def reference(writes, tmp_path):
    return reference_of(tmp_path / "undisturbed")


def test_another_build_comes_in_between_two_writes(corpus_file, tmp_path, reference, writes, thorough, injected):
    """The other build publishes every step, and removes the intermediate files of the first build."""
    for number in range(3, writes, 11) if thorough else (writes // 2,):
        output = tmp_path / f"at{number}"
        with before_write(number, lambda output=output: build(corpus_file, output)):
            started = time.perf_counter()
            said = build(corpus_file, output)
        seconds = time.perf_counter() - started
        outcome = build_outcome(reference, output)
        injected(GROUP, "another build publishes every step between two writes of this one", outcome, seconds)
        assert said[0].endswith("steps to build")
        shutil.rmtree(output)


@pytest.mark.chaos
def test_another_build_comes_in_and_is_killed(corpus_file, tmp_path, reference, writes, injected):
    chance = random.Random(3)
    for number in range(20):
        output = tmp_path / f"at{number}"
        at, last = chance.randrange(1, writes), chance.randrange(1, writes)

        def come_and_go(output=output, last=last):
            with before_write(last, die), suppress(Died):
                build(corpus_file, output)

        with before_write(at, come_and_go):
            started = time.perf_counter()
            build(corpus_file, output)
        seconds = time.perf_counter() - started
        fault = "another build begins between two writes of this one, and is killed between two of its own"
        injected(GROUP, fault, build_outcome(reference, output), seconds)
        shutil.rmtree(output)


class Meeting(NamedTuple):
    directory: Path
    config: Path

    @property
    def output(self):
        return self.directory / "met"

    def drive(self, name, *, on_ray=False, **options):
        arguments = ["build", self.config, *(["--workers", 2] if on_ray else ["--in-process"]), f"output={self.output}"]
        return Driver(self.directory, name, *arguments, **options)


@pytest.fixture
def meeting(corpus_file, tmp_path):
    return Meeting(tmp_path, corpus_file)


def test_a_build_waits_for_another_and_goes_on_when_it_is_killed(meeting, reference, injected):
    first = meeting.drive("first", hold=[99, meeting.directory / "hold"])
    first.until((meeting.directory / "hold.held").exists)
    second = meeting.drive("second")
    second.until_said(
        f"another process is building here (host {os.uname().nodename}, pid {first.process.pid}); waiting"
    )
    first.process.kill()
    started = time.perf_counter()
    first.process.wait()
    said = second.finish()
    seconds = time.perf_counter() - started
    assert "it is dead" in said
    assert " steps are already built" in said
    fault = "a build is killed while another waits for it"
    injected(GROUP, fault, build_outcome(reference, meeting.output), seconds)
    assert not (meeting.output / LEASE).exists()


@pytest.mark.chaos
@pytest.mark.parametrize("hours", [0, 7])
def test_two_builds_with_leases_do_the_work_once(meeting, reference, injected, hours):
    """One driver's clock is `hours` ahead, the other's `hours` behind."""
    hold = meeting.directory / "hold"
    first = meeting.drive("first", hold=[99, hold], hours=hours, host="elsewhere", lease=QUICK)
    first.until(Path(f"{hold}.held").exists)
    second = meeting.drive("second", hours=-hours, lease=QUICK)
    second.until_said("another process is building here (host elsewhere, pid")
    time.sleep(2 * QUICK["timeout"])  # the counter moves
    started = time.perf_counter()
    Path(f"{hold}.go").touch()
    first.finish()
    assert "nothing is recomputed" in second.finish()
    fault = "two builds at once, with leases" + (", whose clocks are 14 hours apart" if hours else "")
    injected(GROUP, fault, build_outcome(reference, meeting.output), time.perf_counter() - started)


@pytest.mark.chaos
@pytest.mark.parametrize("hours", [-7, 7])
def test_a_lease_of_a_dead_host_is_taken_over(meeting, reference, injected, hours):
    """The lease's modification time is `hours` ahead of this machine's clock. The lease is taken over because
    it no longer changes.
    """
    dead_lease(meeting.output, "building", hours)
    started = time.perf_counter()
    said = meeting.drive("second").finish()
    seconds = time.perf_counter() - started
    assert "another process is building here (host dead, pid" in said
    assert "not responding; continuing" in said
    fault = "a lease of a dead host, whose clock was seven hours ahead or behind"
    injected(GROUP, fault, build_outcome(reference, meeting.output), seconds)


@pytest.mark.chaos
def test_a_build_that_was_suspended_and_taken_over_goes_on(meeting, reference, injected):
    hold = meeting.directory / "hold"
    for number in (20, 70, 120, 170):
        file = Path(f"{hold}{number}")
        first = meeting.drive(f"first{number}", hold=[number, file], host="elsewhere", lease=QUICK)
        first.until(Path(f"{file}.held").exists)
        first.process.send_signal(signal.SIGSTOP)
        Path(f"{file}.go").touch()
        started = time.perf_counter()
        second = meeting.drive(f"second{number}", hold=[10, Path(f"{file}s")], lease=QUICK)
        second.until_said("not responding; continuing")
        second.until(Path(f"{file}s.held").exists)
        first.process.send_signal(signal.SIGCONT)
        first.until_said("another process took over")
        Path(f"{file}s.go").touch()
        first.finish()
        second.finish()
        fault = "a build is suspended, taken over, and goes on beside the other"
        injected(GROUP, fault, build_outcome(reference, meeting.output), time.perf_counter() - started)
        shutil.rmtree(meeting.output)


def race(meeting, **options):
    """Start two drivers without leases at the same instant; return the seconds taken and the output of both."""
    gate = meeting.directory / f"gate{len(list(meeting.directory.iterdir()))}"
    drivers = [meeting.drive(f"{gate.name}.{name}", gate=gate, lease=False, **options) for name in ("first", "second")]
    for driver in drivers:
        driver.until(Path(f"{gate}.{driver.process.pid}").exists)
    started = time.perf_counter()
    gate.touch()
    said = [driver.finish() for driver in drivers]
    return time.perf_counter() - started, said


@pytest.mark.chaos
def test_two_builds_without_leases_come_to_the_same(meeting, reference, injected):
    for _ in range(4):
        seconds, _ = race(meeting)
        injected(GROUP, "two builds at once, without leases", build_outcome(reference, meeting.output), seconds)
        shutil.rmtree(meeting.output)


def unrepeatable_outcome(reference, output):
    """Compare builds whose tokenizer comes out differently each time it is trained: there must be one
    tokenizer, used by all shards.
    """
    corpus = open_corpus(output)
    (tokenizer,) = [step for step in corpus.steps if step.label == "learn_tokenizer"]
    (file,) = load_step(output, tokenizer.directory.name).files
    used = load_corpus(output).shard_sets["shards"].tokenizer
    steps = [path.name.rpartition("-")[0] for path in output.iterdir() if path.is_dir()]
    whole = all(output.verify(shard.file).exists() for shard in load_corpus(output).shard_sets["shards"].shards)
    left = [path for path in output.rglob("*") if path.name in ("units", "work", LEASE)]
    same = used.path == f"{tokenizer.directory.name}/{file.path}" and used.xxh3_128 == file.xxh3_128
    documents = documents_of(output)
    lost, doubled = reference.documents - documents, documents - reference.documents
    return Outcome(lost.total(), doubled.total(), same and whole and not left and len(steps) == len(set(steps)))


@pytest.mark.chaos
@pytest.mark.ray
def test_a_build_on_ray_is_overtaken_by_one_that_is_not(meeting, reference, injected):
    first = meeting.drive("first", on_ray=True, lease=False)
    first.until_said("annotate: ")
    started = time.perf_counter()
    meeting.drive("second", lease=False).finish()
    first.finish()
    fault = "two builds at once, one on Ray, without leases"
    injected(GROUP, fault, build_outcome(reference, meeting.output), time.perf_counter() - started)


def unrepeatable(corpus_file, kind):
    config = yaml.safe_load(corpus_file.read_text())
    (entry,) = [step for step in config["steps"] if "learn_tokenizer" in step]
    entry["learn_tokenizer"] |= {"kind": kind, "vocab_size": 400}
    corpus_file.write_text(yaml.safe_dump(config))


def test_a_tokenizer_that_cannot_be_repeated_is_the_one_published_first(
    corpus_file, tmp_path, reference, thorough, injected
):
    """Another build runs just before a write of the tokenizer step."""
    unrepeatable(corpus_file, "wordpiece")
    with before_write(0, die) as paths:
        build(corpus_file, tmp_path / "counted")
    numbers = [number for number, path in enumerate(paths, 1) if "learn_tokenizer-" in str(path)]
    (manifest,) = [number for number in numbers if "manifest.json" in paths[number - 1].name]
    for number in numbers if thorough else (manifest,):
        output = tmp_path / f"at{number}"
        with before_write(number, lambda output=output: build(corpus_file, output)):
            started = time.perf_counter()
            build(corpus_file, output)
        seconds = time.perf_counter() - started
        fault = "another build publishes a tokenizer that cannot be repeated while this one trains its own"
        injected(GROUP, fault, unrepeatable_outcome(reference, output), seconds)
        shutil.rmtree(output)


@pytest.mark.chaos
@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_two_builds_of_a_tokenizer_that_cannot_be_repeated_use_one(meeting, reference, injected, kind):
    unrepeatable(meeting.config, kind)
    for _ in range(3):
        seconds, _ = race(meeting)
        fault = "two builds at once train a tokenizer that cannot be repeated, without leases"
        injected(GROUP, fault, unrepeatable_outcome(reference, meeting.output), seconds)
        before = files_of(meeting.output)
        assert "nothing is recomputed" in build(meeting.config, meeting.output)[0]
        assert files_of(meeting.output) == before
        shutil.rmtree(meeting.output)


@pytest.mark.chaos
@pytest.mark.parametrize("lease", [QUICK, False], ids=["with leases", "without leases"])
def test_two_builds_on_one_prefix_of_an_object_store(meeting, reference, injected, s3, lease, tmp_path):
    url = f"s3://bucket/{tmp_path.name}/out"
    remote = {"endpoint": s3.remote.endpoint, "allow_private": True}
    config = yaml.safe_load(meeting.config.read_text()) | {"remote": remote}
    meeting.config.write_text(yaml.safe_dump(config))
    arguments = ["build", meeting.config, "--in-process", f"output={url}"]
    gate = tmp_path / "gate"
    started = time.perf_counter()
    drivers = [Driver(tmp_path, name, *arguments, gate=gate, lease=lease) for name in ("first", "second")]
    for driver in drivers:
        driver.until(Path(f"{gate}.{driver.process.pid}").exists)
    gate.touch()
    said = [driver.finish() for driver in drivers]
    seconds = time.perf_counter() - started
    if lease:
        assert sum("nothing is recomputed" in each for each in said) == 1
    s3.store.get(url, str(tmp_path / "fetched"), recursive=True)
    fault = f"two builds at once on one prefix of an object store, {'with' if lease else 'without'} leases"
    injected(GROUP, fault, build_outcome(reference, tmp_path / "fetched"), seconds)
    assert not parse_location(f"{url}/{LEASE}", s3.remote).exists()


@pytest.fixture
def plain_file(corpus_file):
    steps = [{"learn_tokenizer": {"kind": "bytes"}}, {"shards": {"tokenizer": "learn_tokenizer"}}]
    corpus_file.write_text(yaml.safe_dump(yaml.safe_load(corpus_file.read_text()) | {"steps": steps}))
    return corpus_file


def test_a_source_that_changes_while_its_modification_time_stays_is_read_again(plain_file, tmp_path, injected):
    source = tmp_path / "raw" / "code" / "m3.py"
    build(plain_file, tmp_path / "out")
    before, kept = files_of(tmp_path / "out"), source.stat()
    source.write_bytes(source.read_bytes().replace(b"return x", b"return y"))
    os.utime(source, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    assert source.stat().st_size == kept.st_size
    started = time.perf_counter()
    build(plain_file, tmp_path / "out")
    seconds = time.perf_counter() - started
    build(plain_file, tmp_path / "anew")
    after = reference_of(tmp_path / "anew")
    found = {name: content for name, content in files_of(tmp_path / "out").items() if name in after.files}
    lost, doubled = after.documents - documents_of(tmp_path / "out"), documents_of(tmp_path / "out") - after.documents
    outcome = Outcome(lost.total(), doubled.total(), found == after.files != before)
    injected(GROUP, "a source changes while its size and modification time stay", outcome, seconds)


def test_what_removes_files_does_not_begin_beside_a_build(plain_file, tmp_path, capsys):
    build(plain_file, tmp_path / "out")
    before = files_of(tmp_path / "out")
    (tmp_path / "ids").write_text("web/0.jsonl#0\n")
    with lock(tmp_path / "out", "building", pytest.fail):
        for command in (
            ["gc", str(plain_file), "--delete"],
            ["forget", str(tmp_path / "out"), "--ids", str(tmp_path / "ids")],
        ):
            assert main(command) == 2
            assert f"error: {tmp_path}/out: another process is building here (host" in capsys.readouterr().err
        assert main(["gc", str(plain_file)]) == 0
    assert files_of(tmp_path / "out") == before
