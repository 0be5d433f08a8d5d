"""The example files of docs/classifiers.md on judges and embeddings, and of docs/domains.md on topics, work as printed."""

import json
import random
import re
from pathlib import Path

import pytest

from gristmill.storage.store import read_json
from pipelines.__main__ import main
from tests.pipelines.scored_corpora import build_corpus, plan_corpus
from tests.pipelines.stages.score.small_encoder import save_encoder

pytestmark = pytest.mark.long

DOCS = Path(__file__).parents[3] / "docs"


def blocks(page, heading):
    section = (DOCS / page).read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^```(\w+)\n(.*?)^```", section, re.M | re.S)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory with an encoder, two built corpora and scores for one of them, under the names that the
    pages use.
    """
    monkeypatch.chdir(tmp_path)
    save_encoder(tmp_path / "models" / "encoder")
    (tmp_path / "corpora").mkdir()
    draw = random.Random(0)
    for name, words in (("books", "milla stono"), ("web", "sacka breado")):
        lines = []
        for number in range(150):
            own = draw.choices(words.split(), k=6) + draw.choices(["beama", "milla", "sacka"], k=number % 5)
            lines.append({"text": f"{' '.join(own)} {number}"})
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    embed = "transformer_embeddings: {model: models/encoder, max_tokens: 32}"
    for corpus, source in (("reference", "books"), ("crawl", "web")):
        plan = plan_corpus(tmp_path, corpus, [embed], (source,))
        build_corpus(plan)
        (tmp_path / corpus).rename(tmp_path / "corpora" / corpus)
    rows = [{"id": f"web/web.jsonl#{number}", "score": number % 5} for number in range(150)]
    (tmp_path / "judged.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return tmp_path


def test_a_judges_scores(place):
    (_, row), (_, config) = blocks("classifiers.md", "A judge's scores")
    assert json.loads(row).keys() == {"id", "score"}
    (place / "edu.yaml").write_text(config)
    small = ["fasttext.dim=8", "fasttext.bucket=1000", "fasttext.epoch=30", "fasttext.lr=0.5"]
    assert main(["classifier", "train", "edu.yaml", *small]) == 0
    assert read_json(place / "models" / "edu" / "metrics.json")["config"]["threshold"] == 3


def test_a_linear_classifier_of_embeddings(place):
    (_, steps), (_, config) = blocks("classifiers.md", "A linear classifier of embeddings")
    (place / "good_meaning.yaml").write_text(config)
    assert main(["classifier", "train", "good_meaning.yaml"]) == 0
    source = "name: c\noutput: corpora/scored\nsources: [{name: web, root: web.jsonl, format: jsonl}]\n"
    (place / "c.yaml").write_text(source + steps)
    assert main(["build", "c.yaml", "--in-process"]) == 0
    funnel = read_json(place / "corpora" / "scored" / "manifest.json")["funnel"]
    assert sum(sum(row["dropped"].values()) for row in funnel) > 0


def test_topics(place):
    ((_, config),) = blocks("domains.md", "Topics")
    (place / "raw").mkdir()
    (place / "raw" / "web").mkdir()
    lines = [*(place / "web.jsonl").read_text().splitlines(), *(place / "books.jsonl").read_text().splitlines()]
    (place / "raw" / "web" / "a.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (place / "topics.yaml").write_text(config.replace("corpora/crawl", "corpora/topics"))
    assert main(["build", "topics.yaml", "--in-process"]) == 0
    (entry,) = read_json(place / "corpora" / "topics" / "report.json")["topics"]
    assert sum(topic["documents"] for topic in entry["topics"]) == 300
    assert len(entry["topics"]) == 2
