"""Metrics equal their reference library, script or definition, on ordinary and on adversarial cases."""

import random
import re
import string
import warnings
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.tasks.schema.metric_names import METRIC_KINDS
from trainers.tasks.scores import METRICS, require_libraries
from trainers.tasks.scores.answer_scores import best_threshold, normalise_answer
from trainers.tasks.scores.outcomes import Outcomes
from trainers.tasks.scores.resampling import score


def value(name, outcomes):
    statistics = METRICS[name].statistics(outcomes)
    return METRICS[name].value(statistics, np.ones((1, len(statistics))))[0]


def test_every_metric_has_kinds_and_a_source():
    assert set(METRICS) == set(METRIC_KINDS)
    assert all(metric.source for metric in METRICS.values())


LABELS = [
    ([0, 1, 1, 0, 1], [0, 1, 0, 0, 1]),
    ([0, 0, 0], [0, 0, 0]),
    ([1, 1, 1], [0, 0, 0]),
    ([0, 1, 0, 1], [1, 1, 1, 1]),
    ([0], [1]),
    ([0, 1, 2, 2, 1, 0, 2], [0, 2, 2, 2, 1, 1, 0]),
    ([0, 0, 1, 1], [2, 2, 2, 2]),
    ([2, 2, 2], [2, 2, 2]),
]


def sklearn_values(gold, predicted):
    metrics = pytest.importorskip("sklearn.metrics")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "accuracy": metrics.accuracy_score(gold, predicted),
            "macro_f1": metrics.f1_score(gold, predicted, average="macro"),
            "micro_f1": metrics.f1_score(gold, predicted, average="micro"),
            "matthews": metrics.matthews_corrcoef(gold, predicted),
            "f1": metrics.f1_score(gold, predicted, labels=[1], average="macro"),
        }


@pytest.mark.parametrize(("gold", "predicted"), LABELS)
def test_metrics_of_labels_are_those_of_scikit_learn(gold, predicted):
    outcomes = Outcomes(np.array(gold), np.array(predicted), labels=("a", "b", "c", "never"))
    for name, expected in sklearn_values(gold, predicted).items():
        assert value(name, outcomes) == pytest.approx(expected, abs=1e-12), name


@pytest.mark.long
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40))
def test_metrics_of_any_labels_are_those_of_scikit_learn(pairs):
    gold, predicted = np.array(pairs).T
    outcomes = Outcomes(gold, predicted, labels=("a", "b", "c", "d"))
    for name, expected in sklearn_values(gold, predicted).items():
        assert value(name, outcomes) == pytest.approx(expected, abs=1e-12), name


def test_a_prediction_of_no_label_is_wrong_as_one_more_label_would_be():
    metrics = pytest.importorskip("sklearn.metrics")
    gold, predicted = np.array([0, 1, 1, 0, 1, 0]), np.array([0, 1, -100, -100, 0, 0])
    outcomes = Outcomes(gold, predicted, labels=("a", "b"))
    assert value("accuracy", outcomes) == 0.5
    assert value("matthews", outcomes) == pytest.approx(metrics.matthews_corrcoef(gold, predicted))
    assert value("f1", outcomes) == pytest.approx(metrics.f1_score(gold, predicted, labels=[1], average="macro"))


def test_f1_is_of_the_positive_label():
    outcomes = Outcomes(np.array([0, 0, 1]), np.array([0, 1, 1]), labels=("a", "b"), positive=0)
    assert value("f1", outcomes) == pytest.approx(2 / 3)


def test_a_question_counts_when_all_its_answers_are_right():
    gold, predicted = np.array([1, 0, 1, 1, 0]), np.array([1, 0, 1, 0, 0])
    outcomes = Outcomes(gold, predicted, labels=("no", "yes"), groups=np.array([0, 0, 1, 1, 2]))
    assert value("question_accuracy", outcomes) == pytest.approx(2 / 3)
    assert score(METRICS["question_accuracy"], outcomes).n == 3


