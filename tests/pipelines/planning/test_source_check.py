"""A source with too few documents stops plan and build; the error lists the fields of its records and says
what to check.
"""

import gzip
import io
import json
import re
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from gristmill.errors import SourceError, UserError
from pipelines.__main__ import main
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.planning.source_check import check_sample, sample_source
from pipelines.reading.entries.listing import list_files
from pipelines.reading.entries.reasons import REASONS, STRUCTURAL
from pipelines.reading.sources.source import Source


def jsonl(records: list) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


NEWS = [{"id": n, "text": f"the {n}th report of the day", "domain": "news"} for n in range(50)]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    for name in ("web", "news"):
        (tmp_path / name).mkdir()
    (tmp_path / "web" / "a.jsonl").write_text(jsonl(NEWS))
    (tmp_path / "news" / "a.jsonl.gz").write_bytes(gzip.compress(jsonl(NEWS).encode()))
    path = tmp_path / "corpus.yaml"
    path.write_text(f"""
name: corpus
output: {tmp_path}/out
sources:
  - {{name: web, root: {tmp_path}/web, format: jsonl}}
  - {{name: news, root: {tmp_path}/news, format: jsonl}}
steps: [text_hash: {{}}]
""")
    return path


def run(path: Path, *overrides: str):
    config = load_corpus_config(path, overrides)
    plan = make_plan(config, take_inventory(config.sources, config.place))
    return build(plan, LocalCluster(), lambda line: None)


@pytest.mark.parametrize("command", ["plan", "build"])
@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "sources.news.text_field=body",
            "error: source 'news': none of its first 50 records would be a document: 50 `no_text` (the record has no text "
            "field, or it is null); records have the fields id, text, domain; check `text_field: body`; to build "
            "anyway, set `allow_empty: true`\n",
        ),
        (
            "sources.news.format=parquet",
            "error: source 'news': none of its first 1 records would be a document: 1 `not_parquet` (not a Parquet file, or "
            "one inside an archive or a compressed file, where it cannot be read); check `format: parquet`; to build "
            "anyway, set `allow_empty: true`\n",
        ),
    ],
)
def test_a_source_without_documents_stops_plan_and_build(corpus, capsys, command, override, message):
    in_process = ["--in-process"] if command == "build" else []
    assert main([command, str(corpus), *in_process, override]) == 2
    assert capsys.readouterr().err == message


def test_a_source_may_be_empty_with_allow_empty(corpus):
    built = run(corpus, "sources.news.text_field=body", "sources.news.allow_empty=true")
    assert (built.sources["web"]["kept"], built.sources["news"]["kept"]) == (50, 0)


def test_steps_of_an_empty_source_alone_are_built_and_reported(corpus, tmp_path):
    (tmp_path / "ids.txt").write_text("news/b.jsonl#0\n")
    (tmp_path / "items.jsonl").write_text(jsonl([{"q": " ".join(f"word{n}" for n in range(20))}]))
    alone = (
        f"exclude: [{{name: x, by: id, files: [{tmp_path}/ids.txt]}}]",
        f"decontaminate: {{sets: [{{name: s, file: {tmp_path}/items.jsonl, prompts: [q]}}]}}",
        "shards: {tokenizer: learn_tokenizer}",
    )
    steps = [
        "- text_hash: {}",
        "- learn_tokenizer: {kind: bytes}",
        *(f"- {step}\n    sources: [news]" for step in alone),
    ]
    listed = "\n  ".join(steps)
    corpus.write_text(corpus.read_text().replace("steps: [text_hash: {}]", f"steps:\n  {listed}"))
    built = run(corpus, "sources.news.text_field=body", "sources.news.allow_empty=true")
    assert built.sources["web"]["kept"] == 50
    assert (tmp_path / "out" / "report.html").is_file()
    assert main(["inspect", str(tmp_path / "out"), "--contamination", str(tmp_path / "found.jsonl")]) == 0


