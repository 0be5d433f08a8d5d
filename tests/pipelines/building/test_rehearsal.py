"""Rehearsals keep the ids of documents, leave the real build unchanged, and give estimates with their limits."""

import json
import random
from pathlib import Path

import pytest
from rich.console import Console

from gristmill.errors import ConfigError, UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import read_json
from pipelines.__main__ import main
from pipelines.building.rehearsal import rehearsal
from pipelines.building.run_build import run_build
from pipelines.commands import show_funnel
from pipelines.contracts.document import document_id, file_key
from pipelines.contracts.lineage import open_corpus
from pipelines.contracts.tombstone import read_tombstone, write_tombstone
from pipelines.planning.corpus import load_corpus_config
from pipelines.reading.documents import read_documents
from pipelines.reading.entries.listing import list_files
from pipelines.reading.entries.record_sample import RecordSample
from pipelines.reading.sources.source import Source
from tests.pipelines.scored_corpora import rows_of

STEPS = """
  - quality_signals: {}
  - filter: [{signal: word_count, at_least: 20, name: short}]
  - text_hash: {}
  - dedup_exact: {}
  - learn_tokenizer: {vocab_size: 400, sample_bytes: 20000}
  - shards: {tokenizer: learn_tokenizer}
"""
WORDS = [
    "the",
    "mill",
    "grinds",
    "corn",
    "for",
    "all",
    "of",
    "the",
    "people",
    "in",
    "a",
    "village",
    "near",
    "the",
    "river",
]


def write_corpus(folder: Path, steps: str = STEPS) -> Path:
    choose = random.Random(3)
    texts = [" ".join(choose.choices(WORDS, k=int(choose.lognormvariate(3.5, 0.6)) + 1)) for _ in range(1000)]
    texts += choose.choices(texts, k=200)
    lines = [json.dumps({"text": text}) for text in texts] + ["not json"] * 60
    (folder / "notes.jsonl").write_text("\n".join(lines))
    path = folder / "trial.yaml"
    path.write_text(
        f"name: trial\noutput: {folder}/out\nsources:\n"
        f"  - {{name: notes, root: {folder}/notes.jsonl, format: jsonl}}\nsteps:{steps}"
    )
    return path


