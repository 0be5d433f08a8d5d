"""`classifier train` on two small corpora: its choices, files, metrics and errors; then the stage with the trained model."""

import json
from random import Random

import pyarrow as pa
import pytest

from gristmill.errors import ConfigError, ConflictError, UserError
from gristmill.storage.store import file_checksum, read_json
from pipelines.__main__ import main
from pipelines.building.build import build
from pipelines.classifiers.column_examples import NumberColumns, contrast_examples
from pipelines.classifiers.fasttext_training import Example, balance_classes, to_fasttext_line
from pipelines.classifiers.train_classifier import _Class, load_classifier_config, train
from pipelines.cluster.local import LocalCluster
from pipelines.planning.corpus import CorpusConfig, StepConfig
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.reading.sources.source import Source
from pipelines.stages.decide.filter import Filter
from pipelines.stages.decide.rules import Rule
from pipelines.stages.measure.language import Language
from pipelines.stages.score.classifier import Classifier

GOOD = ["The theorem follows from the lemma", "We prove that the sum converges", "An integer is even or odd"]
BAD = ["Buy cheap watches now", "Click here to win a prize", "Best offers only today"]


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """A corpus with a source for each class, in several parts; one document in ten is too short to be kept."""
    root = tmp_path_factory.mktemp("corpora")
    sources = []
    for name, sentences in (("proofs", GOOD), ("adverts", BAD)):
        folder = root / name
        folder.mkdir()
        texts = [
            "tiny" if i % 10 == 9 else f"{sentences[i % 3]}.\nNumber {i} of {name[0]}{i * 7 % 50}. {sentences[i % 2]}."
            for i in range(200)
        ]
        (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        sources.append(Source(name, str(folder), "jsonl", part_bytes=4000, licence="CC0-1.0"))
    steps = (
        StepConfig("language", Language(), "language"),  # gives "tiny" the score 0
        StepConfig("filter", Filter((Rule(signal="language_score", at_least=0.001),)), "filter"),
    )
    config = CorpusConfig("mixed", str(root / "out"), tuple(sources), steps)
    plan = make_plan(config, take_inventory(config.sources, root / "out"))
    build(plan, LocalCluster(), lambda line: None)
    return root / "out"


@pytest.fixture
def config_file(corpora, tmp_path):
    path = tmp_path / "classifier.yaml"
    path.write_text(f"""\
output: {tmp_path}/model
positive: ["{corpora}:proofs"]
negative: ["{corpora}:adverts"]
held_out: 0.2
fasttext: {{dim: 8, epoch: 20, lr: 0.5, bucket: 1000}}
""")
    return path


@pytest.mark.long
def test_train_measure_and_score(config_file, tmp_path, capsys):
    assert main(["classifier", "train", str(config_file)]) == 0
    output = tmp_path / "model"
    assert sorted(path.name for path in output.iterdir()) == ["MODEL_CARD.md", "metrics.json", "model.bin"]
    facts = read_json(output / "metrics.json")
    assert facts["model"]["xxh3_128"] == file_checksum(output / "model.bin")
    assert {label: found["train"] + found["held_out"] for label, found in facts["classes"].items()} == {
        "positive": 180,
        "negative": 180,
    }
    assert facts["held_out"]["roc_auc"] > 0.99
    assert f"ROC-AUC {facts['held_out']['roc_auc']:.4f}" in capsys.readouterr().out
    card = (output / "MODEL_CARD.md").read_text()
    assert "| positive | mixed | proofs | 180 | CC0-1.0 |" in card
    assert facts["model"]["xxh3_128"] in card
    stage = Classifier(model=str(output))
    stage.setup()
    texts = [f"{GOOD[0]}.\n{GOOD[1]}", f"{BAD[0]}. {BAD[1]}"]
    docs = pa.table({"id": pa.array([bytes(16)] * 2, pa.binary(16)), "text": pa.array(texts, pa.large_string())})
    good, bad = stage.annotate(docs)["classifier_score"].to_pylist()
    assert good > 0.8
    assert bad < 0.2


@pytest.fixture(scope="module")
def three_sources(tmp_path_factory):
    """A corpus of five sources: `left` and `right` each have a word that `other` lacks; `alike` and `also`
    use the same words.
    """
    root = tmp_path_factory.mktemp("sources")
    words = {"left": "amber heath", "right": "delta heath", "alike": "good fine", "also": "good fine", "other": "heath"}
    random, sources = Random(3), []
    for name, own in words.items():
        count = 500 if name == "other" else 40
        texts = [f"{own} {random.randrange(60)} heath {random.randrange(60)}" for _ in range(count)]
        (root / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        sources.append(Source(name, str(root / f"{name}.jsonl"), "jsonl"))
    config = CorpusConfig("many", str(root / "out"), tuple(sources), ())
    build(make_plan(config, take_inventory(config.sources, root / "out")), LocalCluster(), lambda line: None)
    return root / "out"


def config_of(tmp_path, corpus, positive, negative, more=""):
    path = tmp_path / "classifier.yaml"
    lists = [json.dumps([f"{corpus}:{name}" for name in names]) for names in (positive, negative)]
    path.write_text(
        f"output: {tmp_path}/model\npositive: {lists[0]}\nnegative: {lists[1]}\nheld_out: 0.4\n"
        f"fasttext: {{dim: 8, epoch: 30, lr: 0.5, bucket: 1000}}\n{more}"
    )
    return path


@pytest.mark.long
@pytest.mark.parametrize(
    ("positive", "learned"), [(["left", "right"], "source"), (["alike", "also"], "class"), (["left"], "unknown")]
)
def test_a_classifier_that_learned_its_sources_says_so(three_sources, tmp_path, capsys, positive, learned):
    assert (
        main(["classifier", "train", str(config_of(tmp_path, three_sources, positive, ["other"], "balance: repeat\n"))])
        == 0
    )
    out, card = capsys.readouterr().out, (tmp_path / "model" / "MODEL_CARD.md").read_text()
    facts = read_json(tmp_path / "model" / "metrics.json")
    assert facts["learned"] == learned
    assert facts["held_out"]["roc_auc"] > 0.99
    assert ("This classifier learned its sources" in card) is ("it learned its sources" in out) is (learned == "source")
    assert ("it is unknown whether this classifier learned the class or the source" in card) is (learned == "unknown")
    rows = [(entry["class"], entry["source"]) for entry in facts["leave_one_source_out"]]
    assert rows == [("positive", f"many:{name}") for name in positive if len(positive) > 1]
    assert all(f"| positive | {source} | " in card for _, source in rows)
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "MODEL_CARD.md",
        "metrics.json",
        "model.bin",
    ]


@pytest.mark.long
def test_unequal_classes_are_told_and_balanced(three_sources, tmp_path, capsys):
    path = config_of(tmp_path, three_sources, ["left"], ["other"])
    assert main(["classifier", "train", str(path)]) == 0
    classes = read_json(tmp_path / "model" / "metrics.json")["classes"]
    least, most = classes["positive"]["train"], classes["negative"]["train"]
    said = f"{most:,} negative documents train and {least:,} positive ones, {most / least:.0f} to 1: scores lean towards negative"
    assert said in " ".join(capsys.readouterr().out.split())
    assert said in (tmp_path / "model" / "MODEL_CARD.md").read_text()
    for balance, size in (("downsample", least), ("repeat", most)):
        assert main(["classifier", "train", str(path), f"balance={balance}", "--overwrite"]) == 0
        facts = read_json(tmp_path / "model" / "metrics.json")
        assert facts["trained_on"] == {"positive": size, "negative": size}
        assert {label: found["train"] for label, found in facts["classes"].items()} == {
            "positive": least,
            "negative": most,
        }
        assert "warning" not in capsys.readouterr().out
        assert (
            f"balance: {balance}: trained on {size:,} positive and {size:,} negative"
            in (tmp_path / "model" / "MODEL_CARD.md").read_text()
        )


@pytest.mark.long
def test_sources_of_a_class_count_the_same(three_sources, tmp_path):
    path = config_of(tmp_path, three_sources, ["left", "other"], ["alike"])
    assert main(["classifier", "train", str(path), "balance=sources"]) == 0
    facts = read_json(tmp_path / "model" / "metrics.json")
    assert facts["trained_on"]["positive"] == facts["trained_on"]["negative"] > facts["classes"]["positive"]["train"]
    rows = {row["source"]: row for row in facts["calibration_by_source"]}
    assert {name: row["share_positive"] for name, row in rows.items()} == {
        "many:left": 1,
        "many:other": 1,
        "many:alike": 0,
    }
    assert sum(row["documents"] for row in rows.values()) == sum(c["held_out"] for c in facts["classes"].values())
    assert all(row["expected_calibration_error"] < 0.2 for row in rows.values())
    assert f"| many:left | {rows['many:left']['documents']} | " in (tmp_path / "model" / "MODEL_CARD.md").read_text()
    examples = {
        "positive": [Example(n, n, "a", 0) for n in range(3)] + [Example(9, 9, "b", 1)],
        "negative": [Example(5, 5, "c", 0), Example(6, 6, "d", 0)],
    }
    balanced = balance_classes(examples, "sources")
    assert [e.line for e in balanced["positive"]] == ["a"] * 3 + ["b"] * 3
    assert [e.line for e in balanced["negative"]] == ["c", "d"] * 3


@pytest.mark.long
def test_what_is_there_is_not_replaced_silently(config_file, tmp_path):
    output = tmp_path / "model"
    output.mkdir()
    (output / "mine.txt").write_text("kept")
    config = load_classifier_config(config_file, [])
    with pytest.raises(ConflictError, match="exists; name another `output`, or use --overwrite"):
        train(config, overwrite=False)
    assert [path.name for path in output.iterdir()] == ["mine.txt"]
    first = train(config, overwrite=True)
    second = train(load_classifier_config(config_file, ["seed=1"]), overwrite=True)
    assert (output / "mine.txt").read_text() == "kept"
    assert read_json(output / "metrics.json") == {**second, "checksum": read_json(output / "metrics.json")["checksum"]}
    assert first["config"]["seed"] != second["config"]["seed"]


def test_the_choice_is_by_hash_and_copies_stay_together(config_file, three_sources):
    config = load_classifier_config(config_file, ["documents_per_class=60"])
    chosen = _Class(config.positive, "positive", config)
    again = _Class(config.positive, "positive", config)
    assert (chosen.train, chosen.held_out) == (again.train, again.held_out)
    assert len(chosen.train) + len(chosen.held_out) == 60
    every = _Class(config.positive, "positive", load_classifier_config(config_file, []))
    assert {e.order for e in chosen.train + chosen.held_out} == set(
        sorted(e.order for e in every.train + every.held_out)[:60]
    )
    assert not {e.split for e in every.train} & {e.split for e in every.held_out}
    assert 0.1 < len(every.held_out) / 180 < 0.3
    copies = _Class((f"{three_sources}:other",), "positive", load_classifier_config(config_file, []))
    assert len({e.line for e in copies.train}) < len(copies.train)
    assert not {e.line for e in copies.train} & {e.line for e in copies.held_out}


def test_a_source_that_is_named_twice_counts_once(config_file, corpora):
    once, twice = (f"{corpora}:adverts", f"{corpora}:proofs"), (f"{corpora}:adverts", str(corpora), f"{corpora}:proofs")
    config = load_classifier_config(config_file, [])
    for name in ("train", "held_out", "names", "sources"):
        assert getattr(_Class(twice, "positive", config), name) == getattr(_Class(once, "positive", config), name)
    classes = {"positive": [f"{corpora}:proofs"] * 2, "negative": [f"{corpora}:adverts"]}
    examples = contrast_examples(classes, NumberColumns(("language_score",)), 1000, 0, 0.2)
    assert len(examples.targets) == 360
    assert [len(facts) for facts in examples.facts.values()] == [1, 1]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("two\nlines", "two lines"),
        ("__label__x first, a__label__y inside\n__label__z", " first, a__label__y inside "),
        ("an end </s> here", "an end "),
        ("no end</s> or </s>x", "no end</s> or </s>x"),
    ],
)
def test_a_text_becomes_one_line_without_labels(text, line):
    assert to_fasttext_line(text) == line


