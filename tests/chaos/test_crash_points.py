"""A command that crashes at any operation that changes the disk or an object store finishes when it is run
again.

A crash is the death of the process, sometimes with a file half written, or a loss of power that keeps only
what was fsynced. The operations are found by watching a command; see `tests.chaos.harness.crashing`.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pipelines.contracts.manifest import load_corpus
from tests.chaos.harness.crash_server import server
from tests.chaos.harness.crash_sweep import Case, Injected, Pool, nothing, same_as
from tests.chaos.harness.outcome import Outcome, build_outcome, files_of, reference_of
from tests.conftest import S3, paragraph

pytestmark = [pytest.mark.timeout(3600), pytest.mark.faults]
MOST = 12  # injections for a row of the table; losses of power are fewer rows, and have four times as many

CORPUS = """\
name: crashing
output: {root}/out
sources:
  - {{name: web, root: {root}/raw/web, format: jsonl, part_bytes: 9000}}
  - {{name: code, root: {root}/raw/code, format: text}}
steps:
  - quality_signals: {{}}
    sources: [web]
  - text_hash: {{}}
  - url_rules: {{}}
    sources: [web]
  - pii: {{entities: [EMAIL_ADDRESS]}}
    sources: [web]
  - decontaminate: {{sets: [{{name: exam, file: {root}/exam.jsonl, prompts: [q], answers: [a]}}]}}
  - filter: [{{rules: gopher_quality@massivetext}}]
    sources: [web]
  - dedup_url: {{}}
    sources: [web]
  - dedup_exact: {{}}
  - minhash_signatures: {{}}
  - dedup_minhash: {{}}
  - dedup_spans: {{unit: line, min_left_words: 5}}
    sources: [web]
  - learn_tokenizer: {{vocab_size: 600, sample_bytes: 20000}}
  - shards: {{tokenizer: learn_tokenizer, validation_share: 0.2}}
