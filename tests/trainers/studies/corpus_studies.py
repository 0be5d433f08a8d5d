"""A tiny corpus file with a held-out source, and a study whose entries change the corpus."""

import json

from tests.conftest import paragraph
from trainers.studies.designs.study_entries import variants_of
from trainers.studies.running.study_directory import load_study

CORPUS = """\
name: small
output: {folder}/corpus
sources:
  - {{name: web, root: {folder}/web.jsonl, format: jsonl, part_bytes: 8000}}
  - {{name: code, root: {folder}/code.jsonl, format: jsonl}}
  - {{name: held, root: {folder}/held.jsonl, format: jsonl, split: validation}}
steps:
  - quality_signals: {{}}
  - filter: [{{signal: word_count, at_least: 5}}]
    sources: [web]
  - learn_tokenizer: {{vocab_size: 400, sample_bytes: 20000}}
  - shards: {{tokenizer: learn_tokenizer, validation_share: 0}}
"""
STUDY = """\
name: cuts
question: Are more texts better than longer ones?
output: {folder}/study
corpus_file: {folder}/small.yaml
recipe: llama_tiny
settings: {{batch.sequences: 4, data.sequence_length: 64}}
design:
  kind: list
  baseline: all
  seeds: 2
  entries:
    all: {{}}
    long: {{corpus: {{"steps.filter[0].at_least": 60}}}}
proxies: {{tokens: 4e3, matched: false}}
metrics: {{tokens: 512, last: 1}}
"""


def write_corpus_study(folder, study=STUDY):
    """Write texts, the corpus file and the study file below `folder`, and return the study file."""
    lengths = {"web": [20, 90] * 12, "code": [50] * 12, "held": [70] * 6}
    for number, (source, words) in enumerate(lengths.items()):
        rows = [{"text": paragraph(1000 * number + i, count)} for i, count in enumerate(words)]
        (folder / f"{source}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "small.yaml").write_text(CORPUS.format(folder=folder))
    (folder / "cuts.yaml").write_text(study.format(folder=folder))
    return folder / "cuts.yaml"


def build_variants(file, *overrides):
    from pipelines.__main__ import main

    for variant in variants_of(load_study(file, overrides)):
        if not variant.is_built:
            words = [variant.file, *variant.changes, "--variant", variant.key, "--in-process"]
            assert main(["build", *words]) == 0
