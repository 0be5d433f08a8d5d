"""The corpus files of docs/sources.md build, from files of the kind that each section is about."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

import pipelines
from pipelines import OpenCorpus
from tests.pipelines.reading.formats.test_stack_exchange import answer, posts, question

PAGE = Path(__file__).parents[3] / "docs/sources.md"
SECTIONS = {
    section.splitlines()[0]: re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    for section in PAGE.read_text().split("\n## ")[1:]
}


def build(heading: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> OpenCorpus:
    """The corpus of the first YAML below a heading, built in `folder`."""
    monkeypatch.chdir(folder)
    (folder / "corpus.yaml").write_text(SECTIONS[heading][0])
    return pipelines.build("corpus.yaml", in_process=True)


def kept(corpus: OpenCorpus) -> list[str]:
    return corpus.documents().read_all()["text"].to_pylist()


def test_columns_of_records(tmp_path, monkeypatch):
    (tmp_path / "posts").mkdir()
    rows = [
        ("one", 9, "2016-05-01"),
        ("two", 1, "2016-05-01"),
        ("three", 9, "2014-12-31"),
        ("four", 9, ""),
        ("five", 2, "2015-01-01"),
    ]
    lines = [{"text": text, "stats": {"score": score}, "created": created} for text, score, created in rows]
    lines += [{"text": "six", "stats": {"score": "many"}, "created": "2016-01-01"}, {"text": "seven", "created": 2016}]
    (tmp_path / "posts/a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "posts/b.jsonl").write_text(json.dumps(lines[0]))
    corpus = build("Fields of records as columns", tmp_path, monkeypatch)
    assert kept(corpus) == ["one"]
    assert corpus.corpus.manifest.sources["posts"]["quarantined"] == {"wrong_type": 2}
    verdicts = corpus.verdicts().read_all()
    assert Counter(verdicts["drop"].to_pylist()) == {None: 1, "created": 2, "score": 2, "dedup_exact": 1}
    assert [str(corpus.columns.field(name).type) for name in ("score", "created")] == ["int64", "timestamp[us]"]


def test_stack_exchange(tmp_path, monkeypatch):
    dump = tmp_path / "dumps/math.stackexchange.com"
    dump.mkdir(parents=True)
    rows = [question(1, Score=3), question(2, Score=0), question(3, Score=5), answer(4, 1), answer(5, 2)]
    (dump / "Posts.xml").write_bytes(posts(*rows))
    (dump / "Users.xml").write_text("<users />")
    corpus = build("Questions and answers: Stack Exchange", tmp_path, monkeypatch)
    assert kept(corpus) == ["Q: Title 1\n\nbody\n\nA: answer"]
