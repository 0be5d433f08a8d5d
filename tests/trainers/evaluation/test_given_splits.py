"""Evaluation on splits that the sources provide, for a run whose checkpoint is a freshly initialised model."""

import json
from collections import Counter
from dataclasses import replace
from math import log

import pytest

from gristmill.errors import UserError
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from tests.conftest import paragraph
from trainers.data.packed_corpus import open_corpus
from trainers.evaluation.evaluate import evaluate
from trainers.models import build_model
from trainers.recipes import llama_tiny
from trainers.runs import checkpoint
from trainers.runs.resolve import describe_data, resolve
from trainers.runs.run import fingerprints, open_run

TEXTS = {
    "train": [paragraph(n) for n in range(8)],
    "validation": [paragraph(20)],
    "test": [paragraph(30), paragraph(31)],
}


def built(folder, splits):
    sources = ""
    for split in splits:
        (folder / f"{split}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS[split]))
        sources += f"  - {{name: {split}_docs, root: {folder}/{split}.jsonl, format: jsonl, split: {split}}}\n"
    path = folder / "corpus.yaml"
    steps = "  - learn_tokenizer: {kind: characters}\n  - shards: {tokenizer: learn_tokenizer}\n"
    path.write_text(f"name: c\noutput: {folder}/out\nsources:\n{sources}steps:\n{steps}")
    config = load_corpus_config(path)
    build(make_plan(config, take_inventory(config.sources, config.place)), LocalCluster(), lambda line: None)
    return folder / "out"


def begun(directory, path):
    corpus = open_corpus((str(directory),), None)
    recipe = llama_tiny()
    config = resolve(replace(recipe, data=replace(recipe.data, corpora=(str(directory),))), corpus)
    open_run(path, config, corpus)
    model = build_model(config.model, corpus.tokenizer.specials, seed=3)
    state = ((name, {"weight": tensor.detach().clone()}) for name, tensor in model.named_parameters())
    checkpoint.save(path, 7, 70, fingerprints(config, corpus), state, keep=1)
    return path, corpus, config


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("given")
    return begun(built(folder, TEXTS), folder / "run")


@pytest.mark.long
def test_each_split_is_evaluated_alone_beside_a_unigram_of_the_training_text(run):
    path, corpus, _ = run
    assert (set(corpus.train), set(corpus.validation), set(corpus.test)) == (
        {"train_docs"},
        {"validation_docs"},
        {"test_docs"},
    )
    known = Counter("".join(TEXTS["train"]))
    for split in ("validation", "test"):
        found = evaluate(path, tokens=10**6, split=split)
        assert set(found["sources"]) == {f"{split}_docs"}
        targets = "".join(TEXTS[split])
        chance = {c: (known[c] + 1) / (sum(known.values()) + 7 + corpus.tokenizer.vocab_size) for c in targets}
        expected = -sum(log(chance[c]) for c in targets) / len(targets)
        assert found["unigram_loss"] == pytest.approx(expected, rel=0.02)
        assert found["sources"][f"{split}_docs"]["unigram_loss"] == found["unigram_loss"]
    assert evaluate(path, tokens=10**6)["loss"] == evaluate(path, tokens=10**6, split="validation")["loss"]


def test_a_run_says_what_it_validates_on(run):
    from trainers.data.packed_corpus import order_of, packed_phases_of

    _, corpus, config = run
    lines = describe_data(config, corpus, order_of(corpus, config, packed_phases_of(corpus, config)))
    assert "data  validated on validation_docs, from which nothing is trained" in lines
    assert not any("no validation loss" in line for line in lines)


def test_a_split_that_no_source_has_is_an_error(tmp_path):
    path, _, _ = begun(built(tmp_path, ("train", "test")), tmp_path / "run")
    with pytest.raises(UserError, match="no source has validation documents; it has test"):
        evaluate(path)
