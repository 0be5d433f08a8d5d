"""The Python API of corpora, compared with what the commands write."""

import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import pipelines
from gristmill.errors import ConfigError, UserError
from gristmill.storage.disk import LocalPath
from pipelines.export.text_export import export_corpus

CORPUS = """
name: mine
output: {root}/out
sources:
  - {{name: web, root: {root}/web, format: jsonl, part_bytes: 2000}}
  - {{name: code, root: {root}/code, format: text}}
steps:
  - quality_signals: {{}}
    sources: [web]
  - text_hash: {{}}
  - filter: [{{signal: word_count, at_least: 5, null: keep}}]
    sources: [web]
  - learn_tokenizer: {{kind: bytes}}
  - shards: {{tokenizer: learn_tokenizer, validation_share: 0.2}}
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    root = tmp_path_factory.mktemp("api")
    for name in ("web", "code"):
        (root / name).mkdir()
    lines = [f'{{"text": "Line {n} {"of words " * (n % 9)}", "number": {n}}}' for n in range(120)]
    (root / "web" / "a.jsonl").write_text("\n".join(lines))
    (root / "code" / "a.py").write_text("print('hello')\n")
    (root / "corpus.yaml").write_text(CORPUS.format(root=root))
    return pipelines.build(root / "corpus.yaml", in_process=True)


def test_documents_are_those_of_an_export(corpus, tmp_path):
    export_corpus(corpus.corpus.directory, LocalPath(tmp_path / "export"), "parquet", None, ["word_count"])
    files = sorted((tmp_path / "export" / "data").iterdir())
    exported = pa.concat_tables([pq.read_table(file) for file in files])
    read = corpus.documents(["word_count"]).read_all()
    assert read.sort_by("id").equals(exported.cast(read.schema).sort_by("id"))


def test_verdicts_cover_every_document(corpus):
    verdicts = corpus.verdicts(["word_count"]).read_all()
    assert len(verdicts) == 121
    dropped = verdicts.filter(pc.is_valid(verdicts["drop"]))
    assert set(dropped["drop"].to_pylist()) == {"word_count"}
    assert max(dropped["word_count"].to_pylist()) < 5
    kept = set(verdicts.filter(pc.is_null(verdicts["drop"]))["id"].to_pylist())
    assert kept == set(corpus.documents().read_all()["id"].to_pylist())
    assert len(corpus.verdicts(sources=["code"]).read_all()) == 1


def test_readers_stream(corpus):
    assert len(list(corpus.documents(sources=["web"]))) > 1


def test_shards_are_read_as_arrays(corpus):
    shards = [*corpus.shards(), *corpus.shards(split="validation")]
    assert sum(len(shard.doc_ids) for shard in shards) == len(corpus.documents().read_all())
    first = next(corpus.shards(sources=["code"]))
    assert first.offsets[-1] == len(first.tokens) > 0


def test_tokens_decode_to_the_texts_of_the_documents(corpus):
    table = corpus.documents().read_all()
    texts = {
        corpus.corpus.find(name).id.hex(): text
        for name, text in zip(*(table[x].to_pylist() for x in ("id", "text")), strict=True)
    }
    assert dict([*corpus.decoded(), *corpus.decoded(split="validation")]) == texts
    assert {identifier for identifier, _ in corpus.decoded(sources=["code"])} < set(texts)


def test_a_plan_is_a_value(corpus, tmp_path):
    config = corpus.corpus.directory.parent / "corpus.yaml"
    done = pipelines.plan(config)
    assert all(step.is_finished for step in done.steps)
    assert {name: count for name, (count, _) in done.files.items()} == {"web": 1, "code": 1}
    other = pipelines.plan(config, ["steps.filter[0].at_least=8"])
    assert [step.name for step in other.steps] == [step.name for step in done.steps]
    pending = {step.name: step.why for step in other.steps if not step.is_finished}
    assert "at_least" in pending["filter.web"]
    assert "read.web" not in pending
    assert other.expected.seconds > 0
    new = pipelines.plan(config, [f"output={tmp_path / 'new'}"])
    assert not any(step.is_finished for step in new.steps)
    assert not (tmp_path / "new").exists()


def test_columns_and_sources_are_listed(corpus):
    assert corpus.sources == ["web", "code"]
    assert "word_count" in corpus.columns.names
    assert "drop" not in corpus.columns.names
    assert corpus.documents(corpus.columns.names).read_all().num_columns == 5 + len(corpus.columns)
    assert len(corpus.verdicts(corpus.columns.names).read_all()) == 121


def test_wrong_names_are_refused(corpus):
    with pytest.raises(UserError, match=r"^columns: .* did you mean 'word_count'"):
        corpus.documents(["word_cont"])
    with pytest.raises(UserError, match="no source 'wed'"):
        corpus.documents(sources=["wed"])
    with pytest.raises(UserError, match="shard_set: got 'x', the corpus has shards"):
        next(corpus.shards("x"))
    with pytest.raises(UserError, match="shard_set: got '', the corpus has shards"):
        next(corpus.shards(""))


@pytest.mark.long
def test_a_build_takes_overrides_and_what_differs_is_found(corpus, tmp_path):
    config = corpus.corpus.directory.parent / "corpus.yaml"
    other = pipelines.build(config, [f"output={tmp_path / 'out'}", "steps.filter[0].at_least=8"], in_process=True)
    change = pipelines.diff(corpus.corpus.directory, other.corpus.directory).sources["web"]
    assert set(change.went_out) == {"word_count"}
    assert change.kept_now == len(other.documents(sources=["web"]).read_all())
    assert pipelines.open_corpus(str(tmp_path / "out")).sources == ["web", "code"]
    assert pipelines.search(tmp_path / "out", "Line 7 ").documents == 1


def test_a_history_says_what_became_of_a_document(corpus):
    kept = corpus.inspect("web/a.jsonl#4")
    assert (kept.id, kept.source, kept.path, kept.record) == ("web/a.jsonl#4", "web", "a.jsonl", 4)
    assert kept.reason is None
    assert kept.text == "Line 4 of words of words of words of words "
    assert kept.steps["quality_signals"]["word_count"] == 10
    dropped = corpus.inspect("web/a.jsonl#0")
    assert dropped.reason == dropped.steps["filter"]["drop"] == "word_count"
    with pytest.raises(UserError, match="web"):
        corpus.inspect("web/a.jsonl#1000")


@pytest.mark.long
def test_what_if_agrees_with_the_build(corpus, tmp_path):
    config = corpus.corpus.directory.parent / "corpus.yaml"
    impact = pipelines.what_if(config, ["filter.word_count.at_least=8"], full=True)["web"]
    other = pipelines.build(config, [f"output={tmp_path / 'out'}", "steps.filter[0].at_least=8"], in_process=True)
    now, then = (len(each.documents(sources=["web"]).read_all()) for each in (corpus, other))
    assert impact.exact
    assert (impact.kept, impact.change()) == (now, (then - now, 0.0))
    with pytest.raises(UserError, match="word_cont"):
        pipelines.what_if(config, ["filter.word_cont.at_least=8"])


def test_bad_places_and_workers_are_refused(corpus, tmp_path):
    with pytest.raises(UserError):
        pipelines.open_corpus(tmp_path / "nothing")
    with pytest.raises(ConfigError):
        pipelines.open_corpus("ftp://example.org/corpus")
    with pytest.raises(UserError, match="workers: got 0"):
        pipelines.build(corpus.corpus.directory.parent / "corpus.yaml", workers=0)
    with pytest.raises(AttributeError, match="no attribute 'bulid'"):
        pipelines.bulid  # noqa: B018


def test_duckdb_reads_documents_as_they_come(corpus):
    duckdb = pytest.importorskip("duckdb")
    reader = corpus.documents(["word_count"])  # noqa: F841  # DuckDB finds it by its name
    found = duckdb.sql("select source, count(*), max(word_count) from reader group by 1 order by 1").fetchall()
    table = corpus.documents(["word_count"]).read_all()
    counts = [table.filter(pc.equal(table["source"], name)) for name in ("code", "web")]
    assert found == [
        (name, len(t), pc.max(t["word_count"]).as_py()) for name, t in zip(("code", "web"), counts, strict=True)
    ]


@pytest.fixture
def examples(tmp_path, monkeypatch):
    """Return the Python examples of docs/looking.md by heading, after running the build that they refer to."""
    monkeypatch.chdir(tmp_path)
    for name in ("web", "code"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("the mill stands by the river and turns\n")
    mine = CORPUS.format(root=tmp_path).replace("jsonl", "text").replace(f"{tmp_path}/out", "data/corpora/mine")
    (tmp_path / "mine.yaml").write_text(mine.replace("0.2", "0.5"))
    pipelines.build("mine.yaml", in_process=True)
    page = (Path(__file__).parents[2] / "docs" / "looking.md").read_text()
    return dict(re.findall(r"^#+ ([^\n]+)\n(?:(?!^#)[^\n]*\n)*?```python\n(.*?)```", page, re.DOTALL | re.MULTILINE))


def test_the_examples_of_the_docs_run(examples):
    assert set(examples) == {"Python", "DuckDB", "Tokens for other trainers"}
    values = {}
    exec(examples["Python"], values)
    assert values["change"].sources["web"].same + values["found"].documents >= 2


def test_the_example_with_duckdb_runs(examples, tmp_path):
    pytest.importorskip("duckdb")
    mine = LocalPath(tmp_path / "data/corpora/mine")
    export_corpus(mine, LocalPath(tmp_path / "data/exports/mine"), "parquet", None)
    values = {}
    exec(examples["DuckDB"], values)
    assert pq.read_table(tmp_path / "columns.parquet").equals(values["verdicts"])


def test_the_package_itself_imports_nothing_heavy():
    code = "import sys, pipelines; print('pyarrow' in sys.modules, 'pipelines.api' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "False False\n"
    )