NUMBERS = [
    ([1.0, 2.0, 3.0, 4.0], [1.1, 1.9, 3.2, 3.8]),
    ([0.0, 5.0, 5.0, 2.5, 2.5], [5.0, 5.0, 0.0, 1.0, 1.0]),
    ([1e9, 1e9 + 1, 1e9 + 2], [1.0, 2.0, 4.0]),
    ([1.0, 2.0], [2.0, 1.0]),
    ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]),
    ([1.0, 2.0, 3.0], [0.1, 0.1, 0.1]),
]


@pytest.mark.parametrize(("gold", "predicted"), NUMBERS)
def test_correlations_are_those_of_scipy(gold, predicted):
    stats = pytest.importorskip("scipy.stats")
    outcomes = Outcomes(np.array(gold), np.array(predicted))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = {"pearson": stats.pearsonr(gold, predicted)[0], "spearman": stats.spearmanr(gold, predicted)[0]}
    for name, number in expected.items():
        assert value(name, outcomes) == pytest.approx(0.0 if np.isnan(number) else number, abs=1e-9), name


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 3)), min_size=3, max_size=12))
def test_a_weight_of_two_is_the_same_as_two_copies(rows):
    stats = pytest.importorskip("scipy.stats")
    gold, predicted, weights = np.array(rows, float).T
    copies = weights.astype(int)
    x, y = np.repeat(gold, copies), np.repeat(predicted, copies)
    statistics = np.stack([gold, predicted], axis=1)
    if len(set(x)) < 2 or len(set(y)) < 2:
        return
    assert METRICS["spearman"].value(statistics, weights[None])[0] == pytest.approx(stats.spearmanr(x, y)[0], abs=1e-9)
    assert METRICS["pearson"].value(statistics, weights[None])[0] == pytest.approx(stats.pearsonr(x, y)[0], abs=1e-9)


TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-creative-work", "I-creative-work")


def tag_outcomes(sentences):
    gold = [[TAGS.index(tag) for tag in gold.split()] for gold, _ in sentences]
    predicted = [[TAGS.index(tag) for tag in predicted.split()] for _, predicted in sentences]
    offsets = np.concatenate([[0], np.cumsum([len(tags) for tags in gold])])
    return Outcomes(np.concatenate(gold), np.concatenate(predicted), labels=TAGS, offsets=offsets)


def seqeval_f1(sentences):
    metrics = pytest.importorskip("seqeval.metrics")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return metrics.f1_score(
            [gold.split() for gold, _ in sentences], [predicted.split() for _, predicted in sentences]
        )


@pytest.mark.parametrize(
    "sentences",
    [
        [("B-PER I-PER O B-LOC", "B-PER I-PER O B-LOC")],
        [("B-PER I-PER O B-LOC", "B-PER O O B-LOC")],
        [("O O", "O O")],
        [("O O", "I-PER O")],
        [("B-PER I-PER", "I-PER I-PER")],
        [("B-PER I-PER", "B-PER I-LOC")],
        [("B-PER B-PER", "B-PER I-PER")],
        [("O B-PER", "O B-PER"), ("I-PER O", "I-PER O")],
        [("B-creative-work I-creative-work", "B-creative-work I-creative-work"), ("O", "B-LOC")],
        [("B-LOC I-PER I-PER O", "O I-PER I-PER I-PER")],
    ],
)
def test_f1_of_entities_is_that_of_seqeval(sentences):
    assert value("entity_f1", tag_outcomes(sentences)) == pytest.approx(seqeval_f1(sentences))


@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(TAGS), st.sampled_from(TAGS)), min_size=1, max_size=8),
        min_size=1,
        max_size=5,
    )
)
def test_f1_of_any_entities_is_that_of_seqeval(sentences):
    written = [
        (" ".join(gold for gold, _ in pairs), " ".join(predicted for _, predicted in pairs)) for pairs in sentences
    ]
    assert value("entity_f1", tag_outcomes(written)) == pytest.approx(seqeval_f1(written))


def test_accuracy_of_tags_counts_words():
    assert value("accuracy", tag_outcomes([("O O B-PER", "O O O"), ("O", "O")])) == 0.75