def test_a_corpus_needs_a_document_all_the_same(corpus):
    with pytest.raises(UserError, match="no source holds a document"):
        run(
            corpus,
            *(f"sources.{name}.{field}" for name in ("web", "news") for field in ("text_field=x", "allow_empty=true")),
        )


def test_what_the_first_records_do_not_show_is_found_once_all_are_read(corpus, tmp_path):
    (tmp_path / "web" / "a.jsonl").write_text(jsonl([*NEWS * 20, *[{"txt": "a"}] * 1500]))
    with pytest.raises(SourceError, match=r"1000 of its 2,500 records would be a document: 1,500 `no_text`.*be 0\.60"):
        run(corpus)
    [read] = (tmp_path / "out").glob("read.web-*/manifest.json")
    before = read.stat().st_mtime_ns
    with pytest.raises(SourceError, match="max_quarantined"):
        run(corpus)
    assert run(corpus, "sources.web.max_quarantined=0.6").sources["web"]["kept"] == 1000
    assert read.stat().st_mtime_ns == before  # it was read once


def tar_of(folder: Path, **members: list) -> None:
    (folder / "a.jsonl").unlink()
    with tarfile.open(folder / "a.tar", "w") as archive:
        for name, records in members.items():
            content = jsonl(records).encode()
            info = tarfile.TarInfo(f"{name}.jsonl")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


@pytest.mark.long
@pytest.mark.parametrize(
    ("late", "fields"),
    [
        ({"id": 1, "body": "a", "title": "b"}, "id, body, title"),
        ({"id": 1, "text": None, "content": "a"}, "id, text, content"),
        ({"text": ["a", "b"]}, "text"),
    ],
)
@pytest.mark.parametrize("archived", [False, True])
def test_the_fields_of_late_records_are_named(corpus, tmp_path, capsys, late, fields, archived):
    records, web = [*NEWS * 24, "no object", *[late] * 1500], tmp_path / "web"
    (web / "a.jsonl").write_text(jsonl(records))
    if archived:
        tar_of(web, first=NEWS, second=records)
    place = "web/a.tar!second.jsonl#1201" if archived else "web/a.jsonl#1201"
    with pytest.raises(SourceError, match=re.escape(f"; the first of these, {place}, has the fields {fields}; check")):
        run(corpus)
    assert main(["plan", str(corpus)]) == 2
    assert f"{place}, has the fields {fields}; check `text_field: text`" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("good", [0, 1200])
def test_a_null_text_is_reported_with_the_other_columns(corpus, tmp_path, kind, good):
    (tmp_path / "web" / "a.jsonl").unlink()
    texts = [f"text {number}" for number in range(good)] + [None] * 2000
    table = pa.table({"id": range(len(texts)), "text": pa.array(texts, pa.string()), "body": ["a"] * len(texts)})
    if kind == "parquet":
        pyarrow.parquet.write_table(table, tmp_path / "web" / "a.parquet", row_group_size=500)
    else:
        pyarrow.feather.write_feather(table, str(tmp_path / "web" / "a.arrow"), compression="uncompressed")
    where = f"the first of these, web/a.{kind}#1200, has" if good else "records have"
    with pytest.raises(SourceError, match=f"{where} the fields id, text, body; check `text_field: text`"):
        run(corpus, f"sources.web.format={kind}")


@pytest.mark.parametrize("files", [1, 30])
def test_json_lines_that_are_read_as_json_stop_plan_and_build(corpus, tmp_path, files):
    """Only the first object of each file would become a document; the rest of the file would be set aside as
    one record.
    """
    (tmp_path / "web" / "a.jsonl").unlink()
    for number in range(files):
        (tmp_path / "web" / f"{number}.json").write_text(jsonl(NEWS))
    counts = f"web': {files} of its first {2 * files} records would be a document: {files} `trailing_bytes`"
    said = rf"{counts}.*check `format: json`.*0\.51"
    with pytest.raises(SourceError, match=said):
        run(corpus, "sources.web.format=json")
    built = run(corpus, "sources.web.format=json", "sources.web.max_quarantined=0.51")
    assert built.sources["web"]["kept"] == files


