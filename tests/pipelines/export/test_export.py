"""Exports as Parquet and JSON lines, against the kept, edited text of the corpus that they come from."""

import gzip
import io
import json
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import pipelines.export.export_formats as formats
import pipelines.export.text_export as module
from gristmill.errors import AccountingError, ConflictError, CorruptFileError, UserError
from gristmill.storage.store import file_checksum, read_json
from pipelines.__main__ import main
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.columns import DROP
from pipelines.contracts.edits import EDITS, edits_column
from pipelines.contracts.lineage import open_corpus
from pipelines.contracts.manifest import load_corpus, save_corpus
from pipelines.contracts.reads import TEXT
from pipelines.contracts.stage import PartStage
from pipelines.export.exported_documents import EXPORT_SCHEMA
from pipelines.export.left_out import is_scalar
from pipelines.export.text_export import export_corpus
from pipelines.planning.corpus import CorpusConfig, StepConfig
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.reading.sources.source import Source
from pipelines.stages.decide.filter import Filter
from pipelines.stages.decide.rules import Rule
from pipelines.stages.measure.quality_signals import QualitySignals

EXACT = '{"big": 123456789012345678901234567890, "text": "exact\\u2028", "f": 1e-7, "s": "line\\u2028end\\n"}'


@dataclass(frozen=True)
class Mask(PartStage):
    def reads(self) -> tuple[str, ...]:
        return (TEXT,)

    def writes(self) -> pa.Schema:
        return pa.schema([("edits", EDITS)])

    def annotate(self, docs: pa.Table) -> pa.Table:
        places = [text.encode().find(b"secret") for text in docs["text"].to_pylist()]
        edits = [[(at, at + 6, "<S>", "SECRET")] if at >= 0 else [] for at in places]
        return pa.table([edits_column(edits)], schema=self.writes())


def record(number: int) -> dict[str, Any]:
    text = f"Zeile {number} ש \U0001f468\u200d\U0001f469 a secret\x0b\n" + "words " * (number % 50)
    return {"text": text, "url": ["spam", None, "u"][number % 3], "number": number, "tags": ["<b>", "\x1b"]}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("export")
    for name in ("web", "code", "none"):
        (root / name).mkdir()
    lines = [json.dumps(record(number)) for number in range(400)]
    (root / "web" / "w.jsonl").write_text("\n".join([*lines, EXACT, "not json"]), encoding="utf-8")
    (root / "code" / "a.py").write_text("secret = 1\n", encoding="utf-8")
    (root / "none" / "n.jsonl").write_text(json.dumps({"text": "nothing stays", "url": "spam"}), encoding="utf-8")
    sources = (
        Source("web", str(root / "web"), "jsonl", part_bytes=20_000, licence="CC0-1.0"),
        Source("code", str(root / "code"), "text"),
        Source("none", str(root / "none"), "jsonl"),
    )
    steps = (
        StepConfig("filter", Filter((Rule(signal="url", none_of=("spam",)),)), "filter"),
        StepConfig("mask", Mask(), "mask", ("web",)),
        StepConfig("quality_signals", QualitySignals(), "quality_signals", ("web",)),
    )
    config = CorpusConfig("exported", str(root / "out"), sources, steps)
    build(make_plan(config, take_inventory(sources, root / "out")), LocalCluster(), lambda line: None)
    return root / "out"


def kept(corpus: Path, source: str) -> list[tuple[str, str]]:
    opened, found = open_corpus(corpus), []
    for part in opened.parts(source):
        texts = part.table(("edited_text",))["edited_text"].to_pylist()
        rows = zip(opened.printed_ids(part), texts, part.drop().to_pylist(), strict=True)
        found += [(name, text) for name, text, drop in rows if drop is None]
    return found


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().split("\n")[:-1]]


def test_parquet_holds_the_kept_edited_text(corpus: Path, tmp_path: Path) -> None:
    files = export_corpus(corpus, tmp_path / "new" / "e", "parquet", None)
    assert [file.path for file in files] == ["data/00000-web.parquet", "data/00001-code.parquet"]
    table = pq.read_table(tmp_path / "new" / "e" / "data" / "00000-web.parquet", page_checksum_verification=True)
    assert table.schema.equals(EXPORT_SCHEMA)
    rows = table.to_pylist()
    assert [(row["id"], row["text"]) for row in rows] == kept(corpus, "web")
    assert len(rows) == 267
    assert rows[0]["id"] == "web/w.jsonl#1"
    assert rows[0]["text"] == "Zeile 1 ש \U0001f468\u200d\U0001f469 a <S>\n\nwords "
    assert (rows[0]["url"], rows[1]["url"], rows[0]["source"]) == (None, "u", "web")
    assert json.loads(rows[0]["meta"]) == {"number": 1, "tags": ["<b>", "\x1b"]}
    code = pq.read_table(tmp_path / "new" / "e" / "data" / "00001-code.parquet").to_pylist()
    assert [(row["id"], row["text"], row["meta"]) for row in code] == [("code/a.py#0", "secret = 1\n", "{}")]


