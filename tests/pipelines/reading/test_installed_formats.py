"""Formats of other packages: the reader in the docs, as if it were installed, and readers that fail."""

import importlib
import re
import sys
from pathlib import Path

import pytest

import pipelines
from gristmill.errors import ConfigError, PoisonError, SourceError, UserError
from gristmill.libraries.provenance import _provenance
from pipelines.__main__ import main
from pipelines.planning.corpus import corpus_schema, load_corpus_config
from pipelines.reading.sources import registry

PAGE = Path(__file__).parents[3] / "docs" / "own_stages.md"
SUBTITLES = "1\n00:00:01,600 --> 00:00:04,200\nStay where {n} are.\n\n2\n00:00:05,000 --> 00:00:06,000\nWe will.\n"
FAILING = """
from pipelines import Bad, TextRecord


def read_lines(entry, source):
    for line in b"".join(entry.chunks).decode().splitlines():
        if line == "raise":
            raise KeyError(line)
        yield {"wrong type": line, "unknown reason": Bad("bad day"), "no object": TextRecord(line, 1, None, b"[]")}.get(
            line, TextRecord(line, len(line), "https://example.org/" + line[-1], b'{"line": 1}')
        )
"""


def write_corpus(root, kind):
    (root / "corpus.yaml").write_text(
        f"name: films\noutput: {root}/out\nsources:\n  - {{name: films, root: {root}/films, format: {kind}}}\n"
        "steps:\n  - text_hash: {}\n"
    )
    (root / "films").mkdir(exist_ok=True)
    return root / "corpus.yaml"


def install(site, name, points, code):
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)
    (info / "top_level.txt").write_text(f"{name}\n")
    (site / name).mkdir()
    (site / name / "__init__.py").write_text(code)


def forget():
    for name in ("subtitles", "failing"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    _provenance.cache_clear()
    registry._installed_format.cache_clear()


@pytest.fixture
def site(tmp_path, monkeypatch):
    site, page = tmp_path / "site", PAGE.read_text()
    section = page[page.index("## Formats of your own") :]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (points,) = re.findall(r'```toml\n\[project.entry-points."(.*?)```', section, re.DOTALL)
    install(site, "subtitles", "[" + points.replace('"]', "]").replace('"', ""), code)
    install(site, "failing", "[gristmill.formats]\nlines = failing:read_lines\nkind = failing:Bad\n", FAILING)
    monkeypatch.syspath_prepend(str(site))
    forget()
    yield site
    forget()


def test_the_reader_of_the_docs_reads(site, tmp_path, capsys):
    file = write_corpus(tmp_path, "subtitles:srt")
    for n in ("we", "they"):
        (tmp_path / "films" / f"{n}.srt").write_text(SUBTITLES.format(n=n))
    (tmp_path / "films" / "broken.srt").write_bytes(b"\xff\xfe\xfd")
    corpus = pipelines.build(file, in_process=True)
    assert sorted(corpus.documents().read_all()["text"].to_pylist()) == [
        "Stay where they are.\nWe will.",
        "Stay where we are.\nWe will.",
    ]
    assert [(q.path, q.reason) for q in corpus.corpus.quarantined("films")] == [("broken.srt", "undecodable")]
    capsys.readouterr()
    assert main(["plan", str(file)]) == 0
    assert "read.films: subtitles 1.0, source" in capsys.readouterr().out
    assert main(["formats"]) == 0
    assert "subtitles:srt" in capsys.readouterr().out


def test_changed_code_reads_again(site, tmp_path):
    file = write_corpus(tmp_path, "subtitles:srt")
    (tmp_path / "films" / "a.srt").write_text(SUBTITLES)
    pipelines.build(file, in_process=True)
    code = site / "subtitles" / "__init__.py"
    code.write_text(code.read_text().replace('"\\n".join', '" ".join'))
    forget()
    assert pipelines.build(file, in_process=True).documents().read_all()["text"].to_pylist() == [
        "Stay where {n} are. We will."
    ]


def test_a_worker_with_other_code_ends_the_build(site, tmp_path, monkeypatch):
    file = write_corpus(tmp_path, "subtitles:srt")
    (tmp_path / "films" / "a.srt").write_text(SUBTITLES)
    other = {"subtitles": "0.9", "source": "0123456789abcdef"}
    monkeypatch.setattr("gristmill.libraries.provenance.provenance", lambda thing: other)
    with pytest.raises(UserError, match=r"read.films: a worker has other code .*\(subtitles 0.9, source 0123456789ab"):
        pipelines.build(file, in_process=True)


@pytest.mark.long
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("raise", "fails with KeyError"),
        ("wrong type", "yields a wrong str"),
        ("unknown reason", "yields a wrong Bad"),
        ("no object", "yields a wrong TextRecord"),
    ],
)
def test_a_failing_reader_names_the_record_and_can_be_set_aside(site, tmp_path, line, reason):
    file = write_corpus(tmp_path, "failing:lines")
    (tmp_path / "films" / "a.txt").write_text(f"one\ntwo\n{line}\nfour\n")
    (tmp_path / "films" / "b.txt").write_text("five\nsix\n")
    with pytest.raises(PoisonError, match=f"read: the format failing:lines {reason} at films/a.txt#2; fix it"):
        pipelines.build(file, in_process=True)
    corpus = pipelines.build(file, in_process=True, quarantine_poison=True)
    assert corpus.documents().read_all()["text"].to_pylist() == ["one", "two", "five", "six"]
    assert [(q.path, q.record, q.reason) for q in corpus.corpus.quarantined("films")] == [("a.txt", 2, "poison")]


def test_a_reader_that_fails_everywhere_builds_nothing(site, tmp_path):
    file = write_corpus(tmp_path, "failing:lines")
    (tmp_path / "films" / "a.txt").write_text("raise\n")
    with pytest.raises(SourceError, match="none of its 1 records would be a document"):
        pipelines.build(file, in_process=True, quarantine_poison=True)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            "subtitles:sub",
            "format: got 'subtitles:sub': no installed package has this format; did you mean 'subtitles:srt'?",
        ),
        ("subtitle", "format: got 'subtitle', expected one of text, jsonl"),
        ("jsonll", "did you mean 'jsonl'?"),
        ("failing:kind", "expected a function"),
    ],
)
def test_formats_that_cannot_be_used_are_refused(site, tmp_path, kind, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_corpus_config(write_corpus(tmp_path, kind))


@pytest.mark.long
def test_the_schema_allows_them():
    import jsonschema

    schema, corpus = (
        corpus_schema(),
        {"name": "x", "output": "out", "sources": [{"name": "s", "root": ".", "format": "a:b"}]},
    )
    jsonschema.validate({**corpus, "steps": [{"shouting:shouts": {"shortest": 3}, "name": "loud"}]}, schema)
    corpus["sources"][0]["format"] = "jsnol"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**corpus, "steps": [{"text_hash": {}}]}, schema)
    corpus["sources"][0]["format"] = "jsonl"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**corpus, "steps": [{"text_hsah": {}}]}, schema)
