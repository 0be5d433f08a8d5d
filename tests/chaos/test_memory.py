"""Tasks that need more memory than there is: the task ends with a reason, the build continues or says what to do, and no
document is set aside unless the user asks for it.
"""

import contextlib
import gzip
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.errors import BrokenTaskError
from gristmill.storage.store import read_json
from pipelines.cluster.ray import RayCluster
from pipelines.planning.poison import load_poison
from tests.chaos.harness.hunger import MB, Meal, eat
from tests.chaos.harness.outcome import Outcome, Reference, build_outcome, reference_of
from tests.conftest import paragraph

ROOT = Path(__file__).parents[2]
GROUP = "Memory"
CGROUP = Path("/sys/fs/cgroup/memory")
CONFIG = """\
name: hungry
output: {root}/unset
sources:
  - {{name: web, root: {root}/raw, format: {format}, part_bytes: {part_bytes}, licence: CC0-1.0}}
steps:
  - quality_signals: {{}}
  - filter: [{{rules: gopher_quality@massivetext}}]
  - text_hash: {{}}
  - dedup_exact: {{}}
  - learn_tokenizer: {{kind: bytes}}
  - shards: {{tokenizer: learn_tokenizer, validation_share: 0.2}}
"""
pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(sys.platform != "linux", reason="ceilings of memory are Linux's"),
]


class Ended(NamedTuple):
    status: int
    out: str
    errors: str
    seconds: float


def build(config: Path, output: Path, *options: Any, enter: Any = None) -> Ended:
    command = [sys.executable, "-m", "pipelines", "build", str(config), f"output={output}", *map(str, options)]
    started = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, preexec_fn=enter)
    return Ended(done.returncode, done.stdout, done.stderr, time.perf_counter() - started)


def finished(config: Path, output: Path, *options: Any, enter: Any = None) -> Ended:
    done = build(config, output, *options, enter=enter)
    assert done.status == 0, done.errors[-3000:]
    return done


def honest(count: int, first: int = 0) -> Iterator[str]:
    return (json.dumps({"text": paragraph(number)}) for number in range(first, first + count))


def write_corpus(root: Path, bad: str, honest_files: int = 2) -> Path:
    """Write a corpus file with one source; one of its parts holds the line `bad` between ordinary ones."""
    (root / "raw").mkdir(parents=True)
    for number in range(honest_files):
        (root / "raw" / f"{number}.jsonl").write_text("\n".join(honest(30, 100 * number)) + "\n")
    lines = [*honest(15, 1000), bad, *honest(15, 2000)]
    (root / "raw" / "bad.jsonl").write_text("\n".join(lines) + "\n")
    (root / "hungry.yaml").write_text(CONFIG.format(root=root, format="jsonl", part_bytes=len(bad) + 20_000))
    return root / "hungry.yaml"


def one_line(ended: Ended) -> str:
    assert ended.status == 2, ended.errors[-3000:]
    (line,) = ended.errors.strip().splitlines()
    assert line.startswith("error: ")
    return line


