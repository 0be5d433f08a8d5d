"""Gap sentences: the paper's figure, direct implementations of ROUGE-1 and of the choice of sentences, and
configurations that are refused.
"""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from math import comb

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gristmill.config import override, parse, plain
from gristmill.errors import ConfigError
from tests.trainers.conftest import build_corpus
from tests.trainers.objectives.packed import EOS, FIRST, MASK, VOCABULARY, both_sides, chosen, context, packed
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import Model, fill
from trainers.config.job import BatchSize
from trainers.config.pretraining import Pretraining
from trainers.data.packed_corpus import corpus_of, training_data
from trainers.engine.forward import Forward, tensors
from trainers.engine.losses import losses_of
from trainers.models import build_model
from trainers.objectives.sentences.gap_sentences import GapSentences, choose_gaps
from trainers.recipes import RECIPES
from trainers.rows.batch import IGNORED, PADDING
from trainers.runs.resolve import resolve

FIGURE = [["Pegasus", "is", "mythical", "."], ["It", "is", "pure", "white", "."], ["It", "names", "the", "model", "."]]


def marked(rows):
    """Return a batch of rows of documents. A document is a list of sentences, and a sentence is a list of
    tokens. The first sentence of a document is not marked, because a row may begin inside a sentence.
    """
    batch = packed([[[token for sentence in document for token in sentence] for document in row] for row in rows])
    starts = np.zeros(batch.inputs.shape, bool)
    for row, documents in enumerate(rows):
        column = 0
        for document in documents:
            for number, sentence in enumerate(document):
                starts[row, column] |= number > 0
                column += len(sentence)
    return replace(batch, sentence_starts=starts)


def random_documents(seed, count=6):
    rng = np.random.default_rng(seed)

    def document():
        return [rng.integers(FIRST, FIRST + 12, rng.integers(1, 9)).tolist() for _ in range(rng.integers(1, 9))]

    return [[document() for _ in range(rng.integers(0, 4))] for _ in range(count)]


def rouge_1(sentence, rest):
    """Return the unigram F1 of a sentence against the rest of its document (Lin, 2004), as an exact fraction."""
    matches = sum((Counter(sentence) & Counter(rest)).values())
    precision, recall = Fraction(matches, len(sentence)), Fraction(matches, len(rest))
    return 2 * precision * recall / (precision + recall) if matches else Fraction(0)


def amount(count, rate):
    return max(int(Fraction(str(rate)) * count), 1) if count > 1 else 0


def gaps_of(document, choose, rate):
    """Return the indices of the sentences that are removed from a document if `choose` is `principal` or
    `lead`, chosen as the paper describes.
    """
    numbers = range(len(document))
    if choose == "principal":
        rests = [[token for other in numbers if other != i for token in document[other]] for i in numbers]
        numbers = sorted(numbers, key=lambda i: -rouge_1(document[i], rests[i])) if len(document) > 1 else numbers
    return sorted(numbers[: amount(len(document), rate)])


def pair_of(document, gaps):
    source = [token for i, its in enumerate(document) for token in ([MASK] if i in gaps else its)]
    target = [token for i in gaps for token in document[i]]
    return [*source, EOS], [*target, EOS] if target else []


def test_the_papers_figure():
    numbers = {word: FIRST + i for i, word in enumerate(dict.fromkeys(word for its in FIGURE for word in its))}
    document = [[numbers[word] for word in sentence] for sentence in FIGURE]
    made = both_sides(GapSentences().apply(marked([[document]]), context()))
    assert made == {(0, 0): (pair_of(document, [1])[0], [SPECIAL_IDS["<pad>"], *document[1]], [*document[1], EOS])}
    lead = both_sides(GapSentences(choose="lead").apply(marked([[document]]), context()))
    assert lead[0, 0][::2] == pair_of(document, [0])


@given(st.integers(0, 10_000), st.sampled_from(["principal", "lead"]), st.sampled_from([0.05, 0.3, 0.5, 0.75, 0.99]))
def test_documents_are_cut_as_a_plain_reading_of_the_paper_says(seed, choose, rate):
    rows = random_documents(seed)
    made = both_sides(GapSentences(rate=rate, choose=choose).apply(marked(rows), context()))
    assert made.keys() == {(r, d) for r, row in enumerate(rows) for d in range(len(row))}
    for (row, number), (source, decoder, target) in made.items():
        document = rows[row][number]
        assert (source, target) == pair_of(document, gaps_of(document, choose, rate))
        assert decoder == ([SPECIAL_IDS["<pad>"], *target[:-1]] if target else [])


