"""Variants: other corpora in the same directory, which share steps and leave the directory's own corpus unchanged."""

import pytest

from pipelines.__main__ import main
from pipelines.contracts.lineage import open_corpus
from pipelines.contracts.manifest import load_corpus
from trainers.data.packed_corpus import open_corpus as open_for_training

STRICTER = (
    "steps.filter=[{rules: gopher_quality@massivetext}, {signal: word_count, at_least: 1000}]",
    "steps.learn_tokenizer.vocab_size=500",
)


def build(file, *words):
    assert main(["build", str(file), "--in-process", *words]) == 0


def steps(path):
    return {step["step"]: step["directory"] for step in load_corpus(path).steps}


@pytest.mark.long
def test_a_variant_shares_steps_and_leaves_the_corpus_alone(built_corpus_file, tmp_path, capsys):
    out = tmp_path / "out"
    before = (out / "manifest.json").read_bytes()
    build(built_corpus_file, "--variant", "strict", *STRICTER)
    variant = out / "variant-strict.json"
    assert "steps are already built" in capsys.readouterr().out
    assert (out / "manifest.json").read_bytes() == before
    here, there = steps(out), steps(variant)
    assert here["read.web"] == there["read.web"]
    assert here["quality_signals.web"] == there["quality_signals.web"]
    assert here["filter.web"] != there["filter.web"]
    whole, fewer = (open_for_training((str(path),), None) for path in (out, variant))
    assert set(whole.train) == {"code", "web"}
    assert set(fewer.train) == {"code"}
    assert fewer.directory == whole.directory
    assert open_corpus(variant).manifest.fingerprint == fewer.fingerprint != whole.fingerprint
    assert not (out / "report.html").exists()


@pytest.mark.long
def test_gc_keeps_the_steps_of_a_variant_until_its_manifest_is_removed(built_corpus_file, tmp_path, capsys):
    build(built_corpus_file, "--variant", "strict", *STRICTER)
    capsys.readouterr()
    assert main(["gc", str(built_corpus_file), "--delete"]) == 0
    assert "removed" not in capsys.readouterr().out
    open_corpus(tmp_path / "out" / "variant-strict.json")
    (tmp_path / "out" / "variant-strict.json").unlink()
    assert main(["gc", str(built_corpus_file), "--delete"]) == 0
    assert "removed" in capsys.readouterr().out
    open_corpus(tmp_path / "out")


@pytest.mark.long
def test_forget_removes_variants_and_the_next_build_leaves_the_document_out(built_corpus_file, tmp_path, capsys):
    build(built_corpus_file, "--variant", "loose", "steps.shards.validation_share=0.3")
    (tmp_path / "ids.txt").write_text("web/0.jsonl#5\n")
    assert main(["forget", str(tmp_path / "out"), "--ids", str(tmp_path / "ids.txt")]) == 0
    assert not (tmp_path / "out" / "variant-loose.json").exists()
    build(built_corpus_file, "--variant", "loose", "steps.shards.validation_share=0.3")
    read = next(step for step in open_corpus(tmp_path / "out" / "variant-loose.json").steps if step.label == "read.web")
    assert read.manifest.counts["web"].facts()["quarantined"]["forgotten"] == 1
    capsys.readouterr()


@pytest.mark.parametrize("name", ["../x", "a.b", ""])
def test_the_name_of_a_variant_is_a_word(built_corpus_file, name, capsys):
    assert main(["build", str(built_corpus_file), "--variant", name]) == 2
    assert f"--variant: got {name!r}" in capsys.readouterr().err