def words(size: int) -> str:
    """Return a document of one-letter words, for which the signals need some 30 bytes of memory per byte of text."""
    return json.dumps({"text": "a b " * (size // 4)})


def marks(size: int) -> str:
    return json.dumps({"text": "! ? " * (size // 4)})


@pytest.fixture(scope="module")
def hungry(tmp_path_factory: pytest.TempPathFactory, thorough: bool) -> tuple[Path, Reference, int, int]:
    """Return a corpus file, its undisturbed result, a memory limit too small for one document, and a
    sufficient limit.
    """
    root = tmp_path_factory.mktemp("hungry")
    size, small, large = (60_000_000, 1_000 * MB, 5_000 * MB) if thorough else (10_000_000, 300 * MB, 1_000 * MB)
    config = write_corpus(root, words(size))
    finished(config, root / "reference", "--in-process")
    return config, reference_of(root / "reference"), small, large


def test_a_document_too_large_for_the_ceiling_stops_the_build_and_is_not_set_aside(hungry, tmp_path, injected):
    config, reference, small, large = hungry
    line = one_line(build(config, tmp_path / "out", "--in-process", "--memory-per-worker", small))
    assert "quality_signals: document " in line
    assert "alone and repeatedly: it runs out of memory" in line
    assert "--memory-per-worker" in line
    assert "--quarantine-poison" in line
    assert not load_poison(tmp_path / "out")
    # The steps of the other parts are kept.
    done = sorted(path.name for path in (tmp_path / "out").glob("quality_signals.web-*/units/*.json"))
    assert len(done) >= 1
    again = finished(config, tmp_path / "out", "--in-process", "--memory-per-worker", large)
    injected(
        GROUP, "a document of one-letter words too large for a task's memory; then built with more of it",
        build_outcome(reference, tmp_path / "out"), again.seconds,
    )  # fmt: skip


@pytest.mark.chaos
@pytest.mark.ray
@pytest.mark.parametrize(("line", "size"), [(words, 12_000_000), (marks, 20_000_000)])
def test_a_task_that_runs_out_is_tried_with_more_in_the_place_of_others(line, size, tmp_path, injected):
    config = write_corpus(tmp_path, line(size), honest_files=6)
    finished(config, tmp_path / "reference", "--in-process")
    ended = finished(config, tmp_path / "out", "--workers", 2, "--memory-per-worker", 700 * MB)
    assert "ran out of memory with 700.0 MB" in ended.out
    assert "tried again after the others" in ended.out
    injected(
        GROUP, f"a document of {line.__name__} too large for a worker's memory; tried again with that of both",
        build_outcome(reference_of(tmp_path / "reference"), tmp_path / "out"), ended.seconds,
    )  # fmt: skip


@pytest.mark.chaos
@pytest.mark.ray
def test_a_document_that_takes_all_memory_is_set_aside_only_if_the_user_says_so(hungry, tmp_path, injected):
    config, reference, small, _ = hungry
    one_line(build(config, tmp_path / "out", "--workers", 1, "--memory-per-worker", small))
    assert not load_poison(tmp_path / "out")
    ended = finished(config, tmp_path / "out", "--workers", 1, "--memory-per-worker", small, "--quarantine-poison")
    ((step, documents),) = load_poison(tmp_path / "out").items()
    assert step == ("quality_signals", "web")
    assert len(documents) == 1
    assert read_json(tmp_path / "out" / "poison.json")["documents"][0]["reason"] == "memory"
    # All other documents are as they would be had nobody ever written that one.
    manifest = read_json(tmp_path / "out" / "manifest.json")
    assert manifest["sources"]["web"]["kept"] == 91
    found = reference_of(tmp_path / "out").documents
    kept = reference.documents
    outcome = Outcome((kept - found).total(), (found - kept).total(), found == kept)
    injected(
        GROUP, "the same document set aside with --quarantine-poison: all others are built", outcome, ended.seconds
    )


def write_gzip_bomb(raw: Path) -> None:
    with gzip.open(raw / "bomb.jsonl.gz", "wb", compresslevel=1) as sink:
        sink.write("\n".join([*honest(20), '{"text": "']).encode())
        for _ in range(500):
            sink.write(b"a" * MB)
        sink.write(b'"}\n' + "\n".join(honest(20, 100)).encode())


def write_parquet_page(raw: Path) -> None:
    texts = [*map(paragraph, range(20)), "a" * (300 * MB), *map(paragraph, range(20, 40))]
    table = pa.table({"text": texts})
    pq.write_table(table, raw / "page.parquet", compression="zstd", use_dictionary=False, row_group_size=10)


@pytest.mark.chaos
@pytest.mark.parametrize(("kind", "write"), [("jsonl", write_gzip_bomb), ("parquet", write_parquet_page)])
def test_what_decompresses_to_more_than_the_ceiling_is_read_below_it(kind, write, tmp_path, injected):
    (tmp_path / "raw").mkdir()
    write(tmp_path / "raw")
    (tmp_path / "hungry.yaml").write_text(CONFIG.format(root=tmp_path, format=kind, part_bytes=1 << 20))
    finished(tmp_path / "hungry.yaml", tmp_path / "reference", "--in-process")
    ended = finished(tmp_path / "hungry.yaml", tmp_path / "out", "--in-process", "--memory-per-worker", 450 * MB)
    injected(
        GROUP, f"{write.__name__.removeprefix('write_').replace('_', ' ')} larger than a task's memory: read below it",
        build_outcome(reference_of(tmp_path / "reference"), tmp_path / "out"), ended.seconds,
    )  # fmt: skip


@pytest.fixture
def group() -> Iterator[Path]:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line.split(":", 2)[2] for line in lines if line.split(":")[1] == "memory"), None)
    if own is None:
        pytest.skip("needs control groups of version 1")
    place = CGROUP / own.lstrip("/") / f"hungry-{os.getpid()}"
    try:
        place.mkdir()
        (place / "memory.limit_in_bytes").write_text(str(8_000 * MB))
    except OSError:
        pytest.skip("needs a control group of memory that it may write to")
    yield place
    for _ in range(100):  # processes leave a moment after they have ended
        with contextlib.suppress(OSError):
            place.rmdir()
            return
        time.sleep(0.1)


def kills(group: Path) -> int:
    return int((group / "memory.oom_control").read_text().rpartition("oom_kill ")[2])


def own_memory(pid: str) -> int:
    """Return the bytes of anonymous memory of a process that runs an annotation task; 0 for any other
    process.
    """
    with contextlib.suppress(OSError, StopIteration):
        if b"ray::annotate" in Path(f"/proc/{pid}/cmdline").read_bytes():
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) << 10
    return 0


def held(group: Path) -> int:
    """Return the bytes of a group's memory that the kernel cannot reclaim; cached files are not counted."""
    facts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return int(facts["total_rss"]) + int(facts["total_shmem"])


def take_away(group: Path, over: threading.Event, taken: list[float]) -> None:
    """Once a task of the group holds 300 MB, limit the group to little more than it holds until the kernel
    has killed one of its processes.
    """
    limited = False
    while not over.wait(0.02):
        if kills(group):
            taken.append(time.perf_counter())
            (group / "memory.limit_in_bytes").write_text(str(8_000 * MB))
            return
        if limited or all(own_memory(pid) < 300 * MB for pid in (group / "cgroup.procs").read_text().split()):
            continue
        for room in (20 * MB, 100 * MB, 300 * MB):
            with contextlib.suppress(OSError):  # it has grown by more than this in between
                (group / "memory.limit_in_bytes").write_text(str(held(group) + room))
                limited = True
                break


@pytest.mark.chaos
@pytest.mark.ray
def test_the_kernel_takes_a_worker_and_the_build_goes_on(group, tmp_path, injected):
    config = write_corpus(tmp_path, words(20_000_000))
    finished(config, tmp_path / "reference", "--in-process")
    over, taken = threading.Event(), []
    watcher = threading.Thread(target=take_away, args=(group, over, taken))
    watcher.start()
    try:
        ended = build(
            config,
            tmp_path / "out",
            "--workers",
            1,
            enter=lambda: (group / "cgroup.procs").write_text(str(os.getpid())),
        )
    finally:
        over.set()
        watcher.join()
    assert taken, "nothing was killed"
    assert ended.status == 0, ended.errors[-3000:]
    assert "lost its process" in ended.out
    assert not load_poison(tmp_path / "out")
    injected(
        GROUP, "a worker killed by the kernel's out-of-memory killer, in a control group that gets more memory then",
        build_outcome(reference_of(tmp_path / "reference"), tmp_path / "out"), time.perf_counter() - taken[0],
    )  # fmt: skip


@pytest.mark.ray
def test_broken_tasks_are_told_apart_and_the_others_go_on(tmp_path, thorough):
    said: list[str] = []
    cluster = RayCluster(2, memory=250 * MB, say=said.append)

    def ended(*meals: tuple[str, int]) -> Any:
        given = [Meal(how, size * MB, tmp_path) for how, size in meals]
        return dict(cluster.map(eat, given, lambda meal: f"eat {meal.how}"))

    try:
        assert ended(("bytes", 50), ("numpy", 350), ("arrow", 350), ("pieces", 10)) == {
            0: 50 * MB, 1: 350 * MB, 2: 350 * MB, 3: 10 * MB,
        }  # fmt: skip
        assert len(said) == 2
        assert all("ran out of memory with 250.0 MB" in line for line in said)
        too_much = [("pieces", "ran out of memory with 500.0 MB"), ("killed", "lost its process with 500.0 MB")]
        if thorough:
            too_much += [("rust", "lost its process with 500.0 MB"), ("abort", "lost its process with 500.0 MB")]
        for how, reason in too_much:
            with pytest.raises(BrokenTaskError, match=rf"^eat {how}: failed 3 times, the last time it {reason}"):
                ended((how, 800))
            assert len(list(tmp_path.glob(f"{how}-*"))) >= 3
    finally:
        cluster.close()


@pytest.mark.chaos
@pytest.mark.ray
def test_a_node_short_of_memory_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_memory_usage_threshold", "0.01")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "50")
    cluster = RayCluster(1)
    try:
        with pytest.raises(BrokenTaskError, match="its node ran out of memory"):
            list(cluster.map(eat, [Meal("sleep", 0, tmp_path)], lambda meal: f"eat {meal.how}"))
    finally:
        cluster.close()
