"""Recipes for monolingual, multilingual and domain-specific models in published sizes. All are variants of
the recipes for BERT, RoBERTa or T5.
"""

from dataclasses import replace

from trainers.config.job import BatchSize, TrainingBudget
from trainers.config.pretraining import Data, LengthPhase, Pretraining
from trainers.objectives.masked import Masked
from trainers.recipes.encoder_decoders import t5_v1_1_base
from trainers.recipes.encoders import bert_base, roberta_base


def mbert_base() -> Pretraining:
    """Multilingual BERT, cased, for 104 languages (google-research/bert, multilingual.md): `bert_base` with a
    vocabulary of 119,547; 178,566,653 parameters with its heads.

    No paper says how it was trained; steps, batches and learning rate are those of `bert_base`. Each language
    is a domain of the corpus, sampled in proportion to its number of tokens to the power of 0.7.
    """
    bert = bert_base()
    return replace(
        bert,
        name="mbert_base",
        model=replace(bert.model, vocab_size=119_547),
        data=replace(bert.data, weights="tokens**0.7"),
    )


def xlmr_base() -> Pretraining:
    """XLM-R base, for 100 languages (Conneau et al., 2020, section 3.1): `roberta_base` with a vocabulary of
    250,002; 278,295,186 parameters (the paper gives 270 M).

    Trained for 1,500,000 steps of 8,192 sequences. Each language is a domain of the corpus, sampled in
    proportion to its number of tokens to the power of 0.3. All other settings are those of `roberta_base`,
    including the learning rate and the warm-up, which the paper does not give.
    """
    roberta = roberta_base()
    return replace(
        roberta,
        name="xlmr_base",
        model=replace(roberta.model, vocab_size=250_002),
        data=replace(roberta.data, weights="temperature"),
        budget=TrainingBudget(steps=1_500_000),
    )


def camembert_base() -> Pretraining:
    """CamemBERT-base, for French (Martin et al., 2020, section 4): `roberta_base` with a vocabulary of 32,005
    and whole-word masking; 110,655,493 parameters.

    Trained for 100,000 steps of 8,192 sequences of 512 tokens. The learning rate peaks at 7e-4 after 10,000
    warm-up steps and falls linearly to 0. All other settings are those of `roberta_base`.
    """
    roberta = roberta_base()
    return replace(
        roberta,
        name="camembert_base",
        model=replace(roberta.model, vocab_size=32_005),
        objective=Masked(unit="words", marks="rows"),
        budget=TrainingBudget(steps=100_000),
        optimizer=replace(roberta.optimizer, learning_rate=7e-4),
        schedule=replace(roberta.schedule, warmup_steps=10_000),
    )


def alephbert_base() -> Pretraining:
    """AlephBERT-base, for Hebrew (Seker et al., 2021): `bert_base` with a WordPiece vocabulary of 52,000 and
    masked tokens as its only objective; 126,030,880 parameters. The published model has one token type, and
    so 768 parameters fewer.

    The authors divided the data by sentence length into sections of up to 64, 128 and 512 tokens. These
    lengths and the learning rate of 1e-4 are from their code (OnlpLab/AlephBERT, bert_train.py). Here each of
    three phases has rows of one of these lengths, with sentences of any length; the division of the steps
    among the phases is our choice. Steps, batches and warm-up are those of `bert_base`.
    """
    bert = bert_base()
    phases = (LengthPhase(700_000, 64), LengthPhase(900_000, 128))
    return replace(
        bert,
        name="alephbert_base",
        model=replace(bert.model, vocab_size=52_000, sentence_head=False),
        objective=Masked(),
        data=Data(sequence_length=512, phases=phases, packing="best_fit"),
    )


def scibert_base() -> Pretraining:
    """SciBERT, uncased, for scientific papers (Beltagy et al., 2019, section 3.2): `bert_base` with a
    vocabulary of 31,090 built from such papers; 110,543,220 parameters with its heads.

    Pairs have 128 tokens first and 512 later, as in `bert_base`. The authors trained with each length until
    the loss no longer fell, and give no number of steps: steps, batches and learning rate are those of
    `bert_base`.
    """
    bert = bert_base()
    return replace(bert, name="scibert_base", model=replace(bert.model, vocab_size=31_090))


def bertweet_base() -> Pretraining:
    """BERTweet-base, for English tweets (Nguyen et al., 2020, section 2): `roberta_base` with a vocabulary of
    64,001 and 128 positions; 134,965,505 parameters.

    Trained for 950,000 steps (40 epochs in the paper) of 7,000 sequences of 128 tokens. The learning rate
    peaks at 4e-4 after 47,500 warm-up steps (two epochs). All other settings are those of `roberta_base`. To
    replace user names and URLs as in the paper, set `normalisation: tweets` for the source (docs/sources.md).
    """
    roberta = roberta_base()
    return replace(
        roberta,
        name="bertweet_base",
        model=replace(roberta.model, vocab_size=64_001, positions=128),
        data=replace(roberta.data, sequence_length=128),
        batch=BatchSize(sequences=7000),
        budget=TrainingBudget(steps=950_000),
        optimizer=replace(roberta.optimizer, learning_rate=4e-4),
        schedule=replace(roberta.schedule, warmup_steps=47_500),
    )


def mt5_base() -> Pretraining:
    """mT5-base, 582,401,280 parameters, for 101 languages (Xue et al., 2021, sections 3.1 and 3.2):
    `t5_v1_1_base` with a vocabulary of 250,112.

    It is trained for 1,000,000 steps of 1,024 sequences of 1,024 tokens. Each language is a domain of the
    corpus, sampled in proportion to its number of tokens to the power of 0.3. The optimizer and the schedule
    are those of `t5_base`; the paper uses AdaFactor.
    """
    t5 = t5_v1_1_base()
    return replace(
        t5,
        name="mt5_base",
        model=replace(t5.model, vocab_size=250_112, positions=1024),
        data=replace(t5.data, sequence_length=1024, weights="temperature"),
        batch=BatchSize(sequences=1024),
        budget=TrainingBudget(steps=1_000_000),
    )


def mt5_small() -> Pretraining:
    """mT5-small, 300,176,768 parameters: `mt5_base` with 8 layers of width 512, 6 heads of width 64 and an
    inner size of 1,024.
    """
    base = mt5_base()
    sizes = {"layers": 8, "width": 512, "heads": 6, "head_width": 64, "feed_forward": 1024}
    return replace(base, name="mt5_small", model=replace(base.model, **sizes))  # type: ignore[arg-type]