# Each row: prediction, references, exact match and F1 of SQuAD 1.1, and of 2.0. The values are those of the two official scripts.
ANSWERS = [
    ("Denver Broncos", ["The Denver Broncos!", "Broncos"], (1, 1), (1, 1)),
    ("the Broncos of Denver", ["Denver Broncos"], (0, 0.8), (0, 0.8)),
    ("a an the", ["The"], (1, 0), (1, 1)),
    ("", ["The"], (1, 0), (1, 1)),
    ("", ["Rome"], (0, 0), (0, 0)),
    ("Rome", [], (0, 0), (0, 0)),
    ("", [], (0, 0), (1, 1)),
    ("the", [], (0, 0), (1, 1)),
    ("U.S.", ["US"], (1, 1), (1, 1)),
    ("U.S.", ["U S"], (0, 0), (0, 0)),
    ("twenty-one", ["twenty one"], (0, 0), (0, 0)),
    ("to be or not to be", ["to be"], (0, 0.5), (0, 0.5)),
    ("to be", ["to be or not to be"], (0, 0.5), (0, 0.5)),
    ("An  apple\t a\nday", ["apple day"], (1, 1), (1, 1)),
    ("theatre", ["re"], (0, 0), (0, 0)),
    ("l’été", ["l été"], (0, 0), (0, 0)),
    ("AN-A-THE", ["anathe"], (1, 1), (1, 1)),
    ("x", ["the", "x"], (1, 1), (1, 1)),
    ("the", ["x", "the"], (1, 0), (0, 0)),
]


@pytest.mark.parametrize(("text", "references", "first", "second"), ANSWERS)
def test_answers_are_scored_as_by_the_scripts_of_squad(text, references, first, second):
    for no_answer, expected in ((False, first), (True, second)):
        outcomes = Outcomes(references=[references], texts=[text], no_answer=no_answer)
        assert (value("exact_match", outcomes), value("token_f1", outcomes)) == pytest.approx(expected)


WORDS = st.text(alphabet="abtheanTHE .,-'\t’é", max_size=14)


@given(WORDS)
def test_normalisation_is_what_the_scripts_do_in_steps(text):
    expected = "".join(character for character in text.lower() if character not in set(string.punctuation))
    expected = " ".join(re.sub(r"\b(a|an|the)\b", " ", expected).split())
    assert normalise_answer(text) == expected


@given(WORDS, st.lists(WORDS, min_size=1, max_size=3))
def test_token_f1_is_the_harmonic_mean_of_precision_and_recall(text, references):
    def f1(predicted, gold):
        predicted, gold = normalise_answer(predicted).split(), normalise_answer(gold).split()
        same = sum(min(count, Counter(gold)[word]) for word, count in Counter(predicted).items())
        if not same:
            return 0.0
        precision, recall = same / len(predicted), same / len(gold)
        return 2 * precision * recall / (precision + recall)

    expected = max(f1(text, reference) for reference in references)
    assert value("token_f1", Outcomes(references=[references], texts=[text])) == pytest.approx(expected)


def official_threshold(values, answerable, answered, no_answer):
    """Return the best total and its threshold, found by trying all thresholds. A question above the threshold
    counts as correct if it has no answer.
    """
    best = None
    for threshold in [min(no_answer) - 1, *sorted(set(no_answer))]:
        total = sum(
            (not has) if score > threshold else (value if has or not given else 0.0 if given else 1.0)
            for value, has, given, score in zip(values, answerable, answered, no_answer, strict=True)
        )
        if best is None or total > best[0] + 1e-9:
            best = total, threshold
    return best


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.booleans(), st.booleans(), st.integers(-3, 3)),
        min_size=1,
        max_size=12,
    )
)
def test_the_threshold_of_no_answer_is_the_best_of_all(rows):
    values, answerable, answered, no_answer = (list(column) for column in zip(*rows, strict=True))
    values = [
        (0.0 if not given else value) if has else float(not given)
        for value, has, given in zip(values, answerable, answered, strict=True)
    ]
    found = best_threshold(np.array(values), np.array(answerable), np.array(answered), np.array(no_answer, float))
    assert found == official_threshold(values, answerable, answered, no_answer)[1]


