"""The shipped tasks on real data: the numbers of examples and the scores of simple rules are as documented."""

import csv
import re
from functools import cache

import numpy as np
import pytest

from trainers.tasks.leaks import find_leaks
from trainers.tasks.load_task import load_suite, load_task, shipped_tasks
from trainers.tasks.majority import majority_predictions
from trainers.tasks.predictions import predictions_of, score_predictions
from trainers.tasks.read_examples import read_examples
from trainers.tasks.task_files import available_splits

# More examples than the manifest counts: it counts dialogues, the task their replies. Less: replies without words.
REPLIES = {"valid_freq.jsonl.gz": 11142, "valid_rare.jsonl.gz": 11153}
ABSENT = {"multirc", "record", "conll2003", "swag"}


@pytest.fixture(scope="module")
def data(shared_data):
    if not (shared_data / "tasks").is_dir():
        pytest.skip("the development data has no tasks")
    return shared_data / "tasks"


@pytest.fixture(scope="module")
def manifest(data):
    with open(data / "MANIFEST.tsv", encoding="utf-8") as file:
        rows = csv.DictReader(file, delimiter="\t")
        return {row["path"]: int(row["examples"]) for row in rows if row["examples"]}


@pytest.fixture(scope="module")
def read(data):
    return cache(lambda name, split: read_examples(load_task(name), split, data))


GENERATED = [name for name in shipped_tasks() if load_task(name).format == "generated"]


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in shipped_tasks() if name not in (*ABSENT, *GENERATED)])
def test_every_split_has_as_many_examples_as_the_manifest_says(data, manifest, read, name):
    splits = available_splits(load_task(name), data)
    assert splits
    for split in splits:
        examples = read(name, split)
        path = examples.files[0].path.removeprefix(f"{data}/")
        if name in ("blimp", "trex"):  # a file for each phenomenon or relation
            counted = sum(manifest[file.path.removeprefix(f"{data}/")] for file in examples.files)
            assert len(examples) + examples.skipped == counted
            continue
        assert len(examples) == REPLIES.get(path.rpartition("/")[2], manifest[path])
        assert examples.skipped == 0
        assert examples.labelled or split == "test"


def test_all_of_glue_and_what_superglue_has_is_at_hand(data):
    def missing(suite):
        return {
            (column.task, column.split)
            for column in load_suite(suite).columns
            if column.split not in available_splits(load_task(column.task), data)
        }

    assert missing("glue") == {("mnli", "dev_mismatched")}
    assert missing("superglue") == {("multirc", "dev"), ("record", "dev")}


def jaccard(examples):
    pairs = zip(*(texts.to_pylist() for texts in examples.texts), strict=True)
    sets = [tuple(set(re.findall(r"\w+", text.lower())) for text in pair) for pair in pairs]
    return np.array([len(first & second) / max(1, len(first | second)) for first, second in sets])


def by_threshold(name, read, above):
    """Return the scores of a single threshold on word overlap. The threshold is chosen on the training split,
    as in the data's README.
    """
    train, dev = read(name, "train"), read(name, "dev")
    overlap, similar = jaccard(train), train.labels == above
    best = max(np.linspace(0, 1, 101), key=lambda threshold: np.mean((overlap >= threshold) == similar))
    predicted = np.where(jaccard(dev) >= best, above, 1 - above)
    scores = score_predictions(predictions_of(dev, predicted, "one threshold on word overlap"), repetitions=200)
    return {metric: score.value for metric, score in scores.items()}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "above", "floors"),
    [
        ("mrpc", 1, {"accuracy": 0.721, "f1": 0.814}),
        ("qnli", 0, {"accuracy": 0.695}),
        ("rte", 0, {"accuracy": 0.509}),
        ("qqp", 1, {"accuracy": 0.672}),
    ],
)
def test_word_overlap_scores_what_the_data_s_readme_measured(read, name, above, floors):
    values = by_threshold(name, read, above)
    for metric, floor in floors.items():
        assert values[metric] == pytest.approx(floor, abs=0.0006), metric


def test_similarity_and_word_overlap_correlate_as_measured(read):
    dev = read("stsb", "dev")
    scores = score_predictions(predictions_of(dev, jaccard(dev), "word overlap"))
    assert scores["pearson"].value == pytest.approx(0.650, abs=0.0006)
    assert scores["pearson"].low < 0.650 < scores["pearson"].high


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "metric", "expected"),
    [
        ("cola", "accuracy", 0.689), ("cola", "matthews", 0.0), ("qqp", "accuracy", 0.621), ("wnli", "accuracy", 0.563),
        ("rte", "accuracy", 0.527), ("sst5", "accuracy", 0.253), ("wnut17", "entity_f1", 0.0),
    ],
)  # fmt: skip
def test_the_majority_scores_what_is_known(read, name, metric, expected):
    train, dev = read(name, "train"), read(name, "dev")
    scores = score_predictions(majority_predictions(train, dev), [metric], repetitions=50)
    assert scores[metric].value == pytest.approx(expected, abs=0.0006)


def test_perfect_predictions_score_perfectly(read):
    for name, metric in (("wnut17", "entity_f1"), ("ud_pos", "accuracy"), ("sst5", "macro_f1"), ("squad", "token_f1")):
        dev = read(name, "dev")
        gold = dev.tags if dev.tags is not None else dev.labels
        predicted = [accepted[-1] for accepted in dev.targets] if gold is None else gold
        assert score_predictions(predictions_of(dev, predicted, "gold"), [metric], repetitions=20)[metric].value == 1.0


def test_known_leaks_of_published_splits_are_counted(read):
    for name, count in (("cola", 18), ("stsb", 6), ("mrpc", 0), ("sst2", 0), ("rte", 0)):
        leaks = find_leaks({split: read(name, split) for split in ("train", "dev")})
        assert sum(leak.count for leak in leaks) == count
        assert load_task(name).leak == ("report" if count else "refuse")
