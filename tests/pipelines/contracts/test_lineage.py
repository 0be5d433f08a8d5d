"""Documents of a published corpus are found by printed id and by hexadecimal id: kept, dropped, quarantined,
and in shards.
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from gristmill.errors import CorruptFileError, UserError
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.document import document_id, file_key, format_id
from pipelines.contracts.lineage import Corpus, Located, Quarantined, open_corpus, select_rows
from pipelines.contracts.shard_set import open_shard
from pipelines.planning.corpus import CorpusConfig, StepConfig
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.reading.sources.source import Source
from pipelines.stages.decide.filter import Filter
from pipelines.stages.decide.rules import Rule
from pipelines.stages.materialise.learn_tokenizer import LearnTokenizer
from pipelines.stages.materialise.shards import Shards

# What is read, by (source, path, record); None is quarantined. Filter drops what has the URL `spam`.
WEB = [f"Record {i} of the web, about {'lighthouses and harbours ' * (i % 7)}." for i in range(60)]


def write_sources(root: Path) -> None:
    lines = [json.dumps({"text": text, "url": "spam" if i % 10 == 3 else f"u{i}"}) for i, text in enumerate(WEB)]
    lines[5] = "no json"
    lines[6] = json.dumps({"text": ""})
    (root / "web" / "a").mkdir(parents=True)
    (root / "web" / "a" / "one#two.jsonl").write_text("\n".join(lines[:40]), encoding="utf-8")
    (root / "web" / "z.jsonl.gz").write_bytes(gzip.compress("\n".join(lines[40:]).encode()))
    (root / "web" / "bad.jsonl").write_text("neither\nof these\n", encoding="utf-8")
    (root / "code").mkdir()
    for i in range(5):
        (root / "code" / f"f{i}.py").write_text(f"print({i})\n" * 20, encoding="utf-8")
    (root / "code" / "empty.py").write_text("", encoding="utf-8")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    root = tmp_path_factory.mktemp("lineage")
    write_sources(root)
    sources = (
        Source("web", str(root / "web"), "jsonl", part_bytes=2000),
        Source("code", str(root / "code"), "text", part_bytes=500),
    )
    steps = (
        StepConfig("filter", Filter((Rule(signal="url", none_of=("spam",), name="spam"),)), "filter", ("web",)),
        StepConfig("learn_tokenizer", LearnTokenizer(vocab_size=400, sample_bytes=20_000), "learn_tokenizer"),
        StepConfig(
            "shards",
            Shards(tokenizer="learn_tokenizer", split_by="content", validation_share=0.3, shard_bytes=1500),
            "shards",
        ),
    )
    config = CorpusConfig("small", str(root / "out"), sources, steps)
    build(make_plan(config, take_inventory(sources, root / "out")), LocalCluster(), lambda line: None)
    return open_corpus(root / "out")


def web_origin(record: int) -> tuple[str, int]:
    return ("a/one#two.jsonl", record) if record < 40 else ("z.jsonl.gz", record - 40)


def test_every_record_of_the_input_is_found(corpus: Corpus) -> None:
    assert len({part.index for part in corpus.parts("web")}) > 2
    for record, text in enumerate(WEB):
        path, number = web_origin(record)
        printed = format_id("web", path, number)
        found = corpus.find(printed)
        assert (found.printed, found.id) == (printed, document_id(file_key("web", path), number))
        assert corpus.find(found.id.hex()).printed == printed == corpus.printed_id(found.id)
        if record in (5, 6):
            assert isinstance(found, Quarantined)
            assert found.reason == ("not_json" if record == 5 else "empty")
        else:
            assert isinstance(found, Located)
            row = select_rows(found.part, [found.row]).table(("id", "text", "drop", "url")).to_pylist()
            drop = "spam" if record % 10 == 3 else None
            assert row == [{"id": found.id, "text": text, "drop": drop, "url": "spam" if drop else f"u{record}"}]


def test_selected_rows_have_only_the_columns_asked_for(corpus: Corpus) -> None:
    whole = next(corpus.parts("web"))
    part = select_rows(whole, [2, 0], {"text", "drop"})
    assert part.loaded is not None
    assert part.loaded.column_names == ["text"]
    assert {name for annotation in part.annotations for name in annotation.schema} == {"drop"}
    assert len(part.annotations) == len(whole.annotations)
    assert part.table(("text", "drop")) == select_rows(whole, [2, 0]).table(("text", "drop"))
    assert select_rows(part, [1]).table(("text",)) == whole.table(("text",)).slice(0, 1)


def test_parts_hold_every_document_once_with_its_printed_id(corpus: Corpus) -> None:
    printed = [name for part in corpus.parts() for name in corpus.printed_ids(part)]
    expected = [format_id("web", *web_origin(i)) for i in range(60) if i not in (5, 6)]
    assert sorted(printed) == sorted([*expected, *(format_id("code", f"f{i}.py", 0) for i in range(5))])
    assert {part.source for part in corpus.parts("code")} == {"code"}


def test_annotations_come_with_their_types_where_no_step_wrote_them(corpus: Corpus) -> None:
    dropped = {part.source: part.drop() for part in corpus.parts()}
    assert dropped["code"].type == pa.string()
    assert all(part.order == ("filter", "learn_tokenizer", "shards") for part in corpus.parts())
    assert sum(pc.count(part.drop()).as_py() for part in corpus.parts()) == 6


def test_quarantined_records_are_listed_with_reasons(corpus: Corpus) -> None:
    found = {(record.path, record.record): record.reason for record in corpus.quarantined("web")}
    assert found == {
        ("a/one#two.jsonl", 5): "not_json",
        ("a/one#two.jsonl", 6): "empty",
        ("bad.jsonl", 0): "not_json",
        ("bad.jsonl", 1): "not_json",
    }
    assert [record.printed for record in corpus.quarantined("code")] == ["code/empty.py#0"]
    assert isinstance(corpus.find("web/bad.jsonl#1"), Quarantined)


def documents_of_shards(corpus: Corpus) -> Iterator[tuple[bytes, str, str, int, int]]:
    for shard in corpus.manifest.shard_sets["shards"].shards:
        opened = open_shard(corpus.directory, shard.file)
        for row, identifier in enumerate(opened.doc_ids.to_pylist()):
            tokens = opened.offsets[row + 1] - opened.offsets[row]
            yield identifier, shard.split, shard.path, row, int(tokens)


@pytest.mark.long
def test_shard_rows_are_found_among_many_shards(corpus: Corpus) -> None:
    expected = {entry[0]: entry[1:] for entry in documents_of_shards(corpus)}
    assert len({path for _, path, _, _ in expected.values()}) > 4
    for part in corpus.parts():
        for identifier, drop in zip(part.table(("id",))["id"].to_pylist(), part.drop().to_pylist(), strict=True):
            rows = [(row.split, row.path, row.row, row.tokens) for row in corpus.shard_rows(identifier)]
            assert rows == ([] if drop else [expected[identifier]])
    assert corpus.shard_rows(corpus.find("web/bad.jsonl#0").id) == []


@pytest.mark.parametrize(
    ("identifier", "message"),
    [
        ("wbe/z.jsonl.gz#0", "no source 'wbe'; did you mean 'web'"),
        ("web/z.json.gz#0", "no file 'z.json.gz'; did you mean 'z.jsonl.gz'"),
        ("web/one#two.jsonl#0", "did you mean 'a/one#two.jsonl'"),
        ("web/nothing like it#0", "no file 'nothing like it'; its first file is"),
        ("web/z.jsonl.gz#20", "the file holds 20 records, 0 to 19"),
        (f"web/z.jsonl.gz#{1 << 64}", "at most 64 bits"),
        ("0" * 32, "no file of the corpus 'small' has the key 0000000000000000"),
        ("g" * 32, "expected source/path#record"),
        ("web", "expected source/path#record"),
        ("web/z.jsonl.gz#-1", "expected source/path#record"),
    ],
)
def test_what_is_not_there_is_an_error_that_helps(corpus: Corpus, identifier: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("#", r"\#")) as error:
        corpus.find(identifier)
    assert identifier in str(error.value)


def test_unknown_source_of_parts_and_no_corpus(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no source 'cod'; did you mean 'code'"):
        next(corpus.parts("cod"))
    with pytest.raises(UserError, match="no corpus here"):
        open_corpus(tmp_path)
    assert open_corpus(corpus.directory / "manifest.json").manifest == corpus.manifest


def test_a_missing_step_is_an_error(corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes((corpus.directory / "manifest.json").read_bytes())
    with pytest.raises(CorruptFileError, match=r"step read\.web is missing.*build the corpus again"):
        open_corpus(tmp_path)