def test_half_of_the_records_may_be_quarantined(corpus, tmp_path):
    (tmp_path / "web" / "a.jsonl").write_text(jsonl([*NEWS, *[{"text": None}] * 50]))
    assert run(corpus).sources["web"]["quarantined"] == {"no_text": 50}
    (tmp_path / "web" / "a.jsonl").write_text(jsonl([*NEWS, *[{"text": 3}] * 51]))
    with pytest.raises(SourceError, match="text_not_string"):
        run(corpus)


def warc(*records: tuple[str, bytes]) -> bytes:
    return b"".join(
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nContent-Type: text/plain\r\nContent-Length: {len(block)}\r\n\r\n".encode()
        + block + b"\r\n\r\n"
        for kind, block in records
    )  # fmt: skip


def test_records_that_are_no_documents_by_nature_do_not_count(tmp_path):
    path = tmp_path / "a.warc"
    path.write_bytes(warc(("warcinfo", b"x"), *[("request", b"GET /")] * 90, ("conversion", b"A text.")))
    source = Source(name="web", root=str(tmp_path), format="warc")
    check_sample(source, list_files(source))
    tally = sample_source(source, list_files(source))
    assert (tally.documents, tally.aside) == (1, {"warcinfo": 1, "request": 90})
    path.write_bytes(warc(("warcinfo", b"x"), *[("request", b"GET /")] * 5))
    check_sample(source, list_files(source))  # documents may follow; the counts of the whole source decide


def test_reasons_of_structure_are_reasons():
    assert set(REASONS) > STRUCTURAL


def test_files_of_another_format_are_blamed_on_the_format(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("no book")
    source = Source(name="books", root=str(tmp_path), format="gutenberg")
    with pytest.raises(SourceError, match=r"3 `not_gutenberg`.*check `format: gutenberg`"):
        check_sample(source, list_files(source))


def test_names_of_fields_are_cut_short(tmp_path):
    record = {f"{'n' * 100}{number}": 0 for number in range(30)}
    (tmp_path / "a.jsonl").write_text(jsonl([record]))
    source = Source(name="web", root=str(tmp_path), format="jsonl")
    with pytest.raises(SourceError) as error:
        check_sample(source, list_files(source))
    assert str(error.value).count(f"{'n' * 40}...") == 20
    assert "10 more; check" in str(error.value)


def test_a_sample_is_a_thousand_records_from_all_over(tmp_path):
    for number in range(100):
        (tmp_path / f"{number:03d}.jsonl").write_text(jsonl(NEWS if number % 2 else [{"text": ""}] * 50))
    source = Source(name="web", root=str(tmp_path), format="jsonl")
    tally = sample_source(source, list_files(source))
    assert 1000 <= tally.documents + tally.aside.total() <= 1064
    assert 0.3 < tally.share < 0.7


def test_archives_are_not_searched_for_members(tmp_path, monkeypatch):
    """A matching member may be at the end of a large archive."""
    (tmp_path / "x.txt").write_text("a text")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / "x.txt", "x.txt")
    source = Source(name="web", root=str(tmp_path), include=("a.tar",), members=("*.md",), format="text")
    assert sample_source(source, list_files(source)).aside.total() == 0


def test_a_missing_column_is_reported_while_planning(corpus, tmp_path, capsys):
    pyarrow.feather.write_feather(
        pa.table({"body": ["a"]}), str(tmp_path / "web" / "a.arrow"), compression="uncompressed"
    )
    (tmp_path / "web" / "a.jsonl").unlink()
    assert main(["plan", str(corpus), "sources.web.format=arrow"]) == 2
    assert "has no column 'text'; its columns are body" in capsys.readouterr().err


def test_no_configuration_is_the_only_thing_missing(capsys):
    with pytest.raises(SystemExit):
        main(["build"])
    assert "required: config\n" in capsys.readouterr().err