def test_too_few_documents(config_file):
    with pytest.raises(
        UserError, match=r"positive: \d+ documents for training and \d held out, expected at least 10 of each"
    ):
        train(load_classifier_config(config_file, ["documents_per_class=20"]), overwrite=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("held_out=1", "held_out: got 1.0"),
        ("positive=[]", "positive: expected at least one corpus"),
        ("fasttext.thread=4", "fasttext.thread: got 4, expected 11 or more"),
        ("fasttext.minn=3", "fasttext.minn: got 3, expected 0 to maxn = 0"),
        ("fastext.dim=4", "fastext: no such field in ClassifierConfig; did you mean 'fasttext'"),
    ],
)
def test_configurations_out_of_range(change, message, config_file):
    with pytest.raises(ConfigError, match=message):
        load_classifier_config(config_file, [change])


def test_unknown_corpora_and_sources(config_file, corpora, tmp_path):
    with pytest.raises(
        UserError, match=r"positive: .*:prooofs: the corpus 'mixed' has no source 'prooofs'; did you mean"
    ):
        train(load_classifier_config(config_file, [f'positive=["{corpora}:prooofs"]']), overwrite=False)
    with pytest.raises(UserError):
        train(load_classifier_config(config_file, [f'positive=["{tmp_path}/nowhere"]']), overwrite=False)
