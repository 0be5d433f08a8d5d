"""The corpora that docs/domains.md gives for a domain, for a language and for many languages can be built
from samples, and their recipes train.
"""

import gzip
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
import yaml

from gristmill.config import parse
from gristmill.events import read_events
from gristmill.storage.disk import LocalPath
from pipelines.building.build import plan_and_build
from pipelines.cluster.local import LocalCluster
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from tests.trainers.objectives.packed import both_sides
from tests.trainers.recipes.test_published_tokenizers import narrow, trained
from tokenizer.encode import Encoder
from trainers.config.job import TrainingBudget
from trainers.data.packed_corpus import corpus_of, training_data
from trainers.recipes import RECIPES
from trainers.runs.resolve import resolve
from trainers.tasks.load_task import load_task
from trainers.tasks.pair_file import write_pair_file
from trainers.tasks.schema.task import Task

PAGE = Path(__file__).parents[3] / "docs/domains.md"
SECTION = PAGE.read_text().partition("## A model of a domain, of one language, of many")[2]
CORPORA = dict(re.findall(r"```yaml\n(name: (?:\w+)\n.*?)```\s+```sh\n.*? pretrain (\w+) corpus", SECTION, re.DOTALL))
(TASK,) = re.findall(r"```yaml\n(kind: classify\n.*?)```", SECTION, re.DOTALL)
OF_RECIPE = {recipe: config for config, recipe in CORPORA.items()}
DOCUMENTS = {"en": 240, "ko": 12, "zh": 60}
CHARACTERS = {"en": 1500, "ko": 1500, "zh": 500}

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("alone")]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The parent directory of the built corpora, which are named by recipe and changed fields."""
    return tmp_path_factory.mktemp("built")


@pytest.fixture
def sample(tmp_path, shared_data, monkeypatch, built):
    """A function that builds the corpus of a recipe, with changed fields, from articles in several languages."""
    monkeypatch.setattr("pipelines.building.publish.write_report", lambda *arguments: False)
    monkeypatch.chdir(tmp_path)
    for name, languages in (("web", DOCUMENTS), ("papers", ["en"])):
        (tmp_path / "raw" / name).mkdir(parents=True)
        for language in languages:
            with gzip.open(shared_data / f"prose/wiki_{language}.jsonl.gz", "rt", encoding="utf-8") as lines:
                texts = [
                    json.loads(line)["text"] for line, _ in zip(lines, range(4 * DOCUMENTS[language]), strict=False)
                ]
            longest = sorted(texts, key=len)[-DOCUMENTS[language] :]
            records = [json.dumps({"text": text[: CHARACTERS[language]]}) for text in longest]
            (tmp_path / "raw" / name / f"{language}.jsonl").write_text("\n".join(records))

    def build(recipe, *changes):
        place = built / re.sub(r"\W+", "-", "-".join([recipe, *changes]))
        if not place.exists():
            (tmp_path / "corpus.yaml").write_text(OF_RECIPE[recipe])
            config = load_corpus_config(tmp_path / "corpus.yaml", [*changes, f"output={place}"])
            plan_and_build(config, take_inventory(config.sources, config.place), LocalCluster(), lambda _: None)
        return str(place)

    return build


def test_the_page_has_a_recipe_of_each_kind_with_the_vocabulary_of_its_file():
    assert set(OF_RECIPE) == {"scibert_base", "camembert_base", "xlmr_base", "tiny_translation_lm", "tiny_multitask"}
    for recipe in ("scibert_base", "camembert_base", "xlmr_base"):
        config = OF_RECIPE[recipe]
        assert f"vocab_size: {RECIPES[recipe]().model.vocab_size}" in config


@pytest.mark.deepspeed
@pytest.mark.parametrize(
    ("recipe", "changes"),
    [("scibert_base", ()), ("camembert_base", ("steps.filter[0].one_of=[zh]",)), ("xlmr_base", ())],
)
def test_a_recipe_trains_on_the_corpus_of_its_kind(recipe, changes, sample, tmp_path):
    directory = sample(recipe, "steps.learn_tokenizer.vocab_size=5000", *changes)
    run = tmp_path / "run"
    trained(narrow(recipe, directory, vocab_size=None), run)
    assert [event["step"] for event in read_events(run / "log.jsonl") if event["event"] == "step"] == [1, 2]


@pytest.mark.deepspeed
def test_a_small_model_reads_pairs_and_documents_by_their_weights(sample, shared_data, tmp_path):
    sides = [
        gzip.decompress((shared_data / f"tasks/generate/multi30k_en_de/val.{side}.gz").read_bytes())
        .decode()
        .split("\n")
        for side in ("en", "de")
    ]
    (tmp_path / "raw/pairs").mkdir()
    records = [json.dumps({"en": english, "de": german}) for english, german in zip(*sides, strict=True) if english]
    (tmp_path / "raw/pairs/0.jsonl").write_text("\n".join(records))
    directory = sample(
        "tiny_translation_lm", "steps.learn_tokenizer.vocab_size=2000", "steps.shards.validation_share=0.1"
    )
    config = RECIPES["tiny_translation_lm"]()
    data = replace(config.data, corpora=(directory,), weights={"pairs": 1.0, "web": 1.0})
    config = resolve(replace(config, data=data, budget=TrainingBudget(steps=40), log_every=1), corpus_of(
        replace(config, data=data)
    ))  # fmt: skip
    run = tmp_path / "run"
    trained(config, run)
    losses = [event["loss"] for event in read_events(run / "log.jsonl") if event["event"] == "step"]
    assert mean(losses[-5:]) < mean(losses[:5]) - 0.5
    ledger = json.loads((run / "ledger.json").read_text())["sources"]
    assert ledger["pairs"]["tokens"] == pytest.approx(ledger["web"]["tokens"], rel=0.05)


def test_tasks_are_sources_beside_text(sample, shared_data, tmp_path):
    for name in ("sst2", "trec"):
        (tmp_path / "raw" / name).mkdir(parents=True)
        file = LocalPath(tmp_path / "raw" / name / "pairs.jsonl")
        write_pair_file(load_task(name), LocalPath(shared_data / "tasks"), file)
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:200]))
    shutil.rmtree(tmp_path / "raw/papers")
    directory = sample("tiny_multitask", "steps.learn_tokenizer.vocab_size=2000")
    config = RECIPES["tiny_multitask"]()
    data = replace(config.data, corpora=(directory,), weights={"web": 0.5, "sst2": 0.4, "trec": 0.1})
    config = resolve(replace(config, data=data), corpus_of(replace(config, data=data)))
    packed = training_data(corpus_of(config), config)
    rows = packed.rows(packed.order.take(0, 200))
    share = np.bincount(rows.source, minlength=3) / len(rows.source)
    assert dict(zip([source.name for source in packed.sources], share, strict=True)) == pytest.approx(
        {"web": 0.5, "sst2": 0.4, "trec": 0.1}, abs=0.02
    )
    text = {source.name: {} for source in packed.sources}
    for place, sides in both_sides(rows).items():
        text[packed.sources[rows.source[place[0]]].name][place] = sides
    encoder = Encoder.load(f"{directory}/{corpus_of(config).tokenizer.path}")
    assert {encoder.decode(asked[:-1]) for _, _, asked in text["sst2"].values()} == {"negative", "positive"}
    labels = {"abbreviation", "entity", "description", "human", "location", "number"}
    assert {encoder.decode(asked[:-1]) for _, _, asked in text["trec"].values()} <= labels
    first = encoder.specials["<extra_id_0>"]
    assert all(asked[0] == first for _, _, asked in text["web"].values() if asked)


def test_the_page_asks_for_a_task_in_the_words_of_its_templates():
    written = parse(Task, {"name": "asked", **yaml.safe_load(TASK)}, "asked.yaml")
    shipped = load_task("sst2")
    assert (written.prompt.context, written.prompt.continuation, written.prompt.words) == (
        shipped.templates.input, shipped.templates.target, shipped.templates.words
    )  # fmt: skip
    assert (written.folders, written.format, written.columns) == (shipped.folders, shipped.format, shipped.columns)


@pytest.mark.deepspeed
def test_a_small_model_of_many_languages_reads_each_by_a_power_of_its_tokens(sample, tmp_path):
    directory = sample("xlmr_base", "steps.learn_tokenizer.vocab_size=5000")
    config = RECIPES["tiny_roberta"]()
    data = replace(config.data, corpora=(directory,), weights="temperature")
    config = replace(config, data=data, budget=TrainingBudget(steps=40), log_every=1)
    corpus = corpus_of(config)
    config = resolve(config, corpus)
    powers = {name: corpus.train[name].tokens ** 0.3 for name in ("web:en", "web:ko", "web:zh")}
    weights = {name: power / sum(powers.values()) for name, power in powers.items()}
    assert config.data.weights == pytest.approx(weights)
    run = tmp_path / "run"
    trained(config, run)
    losses = [event["loss"] for event in read_events(run / "log.jsonl") if event["event"] == "step"]
    assert mean(losses[-5:]) < mean(losses[:5]) - 0.5
    ledger = json.loads((run / "ledger.json").read_text())["sources"]
    read = {name: facts["tokens"] for name, facts in ledger.items()}
    row = config.data.sequence_length
    assert read == pytest.approx({name: weight * sum(read.values()) for name, weight in weights.items()}, abs=row)
    assert ledger["web:en"]["epochs"] < 0.5 < 1.3 < ledger["web:ko"]["epochs"]