@given(st.integers(0, 10_000), st.sampled_from([0.05, 0.3, 0.75]))
def test_random_gaps_have_their_share_and_their_order(seed, rate):
    rows = random_documents(seed)
    for (row, number), (source, _, target) in both_sides(
        GapSentences(rate=rate, choose="random").apply(marked(rows), context(seed=seed))
    ).items():
        document = rows[row][number]
        subsets = combinations(range(len(document)), amount(len(document), rate))
        assert any((source, target) == pair_of(document, list(gaps)) for gaps in subsets)


def test_every_set_of_sentences_is_as_likely():
    document = [[FIRST + 2 * i, FIRST + 2 * i + 1] for i in range(6)]
    made = both_sides(GapSentences(rate=0.34, choose="random").apply(marked([[document] * 30] * 50), context()))
    found = Counter(tuple(target) for _, _, target in made.values())
    assert len(found) == comb(6, 2)
    assert sum((many - 100) ** 2 / 100 for many in found.values()) < 42  # chi-square, 14 degrees: p = 1e-4


def test_the_share_of_sentences_is_the_rate_rounded_down_and_at_least_one():
    for count, rate, expected in (
        (2, 0.3, 1),
        (6, 0.3, 1),
        (7, 0.3, 2),
        (10, 0.3, 3),
        (100, 0.29, 29),
        (3, 0.99, 2),
        (3, 1 - 1e-12, 2),
    ):
        held = np.array([0, 1, 1 + count])
        assert choose_gaps(np.zeros(1 + count), held, rate).tolist() == [False] + [True] * expected + [False] * (
            count - expected
        )


@pytest.mark.parametrize("choose", ["principal", "lead"])
def test_a_document_is_cut_as_it_is_alone(choose):
    rows, objective = random_documents(5, 12), GapSentences(choose=choose)
    together = both_sides(objective.apply(marked(rows), context()))
    for (row, number), sides in together.items():
        assert both_sides(objective.apply(marked([[rows[row][number]]]), context()))[0, 0] == sides


def test_random_gaps_are_those_of_the_sample_whatever_the_batch_and_other_samples_have_others():
    batch, objective = marked([[[[FIRST + i, FIRST + 50 + i] for i in range(40)]]] * 12), GapSentences(choose="random")
    whole = [side[2] for side in both_sides(objective.apply(batch, context())).values()]
    assert len(set(map(tuple, whole))) == 12
    for rows in ([7], [3, 0], list(range(11, -1, -1))):
        part = both_sides(objective.apply(chosen(batch, rows), context()))
        assert [side[2] for side in part.values()] == [whole[row] for row in rows]
    assert [side[2] for side in both_sides(objective.apply(batch, context(seed=4))).values()] != whole


@pytest.mark.parametrize(("architecture", "start"), [("t5", "<pad>"), ("bart", "<eos>")])
def test_the_loss_of_a_document_is_that_of_transformers_on_it_alone(architecture, start):
    sizes = fill(Model(architecture, layers=2, width=32, heads=2, positions=128), VOCABULARY)
    model, objective, rows = build_model(sizes, dict(SPECIAL_IDS), 0).eval(), GapSentences(), random_documents(2)
    made = objective.apply(marked(rows), replace(context(), decoder_start=start))
    (loss,) = losses_of(objective.losses)
    with torch.no_grad():
        nats = Forward(model, architecture).eval()(**tensors(made, "cpu"))[loss.name].numpy()
        for (row, number), (source, _, target) in both_sides(made).items():
            here = nats[row][made.decoder.segments[row] == number]
            if target:
                alone = model(input_ids=torch.tensor([source]), labels=torch.tensor([target])).loss
                assert here.mean() == pytest.approx(float(alone), abs=1e-5)
    assert ((nats > 0) == loss.targets(made)).all()
    assert loss.targets(made).sum() == sum(len(side[2]) for side in both_sides(made).values())


def configuration(directory, packing="full_sentences", **changes):
    recipe = RECIPES["tiny_pegasus"]()
    data = replace(recipe.data, corpora=(str(directory),), packing=packing, weights={"plays": 1.0}, sequence_length=64)
    return replace(recipe, data=data, objective=GapSentences(**changes), batch=BatchSize(sequences=8))