def test_json_lines_hold_the_same(corpus: Path, tmp_path: Path) -> None:
    export_corpus(corpus, tmp_path, "jsonl", ["web"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "croissant.json", "data", "export.json"]
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["00000-web.jsonl.gz"]
    rows = lines_of(tmp_path / "data" / "00000-web.jsonl.gz")
    assert [(row["id"], row["text"]) for row in rows] == kept(corpus, "web")
    assert {tuple(row) for row in rows} == {("id", "text", "source", "url", "meta")}
    assert [row["url"] for row in rows[:2]] == [None, "u"]
    assert '"big":123456789012345678901234567890' in rows[-1]["meta"]
    assert json.loads(rows[-1]["meta"]) == {
        "big": 123456789012345678901234567890, "f": 1e-7, "s": "line\u2028end\n"
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_annotations_are_exported_with_the_text(corpus: Path, tmp_path: Path, kind: str) -> None:
    export_corpus(corpus, tmp_path, kind, None, ["word_count", "n_chars"])
    rows = {}
    for name in ("web", "code"):
        file = next(tmp_path.glob(f"data/*-{name}.*"))
        rows[name] = pq.read_table(file).to_pylist() if kind == "parquet" else lines_of(file)
    assert [(row["id"], row["text"]) for row in rows["web"]] == kept(corpus, "web")
    columns = [part.table((DROP, "word_count", "n_chars")).to_pylist() for part in open_corpus(corpus).parts("web")]
    expected = [(row["word_count"], row["n_chars"]) for table in columns for row in table if row[DROP] is None]
    assert [(row["word_count"], row["n_chars"]) for row in rows["web"]] == expected
    assert len(set(expected)) > 10
    assert rows["code"][0].get("word_count") is None


TIMES = {
    "nanoseconds": pa.array([1_500_000_001, None], pa.timestamp("ns")),
    "daily": pa.array([3600, 7205], pa.time32("s")),
    "price": pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
    "lasted": pa.array([90, 1], pa.duration("s")),
}


def test_values_that_json_lacks_are_text_in_json_lines() -> None:
    schema = pa.schema([(name, values.type) for name, values in TIMES.items()])
    sink = io.BytesIO()
    formats.write_jsonl(schema, sink, iter([pa.table(TIMES)]))
    rows = [json.loads(line) for line in gzip.decompress(sink.getvalue()).splitlines()]
    assert rows == [
        {"nanoseconds": "1970-01-01T00:00:01.500000", "daily": "01:00:00", "price": "1.50", "lasted": "0:01:30"},
        {"nanoseconds": None, "daily": "02:00:05", "price": None, "lasted": "0:00:01"},
    ]
    assert not any(is_scalar(kind) for kind in (pa.binary(), pa.large_binary(), pa.binary(4), pa.list_(pa.int8())))
    assert all(is_scalar(values.type) for values in TIMES.values())


def test_the_manifest_of_an_export(corpus: Path, tmp_path: Path) -> None:
    files = export_corpus(corpus, tmp_path, "parquet", None)
    manifest = read_json(tmp_path / "export.json")
    assert manifest["corpus"] == "exported"
    assert manifest["fingerprint"] == load_corpus(corpus).fingerprint
    for entry, file in zip(manifest["files"], files, strict=True):
        assert entry["xxh3_128"] == file_checksum(tmp_path / entry["path"]) == file.xxh3_128
        assert entry["bytes"] == (tmp_path / entry["path"]).stat().st_size
    web = manifest["sources"]["web"]
    assert web["documents"] == len(kept(corpus, "web"))
    assert web["text_bytes"] == sum(len(text.encode()) for _, text in kept(corpus, "web"))
    assert web["licence"] == "CC0-1.0"
    assert manifest["sources"]["none"]["documents"] == 0


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_the_same_corpus_gives_the_same_bytes(corpus: Path, tmp_path: Path, kind: str) -> None:
    first, second = (export_corpus(corpus, tmp_path / name, kind, None) for name in ("a", "b"))
    assert first == second
    assert (tmp_path / "a" / "export.json").read_bytes() == (tmp_path / "b" / "export.json").read_bytes()


def test_files_and_row_groups_are_bounded(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(formats.TEXT_FORMATS["parquet"], file_bytes=40_000)
    monkeypatch.setitem(formats.TEXT_FORMATS, "parquet", small)
    monkeypatch.setattr(formats, "_GROUP_BYTES", 1000)
    monkeypatch.setattr(formats, "_GROUP_ROWS", 7)
    files = export_corpus(corpus, tmp_path, "parquet", ["web"])
    assert len(files) > 1
    tables = []
    for file in files:
        reader = pq.ParquetFile(tmp_path / file.path)
        for number in range(reader.num_row_groups):
            tables.append(reader.read_row_group(number))
            size = pc.sum(pc.binary_length(tables[-1]["text"])).as_py()
            assert tables[-1].num_rows == 1 or (size <= 1000 and tables[-1].num_rows <= 7)
    rows = pa.concat_tables(tables).to_pylist()
    assert [(row["id"], row["text"]) for row in rows] == kept(corpus, "web")


def test_refusals(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "file").touch()
    for output, message in (
        (tmp_path / "full", "is not empty"),
        (tmp_path / "file", "is a file"),
        (corpus / "e", "inside"),
    ):
        with pytest.raises(ConflictError, match=message):
            export_corpus(corpus, output, "parquet", None)
    with pytest.raises(UserError, match="no source 'wbe'; did you mean 'web'"):
        export_corpus(corpus, tmp_path / "e", "parquet", ["wbe"])
    with pytest.raises(UserError, match="--sources: names no source"):
        export_corpus(corpus, tmp_path / "e", "parquet", [])
    for column in ("word_cuont", "drop", "edits", "text"):
        with pytest.raises(UserError, match=f"--columns: no step of this corpus writes a value '{column}'"):
            export_corpus(corpus, tmp_path / "e", "parquet", None, [column])
    with pytest.raises(UserError, match="--without: got 'text', expected some of url, meta"):
        export_corpus(corpus, tmp_path / "e", "parquet", None, without=["text"])
    with pytest.raises(UserError, match="--format: got 'csv', expected one of parquet, jsonl"):
        export_corpus(corpus, tmp_path / "e", "csv", None)
    assert not (tmp_path / "e").exists()


def copied(corpus: Path, to: Path) -> Path:
    for path in corpus.rglob("*"):
        if path.is_file():
            (to / path.relative_to(corpus)).parent.mkdir(parents=True, exist_ok=True)
            (to / path.relative_to(corpus)).write_bytes(path.read_bytes())
    return to


def test_a_count_that_does_not_add_up_leaves_no_manifest(corpus: Path, tmp_path: Path) -> None:
    changed = copied(corpus, tmp_path / "corpus")
    manifest = load_corpus(changed)
    [row for row in manifest.funnel if row["source"] == "web"][-1]["documents_out"] += 1
    save_corpus(changed, manifest, lambda: None)
    with pytest.raises(AccountingError, match=r"export of web: 267 documents were written, .* counts 268 kept"):
        export_corpus(changed, tmp_path / "e", "jsonl", None)
    assert not (tmp_path / "e" / "export.json").exists()


def test_a_flipped_bit_stops_the_export(corpus: Path, tmp_path: Path) -> None:
    changed = copied(corpus, tmp_path / "corpus")
    part = sorted(changed.glob("read.web-*/parts/*.arrow"))[-1]
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    with pytest.raises(CorruptFileError, match="its manifest recorded"):
        export_corpus(changed, tmp_path / "e", "jsonl", ["web"])
    assert sorted(path.name for path in (tmp_path / "e").rglob("*")) == ["data", "unfinished.json"]


def test_an_unfinished_export_is_restarted_only_by_the_same_command(corpus: Path, tmp_path: Path) -> None:
    export_corpus(corpus, tmp_path / "whole", "jsonl", ["code"])
    output = tmp_path / "e"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_total", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            export_corpus(corpus, output, "jsonl", ["code"])
    (output / "data" / ".00000-code.jsonl.gz.0.tmp").write_bytes(b"half")
    with pytest.raises(ConflictError, match="holds another export, unfinished; remove it"):
        export_corpus(corpus, output, "parquet", ["code"])
    export_corpus(corpus, output, "jsonl", ["code"])
    assert tree(output) == tree(tmp_path / "whole")


def test_the_command(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(corpus), str(tmp_path / "e"), "--format", "jsonl", "--sources", "code"]) == 0
    assert "1 documents in 1 files" in capsys.readouterr().out
    assert main(["export", str(corpus), str(tmp_path / "e")]) == 2
    assert "is not empty" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_url_and_meta_can_stay_out(corpus: Path, tmp_path: Path, kind: str) -> None:
    words = ["--format", kind, "--without", "url,meta", "--columns", "word_count"]
    assert main(["export", str(corpus), str(tmp_path / "e"), *words]) == 0
    for file in sorted((tmp_path / "e" / "data").iterdir()):
        rows = pq.read_table(file).to_pylist() if kind == "parquet" else lines_of(file)
        assert {tuple(row) for row in rows} == {("id", "text", "source", "word_count")}
    assert "url" not in (tmp_path / "e" / "README.md").read_text().partition("\n# ")[0]
