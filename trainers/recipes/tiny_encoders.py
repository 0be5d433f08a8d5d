"""Recipes for encoders of toy size, which learn within three minutes on a CPU."""

from dataclasses import replace

from trainers.config.architecture import Model
from trainers.config.job import BatchSize, Checkpoints, Execution, Optimizer, Schedule, TrainingBudget
from trainers.config.pretraining import Data, Pretraining, Validation
from trainers.objectives.characters.masked_characters import MaskedCharacters
from trainers.objectives.characters.masked_subwords import MaskedSubwords
from trainers.objectives.masked import Masked
from trainers.objectives.permutation import Permutation
from trainers.objectives.replaced_tokens import ReplacedTokens
from trainers.objectives.sentences.next_sentence import NextSentence
from trainers.objectives.sentences.quick_thought import QuickThought
from trainers.objectives.sentences.sentence_order import SentenceOrder
from trainers.objectives.sentences.simcse import SimCSE
from trainers.objectives.span_boundary import SpanBoundary
from trainers.objectives.translation_lm import TranslationLM


def tiny_roberta() -> Pretraining:
    """A RoBERTa of toy size that learns within a minute on a CPU; documents do not attend to one another.

    The settings were chosen by measurement on the demo corpus. With initial weights of standard deviation
    0.06, 600 steps at a learning rate of 4e-3 reach a lower loss than a unigram model of the targets; with
    0.02, the gain over that model is less than half as large.
    """
    return Pretraining(
        name="tiny_roberta",
        model=Model("roberta", layers=2, width=64, heads=4, positions=128, initializer_range=0.06),
        objective=Masked(),
        data=Data(sequence_length=128),
        batch=BatchSize(sequences=16),
        budget=TrainingBudget(steps=600),
        optimizer=Optimizer(learning_rate=4e-3, betas=(0.9, 0.98), epsilon=1e-6, weight_decay=0.01),
        schedule=Schedule(kind="linear", warmup_steps=20, final_fraction=0.0),
        validation=Validation(every=200, tokens=32768),
        checkpoints=Checkpoints(every=200, keep=2),
        execution=Execution(zero_stage=1),
    )


def tiny_bert() -> Pretraining:
    """A BERT of toy size with both of its objectives: `tiny_roberta` with BERT's architecture and pairs of
    segments, which attend to each other.
    """
    roberta = tiny_roberta()
    return replace(
        roberta,
        name="tiny_bert",
        model=replace(roberta.model, architecture="bert", sentence_head=True),
        objective=NextSentence(),
        data=replace(roberta.data, packing="segment_pairs", isolation=False),
    )


def tiny_spanbert() -> Pretraining:
    """A SpanBERT of toy size: `tiny_roberta` with BERT's architecture, masked spans and the span boundary objective."""
    roberta = tiny_roberta()
    return replace(
        roberta,
        name="tiny_spanbert",
        model=replace(roberta.model, architecture="bert", boundary_head=True),
        objective=SpanBoundary(),
    )


def tiny_deberta() -> Pretraining:
    """A DeBERTa of toy size, version 2: `tiny_roberta` with DeBERTa-v2's architecture, including its
    convolution and mask decoder, and half the steps.
    """
    roberta = tiny_roberta()
    sizes = {"position_buckets": 32, "convolution": True, "mask_decoder": True}
    return replace(
        roberta,
        name="tiny_deberta",
        model=replace(roberta.model, architecture="deberta_v2", **sizes),  # type: ignore[arg-type]
        budget=TrainingBudget(steps=300),
    )


def tiny_deberta_v1() -> Pretraining:
    """A DeBERTa of toy size, version 1: `tiny_deberta` with version 1's architecture, which distinguishes all
    distances and has no convolution.
    """
    tiny = tiny_deberta()
    first = replace(tiny.model, architecture="deberta", position_buckets=None, convolution=False)
    return replace(tiny, name="tiny_deberta_v1", model=first)


def tiny_deberta_v3() -> Pretraining:
    """A DeBERTaV3 of toy size: `tiny_deberta` without a convolution, with a generator of one layer and
    version 3's objective.

    Rows have 64 tokens, 30 % of the tokens are masked for the generator, twice as many as in the paper, and
    the learning rate is half that of `tiny_roberta`. With 15 % masked in rows of 128 at the full rate, the
    discriminator calls every token original after the same training time.
    """
    tiny = tiny_deberta()
    return replace(
        tiny,
        name="tiny_deberta_v3",
        model=replace(tiny.model, convolution=False, generator_size=1.0, generator_layers=1),
        objective=ReplacedTokens(rate=0.3, mask_share=1.0),
        data=Data(sequence_length=64),
        budget=TrainingBudget(steps=1500),
        optimizer=replace(tiny.optimizer, learning_rate=2e-3),
        validation=replace(tiny.validation, every=500),
        checkpoints=replace(tiny.checkpoints, every=500),
    )


