"""What all tests share: the hypothesis profile, the data outside the repository, and small corpora to build."""

import gc
import logging
import os
import shutil
import threading
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import settings

from gristmill.storage.disk import LocalPath

os.environ["RAY_AUTH_MODE"] = "disabled"  # else Ray writes a token under HOME
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# Ray starts its workers at niceness 15: beside other tests they get a thirtieth of a core, and run into timeouts.
os.environ.setdefault("RAY_worker_niceness", "0")
# As work that nobody waits for: a thread that is woken up does not interrupt the one that woke it. Gloo's threads would then
# spin for the lock that the other holds, a tenth of the processor time of tests with several workers.
if hasattr(os, "sched_setscheduler"):  # of Linux
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
# One thread per process, before any library starts its pool: models of tests are tiny, and threads that wait for one another
# take several times the processor time of one that computes. Processes that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# One cache of machine code for all processes, those with another home included.
_CACHES = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
os.environ.setdefault("NUMBA_CACHE_DIR", f"{_CACHES}/gristmill")
# Else a process that loads torch.compile, as DeepSpeed does, starts others that load torch; a fork of it waits for them for ever.
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

# Machines that run tests are shared and slow at times: a deadline would fail good code. Derandomised, a failure repeats.
settings.register_profile("gristmill", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("gristmill")


FASTTEXT_BEGIN = (793712314).to_bytes(4, "little")
"""The first bytes of a fastText model, for files that a plan must take for a model and that are never loaded."""


def train_fasttext(file: Path, kind: str = "supervised", **knobs):
    """Train a fastText model, supervised or unsupervised, on a file.

    With fewer than 11 threads, this fastText build leaves part of the matrix uninitialised. On a busy
    machine, the thread that reports the loss may run before any text has been processed; fastText then raises
    "Encountered NaN", and training is repeated.
    """
    import fasttext

    for _ in range(20):
        try:
            return getattr(fasttext, f"train_{kind}")(str(file), thread=11, verbose=0, **knobs)
        except RuntimeError as error:
            if "Encountered NaN" not in str(error):
                raise
    raise AssertionError("fastText trained on nothing, twenty times")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--chaos",
        metavar="FILE",
        type=Path,
        help="inject every fault, not a sample, and add a JSON line for each to FILE",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Put the tests' files in memory where there is room (up to about 1 GB at a time): creating and renaming
    them takes a seventh of the CPU time needed on disk. Chaos tests stay on disk, because their machines have
    a /dev/shm of their own.
    """
    memory = Path("/dev/shm")
    if "not chaos" in config.option.markexpr and memory.is_dir() and shutil.disk_usage(memory).free > 8e9:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))


# Files that take half a minute and longer, the longest first; those that often wait, for Ray, alternate with those that compute.
LONGEST = (
    *("test_launch.py", "test_zero.py", "test_ray_build.py", "test_execution.py", "test_jobs.py"),
    *("test_models_zero.py", "test_ray_own_stage.py", "test_adapters_zero.py", "test_memory.py", "test_kill.py"),
    *("test_study_kill.py", "test_commands.py", "test_corruption.py", "test_published_tokenizers.py"),
    "test_export_families.py",
)
# Folders whose tests compile most kernels where the cache is cold. Tests that start processes would each wait for that.
COMPILING = {"kernels", "objectives", "rows"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run test files that compile kernels first, then those in LONGEST, then those that start processes and
    wait for them.

    With several test processes, the short tests that remain keep the processors busy to the end.
    """
    begins_first = {item.path for item in items if any(map(item.get_closest_marker, ("ray", "deepspeed", "faults")))}

    def rank(item: pytest.Item) -> int:
        name = item.path.name
        if COMPILING & set(item.path.parts):
            return 0
        return 1 + (LONGEST.index(name) if name in LONGEST else len(LONGEST) + (item.path not in begins_first))

    items.sort(key=rank)


def pytest_make_parametrize_id(config, val, argname):
    """Keep bytes out of test names: compressed bytes may differ from one process to the next."""
    return argname if isinstance(val, bytes) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempt imported objects from garbage collection, which would otherwise take a twentieth of the suite's time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(50_000, 20, 50)  # what is imported later is not looked through every few thousand objects


@pytest.fixture(scope="session", autouse=True)
def _no_disk_flush() -> Iterator[None]:
    """Make `os.fsync` return at once in the test process: 26,000 flushes took a fifth of the time of the tests' builds.

    Tests of durability watch the calls, or simulate a loss of power in processes of their own.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def tmp_path_factory(tmp_path_factory: pytest.TempPathFactory) -> pytest.TempPathFactory:
    """Return pytest's own factory with a Location as its base, so that `tmp_path` can be passed to code that
    reads or writes corpora and runs.
    """
    tmp_path_factory._basetemp = LocalPath(tmp_path_factory.getbasetemp())
    return tmp_path_factory


@pytest.fixture(scope="session")
def shared_data() -> LocalPath:
    """Real data outside the repository, in $GRISTMILL_DATA; tests that need it are skipped where the variable is not set."""
    directory = os.environ.get("GRISTMILL_DATA")
    if not directory:
        pytest.skip("set GRISTMILL_DATA to the directory of the development data to run this test")
    return LocalPath(directory)


BUILDINGS = ["harbour", "mill", "orchard", "station", "library", "bridge", "market", "garden", "tower", "school"]
VERBS = ["stands", "burned", "opened", "moved", "grew", "failed", "slept", "shone", "waited", "turned"]


def paragraph(seed: int, words: int = 90) -> str:
    """Return English-like text of `words` words, different for every seed. With 50 words or more it passes
    the Gopher quality rules.
    """
    state, found = seed * 2654435761 + 1, []
    while len(found) < words:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        building, verb = BUILDINGS[state >> 33 & 7], VERBS[state >> 43 & 7]
        found.extend(
            [
                "The",
                f"{building}{state >> 50}",
                verb,
                "with",
                "the",
                f"{BUILDINGS[state >> 23 & 7]}",
                "and",
                "that",
                "of",
                f"{state >> 45}s.",
            ]
        )
    return " ".join(found[:words])


def write_sources(raw: Path, documents: int = 40, files: int = 2, modules: int = 12) -> Path:
    """Write two sources with realistic flaws below `raw`: `web` (JSON lines with copies, near-copies, short
    texts and an e-mail address) and `code` (files). The flaws of `web` repeat every 40 documents.
    """
    import json

    web = raw / "web"
    web.mkdir(parents=True)
    texts = [paragraph(i) for i in range(documents)]
    for i in range(0, documents, 40):
        texts[i + 5] = texts[i + 4]
        texts[i + 7] = texts[i + 6].replace("stands", "stood", 1) + " The end."
        texts[i + 9] = "too short"
        texts[i + 10] += " Write to jane.roe@example.org about it."
    for number in range(files):
        lines = [
            json.dumps({"text": text, "url": f"https://site{i % 5}.example/{i}"})
            for i, text in enumerate(texts)
            if i % files == number
        ]
        (web / f"{number}.jsonl").write_text("\n".join([*lines, "not json"]) + "\n")
    code = raw / "code"
    code.mkdir()
    for number in range(modules):
        (code / f"m{number}.py").write_text(
            f"def f{number}(x):\n    return x + {number}  # {paragraph(documents + 60 + number, 30)}\n"
        )
    (code / "empty.py").write_bytes(b"")
    return raw


def write_corpus_file(path: Path, raw: Path, output: Path) -> Path:
    """Write a corpus YAML that filters, deduplicates and shards the sources of `write_sources`."""
    path.write_text(f"""\
name: small
output: {output}
sources:
  - {{name: web, root: {raw}/web, format: jsonl, part_bytes: 16000, licence: CC0-1.0}}
  - {{name: code, root: {raw}/code, format: text, part_bytes: 4000, tokenizer_share: 0.5}}
steps:
  - quality_signals: {{}}
    sources: [web]
  - filter: [{{rules: gopher_quality@massivetext}}]
    sources: [web]
  - text_hash: {{}}
  - dedup_exact: {{}}
  - minhash_signatures: {{}}
  - dedup_minhash: {{}}
  - learn_tokenizer: {{vocab_size: 600, sample_bytes: 20000}}
  - shards: {{tokenizer: learn_tokenizer, validation_share: 0.2}}
""")
    return path


def write_texts_corpus(folder: Path, texts: list[str], steps: Iterable[str], name: str, more: str = "") -> Path:
    """Write these texts as JSON lines, and a corpus YAML whose only source, `web`, reads them and whose
    output is folder/name.

    `more` is appended to the source's fields.
    """
    import json

    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    path = folder / f"{name}.yaml"
    source = f"  - {{name: web, root: {folder}/texts.jsonl, format: jsonl{more}}}\n"
    listed = "".join(f"  - {step}\n" for step in steps)
    path.write_text(f"name: c\noutput: {folder}/{name}\nsources:\n{source}steps:\n{listed}")
    return path


@pytest.fixture
def raw_text(tmp_path: Path) -> Path:
    return write_sources(tmp_path / "raw")


@pytest.fixture
def corpus_file(tmp_path: Path, raw_text: Path) -> Path:
    """The corpus YAML of `write_corpus_file` for `raw_text`; its output is tmp_path/out."""
    return write_corpus_file(tmp_path / "small.yaml", raw_text, tmp_path / "out")


@pytest.fixture(scope="session")
def small_output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a build of `corpus_file`, without a report. Tests must not change it; `built_corpus_file`
    copies it.
    """
    from pipelines.building.build import build
    from pipelines.cluster.local import LocalCluster
    from pipelines.planning.corpus import load_corpus_config
    from pipelines.planning.inventory import take_inventory
    from pipelines.planning.plan import make_plan

    root = tmp_path_factory.mktemp("small_output")
    config = load_corpus_config(write_corpus_file(root / "small.yaml", write_sources(root / "raw"), root / "out"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.building.publish.write_report", lambda *arguments: False)
        build(make_plan(config, take_inventory(config.sources, root / "out")), LocalCluster(), lambda line: None)
    return root / "out"


@pytest.fixture
def built_corpus_file(corpus_file: Path, small_output: Path) -> Path:
    """`corpus_file` with its output already built. A corpus can be moved, so one build serves all tests."""
    shutil.copytree(small_output, corpus_file.parent / "out")
    return corpus_file


class S3(NamedTuple):
    """An S3 server: `remote` is its configuration, `store` a file system for a test's own files."""

    remote: Any
    store: Any


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """An S3 server on loopback with one bucket, named `bucket`. Each test uses its own prefix."""
    server = pytest.importorskip("moto.server", reason="the S3 server of the tests comes with the extra `dev`")
    from moto.s3.responses import S3Response

    from gristmill.storage.remote import Remote, _store

    lock, put_object = threading.Lock(), S3Response.put_object

    def put_alone(response: Any) -> Any:
        with lock:
            return put_object(response)

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    service = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    service.start()
    host, port = service.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        # moto checks the condition of a write, and then stores the object; S3 does both in one step.
        patch.setattr(S3Response, "put_object", put_alone)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        remote = Remote(endpoint=f"http://{host}:{port}", allow_private=True)
        store = _store("s3", remote)
        store.mkdir("bucket")
        yield S3(remote, store)
    service.stop()


@pytest.fixture(scope="session")
def process_group():
    """Yield the environment variables of the process group for training in this process. There is one group
    per session, because DeepSpeed keeps the first.
    """
    variables = {}
    yield variables
    import torch

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.fixture
def alone(process_group):
    """Set the environment for training in this process as one worker, and restore it afterwards."""
    before = dict(os.environ)
    os.environ.update(process_group)
    yield
    process_group.update({name: value for name, value in os.environ.items() if name not in before})
    os.environ.clear()
    os.environ.update(before)
