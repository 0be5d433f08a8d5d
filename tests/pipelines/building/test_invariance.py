"""Invariance: no column or decision depends on the hash seed, the part size, or the number and order of
tasks. The names and order of files change only ids and which copy is kept.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.lineage import open_corpus
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.stages.decide.filter import Filter
from pipelines.stages.decide.rules import RULE_SETS, Rule
from tests.conftest import paragraph

ROOT = Path(__file__).parents[3]

STEPS = """\
steps:
  - quality_signals: {}
  - peer_signals: {}
  - language: {}
  - url_rules: {}
  - text_hash: {}
  - minhash_signatures: {}
  - score: {method: rank_sum, columns: {word_count: 1, mean_word_length: -1}}
  - c4_lines: {rules: paper, without: [terminal_punctuation, few_words]}
  - filter: [{signal: word_count, at_least: 3}, {signal: language_score, at_least_quantile: 0.2}]
"""
DEDUP = """\
  - dedup_url: {}
  - dedup_exact: {}
  - dedup_minhash: {}
"""


def documents():
    odd = [
        "short", "a b c " * 40, "x" * 3000, "\n\n \t\n.\n", "naïve “quotes” … — 東京は日本の首都です。 Привет, мир! שלום",
        "- bullet\n* bullet\n• bullet...\nLorem ipsum dolor.\nfunction f() { return 1; }\nPlease enable Javascript.\n" * 3,
        "Same line here.\n" * 30, "\U0001f468\u200d\U0001f469\u200d\U0001f467 #tag #tag #tag " * 9,
        "The same two\n\nThe same two\n\n" * 8,
    ]  # fmt: skip
    texts = [*odd, *(paragraph(i, 60 + 7 * i) for i in range(24))]
    texts += [texts[12], f"{texts[13]} And more.", *(paragraph(i).replace(". ", ".\n") for i in range(40, 46))]
    urls = [
        None if i % 7 == 0 else f"http{'s' * (i % 2)}://Site{i % 5}.example/{i % 6}?utm_id={i}"
        for i in range(len(texts))
    ]
    return [{"text": text, "url": url} for text, url in zip(texts, urls, strict=True)]


def written(folder, rows, files):
    folder.mkdir(parents=True)
    for number, name in enumerate(files):
        (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows[number :: len(files)]))
    return folder


class Backwards(LocalCluster):
    def map(self, function, items, label):
        for position, result in super().map(function, items[::-1], label):
            yield len(items) - 1 - position, result


def built(place, root, part_bytes, cluster=None, steps=STEPS + DEDUP):
    """Build a corpus; return, by printed id, the columns of every document and the verdicts of the rule sets
    that read no other columns.
    """
    place.mkdir()
    source = f"{{name: web, root: {root}, format: jsonl, part_bytes: {part_bytes}}}"
    (place / "c.yaml").write_text(f"name: same\noutput: {place}/out\nsources: [{source}]\n{steps}")
    config = load_corpus_config(place / "c.yaml")
    build(
        make_plan(config, take_inventory(config.sources, place / "out")), cluster or LocalCluster(), lambda line: None
    )
    corpus, found = open_corpus(place / "out"), {}
    for part in corpus.parts("web"):
        names = dict.fromkeys(name for annotation in part.annotations for name in annotation.schema if name != "edits")
        table = part.table(("id", "text", "url", "edited_text", "drop", *names))
        for rules in RULE_SETS:
            stage = Filter((Rule(rules=rules),))
            if {each.name for each in stage.reads()} <= set(names):
                table = table.append_column(rules, stage.annotate(table)["drop"])
        found.update(zip(corpus.printed_ids(part), table.to_pylist(), strict=True))
    return found


@pytest.mark.long
def test_part_size_and_order_of_tasks(tmp_path):
    root = written(tmp_path / "raw", documents(), ["b.jsonl", "a.jsonl", "c.jsonl"])
    base = built(tmp_path / "base", root, 1 << 20)
    assert len(base) == len(documents())
    verdicts = {row["drop"] for row in base.values()}
    assert {"dedup_url", "dedup_exact", "dedup_minhash", "language_score", "word_count", None} <= verdicts
    assert all(
        any(row[rules] for row in base.values()) for rules in RULE_SETS if not rules.startswith("refinedweb_url")
    )
    assert built(tmp_path / "small", root, 5000, Backwards()) == base


@pytest.mark.long
def test_names_and_order_of_files(tmp_path):
    """A file's name is part of its documents' ids, so documents are compared by content. There is no
    deduplication, because it may keep a different copy.
    """
    rows, found = documents(), []
    for name, files, order in (("one", ["z.jsonl"], 1), ("many", ["m.jsonl", "k/l.jsonl", "0.jsonl"], -1)):
        (tmp_path / name / "k").mkdir(parents=True)
        root = tmp_path / name
        for number, file in enumerate(files):
            lines = [json.dumps(row) for row in rows[::order][number :: len(files)]]
            (root / file).write_text("\n".join(lines))
        columns = built(tmp_path / f"built_{name}", root, 1 << 20 if order == 1 else 6000, steps=STEPS)
        found.append(sorted(((row["text"], str(row["url"]), row | {"id": None}) for row in columns.values()), key=str))
    assert found[0] == found[1]


@pytest.mark.slow
def test_hash_seed(tmp_path):
    root = written(tmp_path / "raw", documents(), ["a.jsonl", "b.jsonl"])
    code = (
        "import hashlib, sys; from gristmill.storage.disk import LocalPath\n"
        "from tests.pipelines.building.test_invariance import built\n"
        "columns = built(LocalPath(sys.argv[1]), LocalPath(sys.argv[2]), 5000)\n"
        "print(hashlib.sha256(repr(sorted(columns.items())).encode()).hexdigest())"
    )
    found = set()
    for seed in ("0", "4242"):
        command = [sys.executable, "-c", code, str(tmp_path / seed), str(root)]
        child = subprocess.run(
            command, cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True
        )
        assert child.returncode == 0, child.stderr[-3000:]
        found.add(child.stdout)
    assert found == {
        hashlib.sha256(repr(sorted(built(tmp_path / "here", root, 700).items())).encode()).hexdigest() + "\n"
    }