def tiny_canine() -> Pretraining:
    """A CANINE of toy size: `tiny_roberta` with CANINE's architecture and objective, and half as many steps,
    because each takes longer. Rows of 64 tokens contain some 300 characters.
    """
    roberta = tiny_roberta()
    return replace(
        roberta,
        name="tiny_canine",
        model=replace(roberta.model, architecture="canine", positions=1024),
        objective=MaskedSubwords(),
        data=Data(sequence_length=64),
        budget=TrainingBudget(steps=300),
    )


def tiny_canine_c() -> Pretraining:
    """A CANINE-C of toy size: `tiny_canine` with the character decoder and its objective."""
    tiny = tiny_canine()
    return replace(
        tiny,
        name="tiny_canine_c",
        model=replace(tiny.model, character_buckets=1024),
        objective=MaskedCharacters(),
    )


def tiny_xlnet() -> Pretraining:
    """An XLNet of toy size: `tiny_roberta` with XLNet's architecture and objective, and half as many steps,
    because each takes longer.
    """
    roberta = tiny_roberta()
    return replace(
        roberta,
        name="tiny_xlnet",
        model=replace(roberta.model, architecture="xlnet"),
        objective=Permutation(),
        budget=TrainingBudget(steps=300),
    )


def tiny_albert() -> Pretraining:
    """An ALBERT of toy size: `tiny_bert` with ALBERT's architecture, embeddings half as wide as the model,
    and sentence-order prediction instead of next-sentence prediction.
    """
    bert = tiny_bert()
    return replace(
        bert,
        name="tiny_albert",
        model=replace(bert.model, architecture="albert", embedding_size=32),
        objective=SentenceOrder(),
    )


def tiny_electra() -> Pretraining:
    """An ELECTRA of toy size: `tiny_roberta` with ELECTRA's architecture and objective, and a generator of a
    quarter of the discriminator's width.

    Rows have 64 tokens, the generator predicts 30 % of the tokens, twice as many as in the paper, and the
    learning rate is half that of `tiny_roberta`. With 15 % of the tokens, or in rows of 128 at a higher rate,
    the discriminator calls nearly every token original after the same training time.
    """
    roberta = tiny_roberta()
    return replace(
        roberta,
        name="tiny_electra",
        model=replace(roberta.model, architecture="electra", embedding_size=32, generator_size=0.25),
        objective=ReplacedTokens(rate=0.3),
        data=Data(sequence_length=64),
        budget=TrainingBudget(steps=1800),
        optimizer=replace(roberta.optimizer, learning_rate=2e-3),
        validation=replace(roberta.validation, every=600),
        checkpoints=replace(roberta.checkpoints, every=600),
    )


def tiny_simcse() -> Pretraining:
    """SimCSE training of a `tiny_roberta` with 512 positions. Start from a run of that model with
    `init.path=RUN` (docs/families.md).

    Rows have 512 tokens: most rows of 128 would contain only one sentence, and thus no negatives.
    """
    roberta = tiny_roberta()
    return replace(
        roberta,
        name="tiny_simcse",
        model=replace(roberta.model, positions=512, dropout=0.1),
        objective=SimCSE(pooling="mean"),
        data=replace(roberta.data, sequence_length=512, packing="full_sentences"),
        budget=TrainingBudget(steps=100),
        optimizer=replace(roberta.optimizer, learning_rate=2e-4),
        validation=replace(roberta.validation, every=50),
    )


def tiny_quick_thought() -> Pretraining:
    """Quick thoughts with a RoBERTa of toy size: `tiny_roberta` with the objective `quick_thought`, trained
    for 300 steps of 8 rows. Rows have 1,024 tokens, so that each has several sentences.

    The temperature is 32 and the learning rate 2e-3. At a temperature of 1 and a learning rate of 4e-3, in
    rows of 512 tokens, all sentence vectors became equal within 75 steps and stayed equal.
    """
    roberta = tiny_roberta()
    return replace(
        roberta,
        name="tiny_quick_thought",
        model=replace(roberta.model, positions=1024),
        objective=QuickThought(temperature=32.0),
        data=replace(roberta.data, sequence_length=1024, packing="full_sentences"),
        batch=BatchSize(sequences=8),
        budget=TrainingBudget(steps=300),
        optimizer=replace(roberta.optimizer, learning_rate=2e-3),
        validation=replace(roberta.validation, every=100),
    )


def tiny_modernbert() -> Pretraining:
    """A ModernBERT of toy size: `tiny_roberta` with ModernBERT's architecture, one layer with global
    attention and one with local attention.
    """
    roberta = tiny_roberta()
    return replace(roberta, name="tiny_modernbert", model=replace(roberta.model, architecture="modernbert"))


def tiny_translation_lm() -> Pretraining:
    """An XLM of toy size, with translation language modelling: `tiny_roberta` with BERT's architecture, whose
    token types distinguish the two sides of a pair. Pairs are not cut unless they are longer than a row. The
    shards need the column `target`.
    """
    roberta = tiny_roberta()
    return replace(
        roberta,
        name="tiny_translation_lm",
        model=replace(roberta.model, architecture="bert"),
        objective=TranslationLM(),
        data=replace(roberta.data, packing="best_fit"),
    )