TEXTS = [
    ("the cat sat on the mat", ["the cat sat on the mat"]),
    ("a cat was sitting there", ["the cat sat on the mat", "there was a cat on the mat"]),
    ("", ["something was expected"]),
    ("cats", ["cat"]),
    ("Die Katze, die saß.", ["Die Katze saß auf der Matte."]),
    ("the the the the", ["the cat"]),
    ("one line\nand another one", ["one line\nand two more", "a line"]),
    ("東京 is big", ["東京 is large"]),
]


def text_outcomes(rows):
    return Outcomes(texts=[text for text, _ in rows], references=[references for _, references in rows])


@pytest.mark.parametrize("rows", [TEXTS, TEXTS[:1], TEXTS[2:3], TEXTS[3:5]])
def test_bleu_and_chrf_are_those_of_sacrebleu(rows):
    sacrebleu = pytest.importorskip("sacrebleu")
    outcomes = text_outcomes(rows)
    streams = [[references[i] if i < len(references) else None for _, references in rows] for i in range(2)]
    streams = streams[: max(len(references) for _, references in rows)]
    for name, metric in (("bleu", sacrebleu.BLEU()), ("chrf", sacrebleu.CHRF())):
        expected = metric.corpus_score(outcomes.texts, streams)
        assert value(name, outcomes) == pytest.approx(expected.score)
        assert METRICS[name].signature(outcomes) == str(metric.get_signature())


def test_the_signature_of_bleu_says_what_a_published_number_needs():
    pytest.importorskip("sacrebleu")
    signature = METRICS["bleu"].signature(text_outcomes(TEXTS[:1]))
    assert signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.")


@pytest.mark.parametrize("name", ["rouge1", "rouge2", "rougeL", "rougeLsum"])
def test_rouge_is_that_of_rouge_score_with_stems_and_the_best_reference(name):
    scorer = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer([name], use_stemmer=True)
    expected = [
        max(scorer.score(reference, text)[name].fmeasure for reference in references) for text, references in TEXTS
    ]
    assert value(name, text_outcomes(TEXTS)) == pytest.approx(np.mean(expected))
    assert value("rouge1", text_outcomes([("cats", ["cat"])])) == 1.0


def test_perplexity_weighs_tokens_and_not_examples():
    outcomes = Outcomes(nats=np.array([2.0, 9.0]), tokens=np.array([1.0, 3.0]))
    assert value("perplexity", outcomes) == pytest.approx(np.exp(11 / 4))
    assert not METRICS["perplexity"].higher_is_better


def test_a_missing_library_is_named_with_the_command_that_installs_it(monkeypatch):
    import sys

    from gristmill.errors import UserError

    for module, name, package in (
        ("sacrebleu", "bleu", "sacrebleu"),
        ("rouge_score.rouge_scorer", "rouge1", "rouge-score"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(
            UserError, match=rf"{name} needs {package} .*pip install --constraint constraints.txt .*finetune"
        ):
            value(name, text_outcomes(TEXTS))


def test_a_library_that_is_missing_is_named_before_anything_is_trained(monkeypatch):
    from gristmill.errors import UserError

    require_libraries(["accuracy", "entity_f1", "bleu"])
    monkeypatch.setattr("trainers.tasks.scores.find_spec", lambda name: None)
    require_libraries(["accuracy", "entity_f1", "perplexity"])
    with pytest.raises(UserError, match=r"metrics: rougeL needs rouge-score, which is not installed; run: pip install"):
        require_libraries(["accuracy", "rougeL"])


def test_random_labels_have_no_correlation_within_the_interval():
    generator = random.Random(0)
    gold, predicted = (np.array([generator.randrange(2) for _ in range(500)]) for _ in range(2))
    measured = score(METRICS["matthews"], Outcomes(gold, predicted, labels=("a", "b")))
    assert measured.low < 0 < measured.high
