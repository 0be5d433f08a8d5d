"""A small corpus with sources of several formats, and builds of it under injected faults."""

import io
import json
import re
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from tests.chaos.harness.faults import Ended, Fault, Server
from tests.chaos.harness.outcome import Outcome, Reference, build_outcome, files_of, reference_of
from tests.conftest import paragraph


def write_sources(raw: Path) -> None:
    """Write 60 documents, two of which have a duplicate, as JSON lines, as Parquet and Arrow rows, and in
    archives.
    """
    texts = [paragraph(number, 60) for number in range(60)]
    texts[1], texts[21] = texts[0], texts[20]
    for name in ("lines", "rows", "arrow", "members"):
        (raw / name).mkdir(parents=True)
    for number in range(2):
        lines = [json.dumps({"text": text}) for text in texts[10 * number : 10 * number + 10]]
        (raw / "lines" / f"{number}.jsonl").write_text("\n".join([*lines, "not json"]) + "\n")
    pq.write_table(pa.table({"text": texts[20:32]}), raw / "rows" / "rows.parquet", row_group_size=4)
    table = pa.table({"text": texts[32:44]})
    with pa.OSFile(str(raw / "arrow" / "rows.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    with zipfile.ZipFile(raw / "members" / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number, text in enumerate(texts[44:52]):
            archive.writestr(f"{number}.txt", text)
    with tarfile.open(raw / "members" / "b.tar.gz", "w:gz") as archive:
        for number, text in enumerate(texts[52:]):
            member = tarfile.TarInfo(f"{number}.txt")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))


def write_config(path: Path, root: str, **more: Any) -> Path:
    formats = {"lines": "jsonl", "rows": "parquet", "arrow": "arrow", "members": "text"}
    sources = [
        {"name": name, "root": f"{root}/{name}", "format": kind, "licence": "CC0-1.0", "part_bytes": 6000} | more
        for name, kind in formats.items()
    ]
    steps: list[dict[str, Any]] = [
        {"text_hash": {}},
        {"dedup_exact": {}},
        {"learn_tokenizer": {"kind": "bytes"}},
        {"shards": {"tokenizer": "learn_tokenizer", "validation_share": 0.2}},
    ]
    path.write_text(yaml.safe_dump({"name": "small", "output": "unset", "sources": sources, "steps": steps}))
    return path


@dataclass(frozen=True)
class Small:
    """A corpus file, its sources, the server that builds it, and the undisturbed reference corpus."""

    server: Server
    config: Path
    raw: Path
    reference: Reference

    def build(self, out: Any, fault: Fault | None = None, **options: Any) -> Ended:
        return self.server.run(
            "pipelines", "build", self.config, "--in-process", f"output={out}", fault=fault, **options
        )

    def finished(self, out: Path, **options: Any) -> tuple[Outcome, float]:
        """Build again without a fault, and return the outcome and seconds.

        Assert that the build does not redo what was finished.
        """
        before = kept(out)
        done = self.build(out, **options)
        assert done.status == 0, done.errors
        assert before.items() <= kept(out).items(), "what was finished is done again"
        return build_outcome(self.reference, out), done.seconds


def reference(server: Server, config: Path, out: Path) -> Reference:
    done = server.run("pipelines", "build", config, "--in-process", f"output={out}")
    assert done.status == 0, done.errors
    return reference_of(out)


def planned_again(wanted: Reference, out: Path) -> Outcome:
    """Return `build_outcome`, ignoring steps that only an earlier plan reaches, which `pipelines gc` removes."""
    steps = {name.partition("/")[0] for name in wanted.files}
    files = {name: content for name, content in files_of(out).items() if name.partition("/")[0] in steps}
    return build_outcome(wanted, out)._replace(identical=files == wanted.files)


def kept(out: Path) -> dict[Path, tuple[int, int]]:
    """Return the inode and modification time of every file that the next build must not redo.

    These are the files of published steps, and those that the receipts of finished units name.
    """
    found = {path for step in out.glob("*/manifest.json") for path in step.parent.rglob("*") if path.is_file()}
    for receipt in out.glob("*/units/*.json"):
        step = receipt.parent.parent
        found.update(step / record["path"] for record in json.loads(receipt.read_text())["files"])
    gone = ("units", "work")  # of a step that is published then
    files = [p for p in found if p.exists() and p.suffix != ".tmp" and p.name != "run.json"]
    files = [p for p in files if p.relative_to(out).parts[1] not in gone]
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def one_line(ended: Ended, *words: str) -> str:
    """Assert that a command printed a single error line that matches all of `words`, and return the line."""
    assert ended.status == 2, (ended.status, ended.errors[-3000:], ended.out[-1000:])
    lines = ended.errors.strip().splitlines()
    assert len(lines) == 1, ended.errors
    assert lines[0].startswith("error: ")
    for word in words:
        assert re.search(word, lines[0]), (word, lines[0])
    return lines[0]