"""

# What a reader of the table calls a file, by its path below what is watched: the first that matches.
OF_A_CORPUS = (
    (r"\.lease", "lease"),
    (r"[^/]*", "manifest, report or list of the corpus"),
    (r"[^/]+/manifest\.json", "manifest of a step"),
    (r"[^/]+/run\.json", "times of a step"),
    (r"[^/]+/units/.+", "receipt of a unit"),
    (r"[^/]+/work/.+", "intermediate file"),
    (r"[^/]+/parts/.+", "documents or annotations of a part"),
    (r".+", "shard, tokenizer or index"),
)
OF_A_STORE = (*((rf"[^/]+/out/{pattern}", name) for pattern, name in OF_A_CORPUS), (r"", "removal of several"))
OF_AN_EXPORT = ((r"export\.json", "list"), (r".*", "file"))


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("crash")
    for name in ("web", "code"):
        (root / "raw" / name).mkdir(parents=True)
    texts = [paragraph(number) for number in range(24)]
    texts[5] = texts[4]
    texts[7] = texts[6].replace("stands", "stood", 1) + " The end."
    texts[9] = "too short"
    texts[10] += " Write to jane.roe@example.org about it."
    texts[11] += "\n" + texts[12]
    for number in range(2):
        rows = [{"text": text, "url": f"https://site.example/{i}"} for i, text in enumerate(texts) if i % 2 == number]
        lines = [json.dumps(row) for row in rows]
        (root / "raw" / "web" / f"{number}.jsonl").write_text("\n".join([*lines, "not json", ""]))
    for number in range(4):
        (root / "raw" / "code" / f"m{number}.py").write_text(f"# {paragraph(100 + number, 30)}\n")
    (root / "exam.jsonl").write_text(json.dumps({"q": texts[13][:200], "a": "no"}) + "\n")
    (root / "corpus.yaml").write_text(CORPUS.format(root=root))
    return root


def build(raw: Path, out: Path | str, *words: str) -> list[Any]:
    return ["pipelines", "build", raw / "corpus.yaml", "--in-process", f"output={out}", *words]


@pytest.fixture(scope="module")
def pool(raw: Path, thorough: bool) -> Iterator[Pool]:
    """Yield warm servers, and leave the undisturbed corpus that warming them has built in `raw/whole`."""
    with ExitStack() as stack:
        servers = [stack.enter_context(server(raw)) for _ in range(2 if thorough else 1)]
        for number, each in enumerate(servers):
            each.warm(build(raw, raw / f"whole{number or ''}"))
        yield Pool(servers)


def test_a_build(raw: Path, pool: Pool, injected: Injected, thorough: bool, tmp_path: Path) -> None:
    wanted = reference_of(raw / "whole")
    case = Case(
        "build",
        OF_A_CORPUS,
        lambda out: build(raw, out),
        nothing,
        lambda out: build_outcome(wanted, out),
        detail="operations",
        most=6,
    )
    pool.sweep(case, tmp_path / "out", injected, None if thorough else 4)


def published(out: Path) -> dict[str, bytes]:
    """Return the files of a corpus, without those of steps that its plan no longer reaches."""
    steps = {step["directory"] for step in load_corpus(out).steps}
    return {name: data for name, data in files_of(out).items() if "/" not in name or name.partition("/")[0] in steps}


@pytest.mark.chaos
def test_a_build_that_sets_poison_aside(raw: Path, pool: Pool, injected: Injected, tmp_path: Path) -> None:
    (raw / "poison").mkdir()
    for name in ("a.py", "poison.py"):
        (raw / "poison" / name).write_text(f"# {paragraph(200 + len(name), 30)}\n")
    (raw / "poison" / "z.py").write_text("# a line that is poison to a stage\n")
    words = ["--quarantine-poison", f"sources.code.root={raw}/poison", "sources.code.part_bytes=1"]
    done = pool.all[0].run(build(raw, tmp_path / "whole", *words), tmp_path)
    assert "set aside" in done.said
    wanted = published(tmp_path / "whole")

    def outcome(out: Path) -> Outcome:
        counted = build_outcome(reference_of(tmp_path / "whole"), out)
        return counted._replace(identical=published(out) == wanted)

    case = Case("build that sets poison aside", OF_A_CORPUS, lambda out: build(raw, out, *words), nothing, outcome)
    pool.sweep(case, tmp_path / "out", injected)


def test_an_export(raw: Path, pool: Pool, injected: Injected, thorough: bool, tmp_path: Path) -> None:
    def command(out: Path) -> list[Any]:
        return ["pipelines", "export", raw / "whole", out, "--format", "jsonl"]

    pool.all[0].run(command(tmp_path / "whole"), tmp_path)
    case = Case("export", OF_AN_EXPORT, command, nothing, same_as(tmp_path / "whole"), done="is not empty")
    pool.sweep(case, tmp_path / "out", injected, None if thorough else 2)


def test_forgetting(raw: Path, pool: Pool, injected: Injected, thorough: bool, tmp_path: Path) -> None:
    (raw / "ids").write_text("web/0.jsonl#5\nweb/1.jsonl#4\ncode/m1.py#0\n")

    def command(out: Path) -> list[Any]:
        return ["pipelines", "forget", out, "--ids", raw / "ids"]

    def begin(out: Path) -> None:
        shutil.copytree(raw / "whole", out)

    begin(tmp_path / "whole")
    done = pool.all[0].run(command(tmp_path / "whole"), tmp_path)
    assert "nothing is left of them" in done.said
    case = Case(
        "forget",
        OF_A_CORPUS,
        command,
        begin,
        same_as(tmp_path / "whole"),
        done="none of these documents is in the corpus",
    )
    pool.sweep(case, tmp_path / "out", injected, None if thorough else 3)


def test_removing_garbage(raw: Path, pool: Pool, injected: Injected, thorough: bool, tmp_path: Path) -> None:
    done = pool.all[0].run(build(raw, tmp_path / "two", "steps.dedup_url={keep_up_to: 2}"), tmp_path)
    assert done.status == 0, done.said
    assert pool.all[0].run(build(raw, tmp_path / "two"), tmp_path).status == 0

    def begin(out: Path) -> None:
        """Copy a corpus that still holds steps of an earlier configuration, and write its corpus file next to
        it.
        """
        shutil.copytree(tmp_path / "two", out)
        text = (raw / "corpus.yaml").read_text()
        out.with_name(f"{out.name}.yaml").write_text(text.replace(f"{raw}/out", str(out)))

    def command(out: Path) -> list[Any]:
        return ["pipelines", "gc", out.with_name(f"{out.name}.yaml"), "--delete", "--keep", "0"]

    begin(tmp_path / "whole")
    assert "removed" in pool.all[0].run(command(tmp_path / "whole"), tmp_path).said
    case = Case("gc", OF_A_CORPUS, command, begin, same_as(tmp_path / "whole"))
    pool.sweep(case, tmp_path / "out", injected, None if thorough else 2)


@pytest.mark.chaos
def test_a_build_on_an_object_store(raw: Path, pool: Pool, injected: Injected, tmp_path: Path, s3: S3) -> None:
    tokenizer = "{learn_tokenizer: {vocab_size: 600, sample_bytes: 20000}}, {shards: {tokenizer: learn_tokenizer}}"
    steps = f"steps=[{{text_hash: {{}}}}, {{dedup_exact: {{}}}}, {tokenizer}]"
    remote = f"remote={{endpoint: {s3.remote.endpoint!r}, allow_private: true}}"
    done = pool.all[0].run(build(raw, tmp_path / "whole", steps), tmp_path)
    assert done.status == 0, done.said
    wanted = reference_of(tmp_path / "whole")

    def url(out: Path) -> str:
        return f"s3://bucket/{tmp_path.name}/{out.name}"

    def outcome(out: Path) -> Outcome:
        s3.store.get(url(out), str(out), recursive=True)
        s3.store.rm(url(out), recursive=True)
        return build_outcome(wanted, out)

    def command(out: Path) -> list[Any]:
        return build(raw, url(out), steps, remote)

    case = Case("build on an object store", OF_A_STORE, command, nothing, outcome, bucket="bucket")
    pool.sweep(case, tmp_path / "out", injected)
