"""What an export leaves out is named in its receipt and on its dataset card."""

import json

import pytest

from gristmill.storage.store import read_json
from pipelines.__main__ import main
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.planning.corpus import CorpusConfig, StepConfig
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.reading.sources.source import Source
from pipelines.stages.decide.filter import Filter
from pipelines.stages.decide.rules import Rule
from pipelines.stages.measure.quality_signals import QualitySignals
from pipelines.stages.pii.pii import Pii

RECORDS = [
    {
        "text": "Write to jane.roe@example.org, or to john.doe@example.org today.",
        "url": "http://a.example/?m=j.r@example.org",
    },
    {"text": "Nothing of that kind is in this document.", "url": "http://a.example/2", "author": "j.doe@example.org"},
    {"text": "mary@example.org", "url": "http://a.example/3"},
    {"text": " "},
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    root = tmp_path_factory.mktemp("left_out")
    for name, lines in (
        ("web", [*map(json.dumps, RECORDS), "not json"]),
        ("books", [json.dumps({"text": "A book of words."})]),
    ):
        (root / name).mkdir()
        (root / name / "a.jsonl").write_text("\n".join(lines))
    sources = tuple(Source(name, str(root / name), "jsonl") for name in ("web", "books"))
    steps = (
        StepConfig("quality_signals", QualitySignals(), "quality_signals"),
        StepConfig("filter", Filter((Rule(signal="word_count", at_least=4),)), "filter"),
        StepConfig("pii", Pii(fields=("url", "meta")), "pii"),
    )
    config = CorpusConfig("leaving", str(root / "out"), sources, steps)
    build(make_plan(config, take_inventory(sources, config.place)), LocalCluster(), lambda line: None)
    return config.place


def export(corpus, output, *words):
    assert main(["export", str(corpus), str(output), *words]) == 0
    return read_json(output / "export.json")["left_out"], (output / "README.md").read_text()


def test_everything_that_is_left_out_is_listed_with_its_reason(corpus, tmp_path):
    left_out, card = export(corpus, tmp_path / "e", "--sources", "web", "--columns", "word_count")
    assert left_out["sources"] == ["books"]
    documents = left_out["documents"]["web"]
    assert sum(documents["quarantined"].values()) == 2
    assert documents["filter"] == {"word_count": 1}
    assert left_out["replaced"] == {"web": {"text": {"EMAIL_ADDRESS": 2}, "url": 1, "meta": 1}}
    assert left_out["columns"]["n_chars"] == "not named by --columns"
    assert {"word_count", "url", "meta", "drop", "edits"}.isdisjoint(left_out["columns"])
    assert "Sources of the corpus that are not in this export: books." in card
    assert "| web | filter | word_count | 1 |" in card
    assert "| web | EMAIL_ADDRESS in text | 2 |" in card
    assert "| web | values of url | 1 |" in card
    for reason, number in documents["quarantined"].items():
        assert f"| web | quarantined | {reason} | {number} |" in card


def test_fields_that_are_not_exported_are_listed_as_columns(corpus, tmp_path):
    left_out, card = export(corpus, tmp_path / "e", "--without", "url,meta", "--format", "jsonl")
    assert left_out["sources"] == []
    assert {name: left_out["columns"][name] for name in ("url", "meta")} == dict.fromkeys(
        ("url", "meta"), "left out by --without"
    )
    assert left_out["replaced"] == {"web": {"text": {"EMAIL_ADDRESS": 2}}}
    assert "Columns: `url`, `meta`: left out by --without." in card
    assert "values of url" not in card


def test_counts_agree_with_what_was_read(corpus, tmp_path):
    left_out, _ = export(corpus, tmp_path / "e")
    gone = {
        source: sum(sum(rules.values()) for rules in steps.values()) for source, steps in left_out["documents"].items()
    }
    written = read_json(tmp_path / "e" / "export.json")["sources"]
    assert {name: written[name]["documents"] + gone.get(name, 0) for name in written} == {"web": 5, "books": 1}
