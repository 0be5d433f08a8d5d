"""Model and list stages in a whole build: their columns do not depend on the part size or on the process that
computes them.
"""

import json
import pickle
from dataclasses import dataclass

import pytest

from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.lineage import open_corpus
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from tests.conftest import paragraph, train_fasttext

COLUMNS = (
    *("language", "language_score", "language_2", "language_2_score", "language_share", "language_paragraphs"),
    *(
        "quality",
        "rude",
        "rude_mean",
        "listed_count",
        "listed_ratio",
        "listed_sentences",
        "listed_sentence_ratio",
        "drop",
    ),
)


@dataclass
class ElsewhereCluster(LocalCluster):
    """Pickles every task, as happens when a task is sent to a Ray worker."""

    def map(self, function, items, label):
        return super().map(function, [pickle.loads(pickle.dumps(item)) for item in items], label)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    lines = [
        f"__label__{'ab'[i % 2]} {paragraph(i, 40) if i % 2 else f'der die das und {i} nicht mit'}\n" for i in range(60)
    ]
    (folder / "train.txt").write_text("".join(lines))
    # No two trainings with so many threads are alike, so the texts are easy and seen often.
    trained = train_fasttext(folder / "train.txt", dim=6, epoch=100, lr=0.5, minn=2, maxn=3, wordNgrams=2, bucket=500)
    trained.save_model(str(folder / "model.bin"))
    return folder / "model.bin"


def columns(tmp_path, model, name, part_bytes, cluster):
    listed = tmp_path / "list.txt"
    listed.write_text("harbour\nand that\n")
    texts = [paragraph(i, 20 + 5 * i) + "\n\nder die das und nicht mit\n\n" * (i % 3) for i in range(40)] + [
        "hi",
        "水车 在河边。",
        "der die das und 7 nicht mit " * 9,
    ]
    (tmp_path / "raw").mkdir(exist_ok=True)
    (tmp_path / "raw" / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    path = tmp_path / f"{name}.yaml"
    path.write_text(f"""\
name: {name}
output: {tmp_path}/{name}
sources:
  - {{name: web, root: {tmp_path}/raw, format: jsonl, part_bytes: {part_bytes}}}
steps:
  - language: {{models: [{model}], paragraphs: true}}
  - classifier: {{model: {model}, label: a, column: quality}}
  - classifier: {{model: {model}, label: b, column: rude, unit: sentence}}
    name: rudeness
  - word_list: {{files: [{listed}], column: listed}}
  - pareto_sampling: {{score: quality, alpha: 1}}
""")
    config = load_corpus_config(path)
    build(make_plan(config, take_inventory(config.sources, config.place)), cluster, lambda line: None)
    parts = list(open_corpus(config.place).parts())
    return len(parts), {row.pop("id"): row for part in parts for row in part.table(("id", *COLUMNS)).to_pylist()}


@pytest.mark.long
def test_no_column_depends_on_parts_or_processes(tmp_path, model):
    one, whole = columns(tmp_path, model, "whole", 1 << 20, LocalCluster())
    many, divided = columns(tmp_path, model, "divided", 2000, ElsewhereCluster())
    assert (one, len(whole)) == (1, 43)
    assert many > 5
    assert divided == whole
    assert {row["language"] for row in whole.values()} == {"a", "b", "und"}
    assert {row["drop"] for row in whole.values()} == {None, "pareto_sampling"}
    assert sum(row["listed_count"] for row in whole.values()) > 10
    assert min(row["language_share"] for row in whole.values() if row["language_share"] is not None) < 1