def build(config):
    run_build(config, in_process=True)
    return open_corpus(config.place)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return the whole corpus and its rehearsal, which is built first."""
    folder = tmp_path_factory.mktemp("rehearsed")
    config = load_corpus_config(write_corpus(folder))
    rehearsed = build(rehearsal(config, 0.25))
    assert not (folder / "out").exists(), "the rehearsal has written into the real output"
    return build(config), rehearsed


def test_documents_of_a_rehearsal_are_those_of_the_build_under_their_ids(built):
    whole, sample = (rows_of(corpus, ("id", "text", "word_count")) for corpus in built)
    assert 230 < len(sample) < 370
    assert all(whole[name] == row for name, row in sample.items())
    chosen = {name for name, row in whole.items() if RecordSample(0.25).has(*_key_and_record(row["id"]))}
    assert set(sample) == chosen


def _key_and_record(identifier: bytes) -> tuple[int, int]:
    return int.from_bytes(identifier[:8], "big"), int.from_bytes(identifier[8:], "big")


def test_estimates_hold_what_the_whole_build_counts(built):
    whole, sample = built
    estimates = read_json(sample.directory / "report.json")["estimates"]
    source = estimates["sources"][0]
    assert source["records"] == 1260
    read, filtered, unique = source["rows"]
    assert read["documents"][1] <= 1200 <= read["documents"][2]
    assert read["dropped"]["not_json"][1] <= 60 <= read["dropped"]["not_json"][2]
    row = next(row for row in whole.manifest.funnel if row["step"] == "filter")
    assert filtered["documents"][1] <= row["documents_out"] <= filtered["documents"][2]
    assert filtered["bytes"][1] <= row["bytes_out"] <= filtered["bytes"][2]
    assert filtered["dropped"]["short"][1] <= row["dropped"]["short"] <= filtered["dropped"]["short"][2]
    share = 1 - row["bytes_out"] / row["bytes_in"]
    assert filtered["removed"][1] <= share <= filtered["removed"][2]
    assert (filtered["meaning"], filtered["more"], unique["meaning"], unique["more"]) == (
        "estimate",
        False,
        "at_most",
        True,
    )
    kept = whole.manifest.funnel[-1]
    assert estimates["totals"]["kept"]["documents"][0] > kept["documents_out"]
    assert source["tokens"]["shards"][2] > sum(shard.tokens for shard in whole.manifest.shard_sets["shards"].shards)
    (duplicates,) = estimates["duplicates"]
    gone = sum(kept["dropped"].values())
    assert duplicates["at_least"] < gone / kept["documents_in"]
    assert gone < duplicates["pairs"][2]


def test_the_report_of_a_rehearsal_says_what_it_is_and_that_of_a_build_does_not(built):
    whole, sample = (corpus.directory for corpus in built)
    page = (sample / "report.html").read_text(encoding="utf-8")
    assert 'id="estimates"' in page
    assert "dedup_exact: drops at least" in page
    assert "tokenizer learned from the sample" in page
    assert 'id="estimates"' not in (whole / "report.html").read_text(encoding="utf-8")
    assert "estimates" not in read_json(whole / "report.json")
    report = read_json(sample / "report.json")
    assert "not_sampled" not in report["sources"][0]["quarantined"]
    assert report["totals"]["records"] == report["totals"]["documents"] + report["totals"]["quarantined"]


def test_effects_that_depend_on_the_number_of_documents_are_not_estimated(tmp_path):
    steps = "\n  - text_hash: {}\n  - sample: {documents: 100}\n  - dedup_exact: {}\n"
    corpus = build(rehearsal(load_corpus_config(write_corpus(tmp_path, steps)), 0.25))
    estimates = read_json(corpus.directory / "report.json")["estimates"]
    read, sampled, unique = estimates["sources"][0]["rows"]
    assert read["meaning"] == "estimate"
    assert [(row["meaning"], row["documents"]) for row in (sampled, unique)] == [("unknown", None)] * 2
    assert estimates["totals"]["kept"] == {"documents": None, "bytes": None}
    assert estimates["not_estimated"] == ["sample"]


def test_a_rehearsal_forgets_what_the_output_has_forgotten(tmp_path):
    config = load_corpus_config(write_corpus(tmp_path, "\n  - text_hash: {}\n"))
    key = file_key("notes", "notes.jsonl")
    gone = [number for number in range(1200) if RecordSample(0.25).has(key, number)][:3]
    output = LocalPath(tmp_path / "out")
    output.mkdir()
    (output / "corpus.txt").write_text("trial\n")
    write_tombstone(output, read_tombstone(output) | {"records": {"notes": [f"notes.jsonl#{n}" for n in gone]}})
    corpus = build(rehearsal(config, 0.25))
    ids = {row["id"] for row in rows_of(corpus, ("id",)).values()}
    assert ids
    assert not ids & {document_id(key, number) for number in gone}
    assert corpus.manifest.sources["notes"]["quarantined"]["forgotten"] == 3
    again = rehearsal(config, 0.25)  # does not forget twice
    assert set(read_tombstone(again.place)["records"]["notes"]) == {f"notes.jsonl#{number}" for number in gone}


def test_pieces_of_documents_and_pages_are_sampled_by_their_own_ids(tmp_path):
    (tmp_path / "long.jsonl").write_text(
        "".join(json.dumps({"text": f"line {n} {m}\n" * 30}) + "\n" for n in range(20) for m in (1, 2))
    )
    for number in range(40):
        (tmp_path / f"{number}.html").write_text(f"<article><p>{'The mill grinds corn. ' * 20}{number}</p></article>")

    def ids(share, **fields):
        source = Source(name="s", root=str(tmp_path), sample=share, **fields)
        parts = list(read_documents(source, list_files(source), 1 << 16))
        for part in parts:
            assert sum(part.files["records"].to_pylist()) == part.documents.num_rows + part.quarantine.num_rows
        return {each for part in parts for each in part.documents["id"].to_pylist()}

    sample = RecordSample(0.3)
    fields = {"include": ("*.jsonl",), "format": "jsonl", "max_document_bytes": 100, "oversized": "split"}
    for each in (fields, {"include": ("*.html",), "format": "html"}):
        whole = ids(1.0, **each)
        assert ids(0.3, **each) == {one for one in whole if sample.has(*_key_and_record(one))} != set()


def test_shares_that_are_none_and_samples_without_a_document_are_refused(tmp_path, capsys):
    path = write_corpus(tmp_path)
    config = load_corpus_config(path)
    for share in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(UserError, match=r"--sample: got .*, expected a share of the records above 0 and below 1"):
            rehearsal(config, share)
    with pytest.raises(ConfigError, match=r"sample: got 2\.0, expected a share above 0, at most 1"):
        load_corpus_config(path, ["sources.notes.sample=2"])
    with pytest.raises(UserError, match="the sample holds no document; read a larger share of the records"):
        run_build(rehearsal(config, 1e-9), in_process=True)
    assert main(["build", str(path), "--in-process", "--sample", "0.5", "--variant", "x"]) != 0
    assert "--variant: has no report and so no estimates" in capsys.readouterr().err


def test_the_command_prints_estimates_within_eighty_columns(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(show_funnel, "wide_console", lambda: Console(highlight=False, width=80))
    path = write_corpus(tmp_path)
    assert main(["build", str(path), "--in-process", "--sample", "0.25"]) == 0
    printed = capsys.readouterr().out
    estimates = printed[printed.index("the whole, estimated") :]
    assert all(len(line) <= 80 for line in estimates.splitlines())
    for text in ("of 1,260", "not_json", "dedup_exact", "≤", "95 % intervals", "drops at least"):
        assert text in estimates