@pytest.mark.parametrize("packing", ["concatenate", "best_fit", "documents", "full_sentences", "doc_sentences"])
def test_rows_of_a_corpus_are_not_too_long_and_no_text_is_lost(corpus_directory, packing):
    config = configuration(corpus_directory, packing, choose="random")
    data = training_data(corpus_of(config), config)
    samples = data.order.take(0, 60)
    made = data.rows(samples)
    assert (made.segments != PADDING).sum(1).max() <= 64
    assert (made.decoder.segments != PADDING).sum(1).max() <= 64
    (stream,) = data.packed_phases
    text = stream._packed(samples, 0)
    for row in range(len(made.inputs)):
        kept = made.inputs[row][(made.segments[row] != PADDING) & ~np.isin(made.inputs[row], (MASK, EOS))]
        gone = made.targets[row][(made.targets[row] != IGNORED) & (made.targets[row] != EOS)]
        assert sorted([*kept, *gone]) == sorted(text.inputs[row][text.segments[row] != PADDING])
    targets = (made.targets != IGNORED).any(1)
    assert targets.any()


def test_neither_micro_batches_nor_workers_change_a_row(corpus_directory):
    config = configuration(corpus_directory, choose="random")
    data = training_data(corpus_of(config), config)

    def rows(size, world):
        found = {}
        for rank in range(world):
            for batch in data.micro_batches(0, 24, size, rank, world):
                for (row, number), sides in both_sides(batch).items():
                    found[int(batch.sample[row]), number] = sides
        return found

    whole = rows(24, 1)
    assert {sample for sample, _ in whole} == set(range(24))
    assert any(side[2] for side in whole.values())
    for size, world in ((1, 1), (4, 2), (3, 3)):
        assert rows(size, world) == whole


def test_shards_without_sentences_and_documents_of_one_are_refused(plain_directory, tmp_path):
    config = configuration(plain_directory, "concatenate")
    with pytest.raises(
        ConfigError, match=r"objective: gap_sentences needs sentence starts, which .* does not have; build"
    ):
        training_data(corpus_of(config), config)
    config = configuration(build_corpus(tmp_path, lengths=(1, 5, 11)), "concatenate")
    with pytest.raises(
        ConfigError, match=r"gap_sentences needs documents of 2 .* has none; use sources of longer documents$"
    ):
        training_data(corpus_of(config), config)


def test_a_vocabulary_without_masks_is_refused_before_training(corpus_directory):
    config = configuration(corpus_directory)
    corpus = corpus_of(config)
    kept = {name: number for name, number in corpus.tokenizer.specials.items() if name != "<mask>"}
    resolve(config, corpus)
    with pytest.raises(
        ConfigError, match=r"objective: needs the special <mask>, the tokenizer has none; .*add_reserved"
    ):
        resolve(config, replace(corpus, tokenizer=replace(corpus.tokenizer, specials=kept)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["objective.rate=0"], "rate: got 0.0, allowed above 0 and below 1"),
        (["objective.rate=1"], "rate: got 1.0, allowed above 0 and below 1"),
        (["objective.choose=best"], "choose: got 'best'"),
        (["data.packing=sentence_pairs"], "data.packing: got sentence_pairs with objective gap_sentences"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        parse(Pretraining, override(plain(RECIPES["tiny_pegasus"]()), changes), "x.yaml")


def test_other_models_are_refused(corpus_directory):
    config = configuration(corpus_directory)
    model = Model("llama", layers=1, width=16, heads=2, positions=64)
    with pytest.raises(ConfigError, match=r"got gap_sentences, llama is of the family decoder; allowed .*: bart, t5$"):
        resolve(replace(config, model=model), corpus_of(config))


def test_documents_of_one_sentence_have_no_target_and_their_row_no_loss():
    made = GapSentences().apply(marked([[[[FIRST, FIRST + 1]]], [[[FIRST]], [[FIRST + 1], [FIRST + 2]]]]), context())
    sides = both_sides(made)
    assert sides[0, 0] == ([FIRST, FIRST + 1, EOS], [], [])
    assert sides[1, 0] == ([FIRST, EOS], [], [])
    assert sides[1, 1][2] == [FIRST + 1, EOS]
    assert (made.targets[0] == IGNORED).all()
