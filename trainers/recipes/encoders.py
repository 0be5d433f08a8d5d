"""Recipes for encoders in published sizes: BERT, RoBERTa, SpanBERT, DeBERTa, XLNet, ALBERT, ModernBERT and
ELECTRA.
"""

from dataclasses import replace

from trainers.config.architecture import Model
from trainers.config.job import BatchSize, Checkpoints, Execution, Optimizer, Schedule, TrainingBudget
from trainers.config.pretraining import Data, LengthPhase, Pretraining, Validation
from trainers.objectives.masked import Masked
from trainers.objectives.permutation import Permutation
from trainers.objectives.replaced_tokens import ReplacedTokens
from trainers.objectives.sentences.next_sentence import NextSentence
from trainers.objectives.sentences.sentence_order import SentenceOrder
from trainers.objectives.span_boundary import SpanBoundary


def bert_base() -> Pretraining:
    """BERT-base (Devlin et al., 2019, appendix A.2), 110,106,428 parameters with its heads for masked tokens
    and pairs.

    It is trained in bf16 for 1,000,000 steps of 256 pairs, which have 128 tokens up to step 900,000 and then
    512. The pairs are from 10 copies of the data, each with its own masks and pairings. Adam's learning rate
    rises to 1e-4 over 10,000 steps and then falls linearly to 0. Betas are 0.9 and 0.999, weight decay is
    0.01 and dropout 0.1. Epsilon 1e-6, clipping at 1 and the weight decay of embeddings are from the authors'
    code.

    Three details of the authors' training are left out: the 10 % of rows that are short on purpose
    (`short_seq_prob`); Adam without bias correction, which makes larger updates in the first warm-up steps;
    and the truncation of initial weights at two standard deviations (here they are normally distributed).
    """
    return Pretraining(
        name="bert_base",
        model=Model(
            "bert", layers=12, width=768, heads=12, positions=512, vocab_size=30522, dropout=0.1, sentence_head=True
        ),
        objective=NextSentence(copies=10, exchanges=10),
        data=Data(sequence_length=512, phases=(LengthPhase(900_000, 128),), packing="segment_pairs", isolation=False),
        batch=BatchSize(sequences=256),
        budget=TrainingBudget(steps=1_000_000),
        optimizer=Optimizer(
            learning_rate=1e-4, weight_decay=0.01, betas=(0.9, 0.999), epsilon=1e-6, decay_embeddings=True
        ),
        schedule=Schedule(kind="linear", warmup_steps=10_000, final_fraction=0.0),
        precision="bf16",
        validation=Validation(every=5000, tokens=1_048_576),
        checkpoints=Checkpoints(every=5000, keep=3),
        execution=Execution(zero_stage=1),
    )


def bert_large() -> Pretraining:
    """BERT-large (Devlin et al., 2019): `bert_base` with 24 layers of width 1,024 and 16 heads."""
    base = bert_base()
    return replace(
        base,
        name="bert_large",
        model=replace(base.model, layers=24, width=1024, heads=16),
    )


def roberta_base() -> Pretraining:
    """RoBERTa-base, 124,697,433 parameters (Liu et al., 2019, section 5 and table 9): `bert_base` without
    sentence pairs, with dynamic masks. Each row is filled with whole sentences, from several documents if
    needed, and the documents of a row attend to one another.

    It is trained for 500,000 steps of 8,192 sequences of 512 tokens. The learning rate peaks at 6e-4 after
    24,000 warm-up steps, betas are 0.9 and 0.98, and gradients are not clipped.
    """
    bert = bert_base()
    return replace(
        bert,
        name="roberta_base",
        model=replace(bert.model, architecture="roberta", sentence_head=False, vocab_size=50265),
        objective=Masked(marks="rows"),
        data=Data(sequence_length=512, packing="full_sentences", isolation=False),
        batch=BatchSize(sequences=8192),
        budget=TrainingBudget(steps=500_000),
        optimizer=replace(bert.optimizer, learning_rate=6e-4, betas=(0.9, 0.98), gradient_clipping=0.0),
        schedule=replace(bert.schedule, warmup_steps=24_000),
    )


def roberta_large() -> Pretraining:
    """RoBERTa-large, 355,412,057 parameters (Liu et al., 2019, table 9): `roberta_base` with 24 layers of
    width 1,024, at 4e-4 after 30,000 warm-up steps.
    """
    base = roberta_base()
    return replace(
        base,
        name="roberta_large",
        model=replace(base.model, layers=24, width=1024, heads=16),
        optimizer=replace(base.optimizer, learning_rate=4e-4),
        schedule=replace(base.schedule, warmup_steps=30_000),
    )


def spanbert_large() -> Pretraining:
    """SpanBERT (Joshi et al., 2020, sections 3 and 4.2), 336,970,980 parameters with its heads for masked
    tokens and span boundaries: `bert_large` with a cased vocabulary, on single texts, with masked spans and
    the span boundary objective.

    It is trained for 2,400,000 steps of 256 sequences of 512 tokens. The learning rate peaks at 1e-4 after
    10,000 warm-up steps and then falls linearly to 0. Betas are 0.9 and 0.999, epsilon is 1e-8, and weight
    decay and dropout are 0.1. A text gets a new mask each time it is read.
    """
    bert = bert_large()
    return replace(
        bert,
        name="spanbert_large",
        model=replace(bert.model, vocab_size=28996, sentence_head=False, boundary_head=True),
        objective=SpanBoundary(),
        data=Data(sequence_length=512),
        budget=TrainingBudget(steps=2_400_000),
        optimizer=replace(bert.optimizer, weight_decay=0.1, epsilon=1e-8),
    )


def deberta_v2_xlarge() -> Pretraining:
    """DeBERTa-v2-xlarge (He et al., 2021, section 5.2.1 and table 8; microsoft/deberta-v2-xlarge):
    887,871,588 parameters with the head for masked tokens and the position table of its enhanced mask
    decoder; 884,593,152 without these, as published.

    Trained for 1,000,000 steps of 2,048 sequences of 512 tokens, in bf16. The learning rate peaks at 1.5e-4
    after 10,000 warm-up steps and falls linearly to 0. Betas are 0.9 and 0.999, epsilon is 1e-6, weight decay
    is 0.01, dropout is 0.1, and gradients are clipped at 1. Spans of up to three words are masked.
    """
    bert = bert_base()
    return replace(
        bert,
        name="deberta_v2_xlarge",
        model=Model(
            "deberta_v2", layers=24, width=1536, heads=24, positions=512, vocab_size=128100, dropout=0.1, convolution=True,
            mask_decoder=True,
        ),
        objective=Masked(unit="spans", span_words=3),
        data=Data(sequence_length=512),
        batch=BatchSize(sequences=2048),
        optimizer=Optimizer(learning_rate=1.5e-4, weight_decay=0.01, betas=(0.9, 0.999), epsilon=1e-6),
    )  # fmt: skip


def deberta_base() -> Pretraining:
    """DeBERTa-base (He et al., 2021, appendix A.2; microsoft/deberta-base): 139,637,337 parameters with the
    head for masked tokens and the position table of its enhanced mask decoder; 138,601,728 without these, as
    published. Its vocabulary is GPT-2's with BERT's special tokens.

    The training settings are those of `deberta_v2_xlarge`, except for a learning rate of 2e-4.
    """
    xlarge = deberta_v2_xlarge()
    return replace(
        xlarge,
        name="deberta_base",
        model=Model(
            "deberta", layers=12, width=768, heads=12, positions=512, vocab_size=50265, dropout=0.1, mask_decoder=True
        ),
        optimizer=replace(xlarge.optimizer, learning_rate=2e-4),
    )


def deberta_large() -> Pretraining:
    """DeBERTa-large: `deberta_base` with 24 layers of width 1,024 and 16 heads. It has 406,789,209 parameters
    with the head for masked tokens and the position table; 405,163,008 without these, as published.
    """
    base = deberta_base()
    return replace(base, name="deberta_large", model=replace(base.model, layers=24, width=1024, heads=16))


def deberta_v3_base() -> Pretraining:
    """DeBERTaV3-base (He et al., 2023, section 5.1 and appendix): a discriminator of 184,424,449 parameters
    with its head (183,831,552 without the head, as published) and a generator of half its depth, with
    gradient-disentangled embedding sharing.

    It is trained in bf16 for 500,000 steps of 8,192 sequences of 512 tokens. The learning rate rises to 6e-4
    over 10,000 steps, then falls linearly to 0. Betas are 0.9 and 0.98, epsilon is 1e-6, weight decay is
    0.01, dropout is 0.1, and gradients are clipped at 1. In the generator's input, every chosen token is
    masked.

    The authors update the generator before its tokens reach the discriminator; here one step updates both.
    """
    xlarge = deberta_v2_xlarge()
    sizes = {
        "layers": 12,
        "width": 768,
        "heads": 12,
        "generator_size": 1.0,
        "generator_layers": 6,
        "convolution": False,
    }
    return replace(
        xlarge,
        name="deberta_v3_base",
        model=replace(xlarge.model, **sizes),  # type: ignore[arg-type]
        objective=ReplacedTokens(mask_share=1.0),
        batch=BatchSize(sequences=8192),
        budget=TrainingBudget(steps=500_000),
        optimizer=replace(xlarge.optimizer, learning_rate=6e-4, betas=(0.9, 0.98)),
    )


def xlnet_large() -> Pretraining:
    """XLNet-Large (Yang et al., 2019, section 3.1 and appendix A.4.1): 360,300,800 parameters with its output
    layer.

    It is trained in bf16 for 500,000 steps of 8,192 sequences of 512 tokens. The learning rate peaks at 4e-4
    after 40,000 warm-up steps and then falls linearly to 0. Epsilon is 1e-6, weight decay 0.01 and dropout
    0.1. One in six tokens is predicted, in spans of up to five.

    Left out: recurrence from one window of text to the next (for this, set `data.bptt=512` and longer rows);
    pairs of segments in one input; and separate orders for each half of a row.
    """
    bert = bert_large()
    return replace(
        bert,
        name="xlnet_large",
        model=replace(bert.model, architecture="xlnet", vocab_size=32000, sentence_head=False),
        objective=Permutation(),
        data=Data(sequence_length=512),
        batch=BatchSize(sequences=8192),
        budget=TrainingBudget(steps=500_000),
        optimizer=replace(bert.optimizer, learning_rate=4e-4),
        schedule=replace(bert.schedule, warmup_steps=40_000),
    )


def xlnet_base() -> Pretraining:
    """XLNet-base (Yang et al., 2019, section 3.4; zihangdai/xlnet), 116,750,336 parameters with its output
    layer: `xlnet_large` with the layers, width and heads of BERT-base.

    The paper does not give the steps, batch size or learning rate for this size; here they are those of
    `bert_base`.
    """
    large, bert = xlnet_large(), bert_base()
    return replace(
        large,
        name="xlnet_base",
        model=replace(large.model, layers=12, width=768, heads=12),
        batch=bert.batch,
        budget=bert.budget,
        optimizer=bert.optimizer,
        schedule=bert.schedule,
    )


def albert_base() -> Pretraining:
    """ALBERT-base (Lan et al., 2020, tables 1 and 4): 11,813,810 parameters with its heads for masked tokens
    and sentence order. All 12 layers share their parameters, and embeddings have width 128.

    It is trained in bf16 for 125,000 steps of 4,096 pairs of 512 tokens (section 4.1). The learning rate
    rises to 6e-4 over 3,125 steps and then falls linearly to 0. Weight decay 0.01, epsilon 1e-6 and clipping
    at 1 are from the authors' code.

    Left out: LAMB at 1.76e-3 (here AdamW at RoBERTa-base's learning rate); masked n-grams of up to three
    words (here single words); and the 10 % of rows that are short on purpose.
    """
    bert = bert_base()
    model = Model(
        "albert", layers=12, width=768, heads=12, positions=512, vocab_size=30000, dropout=0.1, sentence_head=True,
        embedding_size=128,
    )  # fmt: skip
    return replace(
        bert,
        name="albert_base",
        model=model,
        objective=SentenceOrder(unit="words"),
        data=replace(bert.data, phases=()),
        batch=BatchSize(sequences=4096),
        budget=TrainingBudget(steps=125_000),
        optimizer=replace(bert.optimizer, learning_rate=6e-4),
        schedule=replace(bert.schedule, warmup_steps=3125),
    )


def _albert(name: str, base: Pretraining, **sizes: float) -> Pretraining:
    """Return the recipe of a larger ALBERT: `base` with other `sizes` and RoBERTa-large's learning rate."""
    optimizer = replace(base.optimizer, learning_rate=4e-4)
    return replace(base, name=name, model=replace(base.model, **sizes), optimizer=optimizer)  # type: ignore[arg-type]


def albert_large() -> Pretraining:
    """ALBERT-large, 17,847,474 parameters: `albert_base` with 24 layers of width 1,024 and 16 heads, at
    RoBERTa-large's learning rate of 4e-4.
    """
    return _albert("albert_large", albert_base(), layers=24, width=1024, heads=16)


def albert_xlarge() -> Pretraining:
    """ALBERT-xlarge, 59,021,490 parameters: `albert_large` with layers of width 2,048 and 32 heads."""
    return _albert("albert_xlarge", albert_large(), width=2048, heads=32)


def albert_xxlarge() -> Pretraining:
    """ALBERT-xxlarge, 223,158,450 parameters (the paper gives 235 M): `albert_large` with 12 layers of width
    4,096 and 64 heads, without dropout (section 4.8).
    """
    return _albert("albert_xxlarge", albert_large(), layers=12, width=4096, heads=64, dropout=0.0)


def modernbert_base() -> Pretraining:
    """The first training phase of ModernBERT-base, 149,655,232 parameters (Warner et al., 2024, section 2.2
    and appendix A): 1.719 T tokens in sequences of 1,024.

    Batches have 4,608 sequences, and 30 % of the tokens are masked. The learning rate reaches 8e-4 after 3 B
    tokens, stays constant, and decays to 0 over the last 3 % of the steps; in the paper, the decay follows a
    second phase with longer sequences. Betas 0.9 and 0.98, weight decay 1e-5.

    Left out: StableAdamW, which limits the update of each tensor separately (here the global gradient norm is
    clipped); the growth of the batch from 768 sequences over the first 50 B tokens; and the 1 - sqrt shape of
    the decay (here it is linear).
    """
    return Pretraining(
        name="modernbert_base",
        model=Model("modernbert", layers=22, width=768, heads=12, positions=8192, vocab_size=50368),
        objective=Masked(rate=0.3),
        data=Data(sequence_length=1024, packing="best_fit"),
        batch=BatchSize(sequences=4608),
        budget=TrainingBudget(tokens=1_719_000_000_000),
        optimizer=Optimizer(learning_rate=8e-4, weight_decay=1e-5, betas=(0.9, 0.98), epsilon=1e-6),
        schedule=Schedule(kind="wsd", warmup_steps=636, final_fraction=0.0, decay_fraction=0.03),
        precision="bf16",
        validation=Validation(every=1000, tokens=1_048_576),
        checkpoints=Checkpoints(every=1000, keep=3),
        execution=Execution(zero_stage=1),
    )


def electra_small() -> Pretraining:
    """ELECTRA-small (Clark et al., 2020, table 6): a discriminator of 13,549,057 parameters and a generator
    of a quarter of its width, which share embeddings of width 128.

    Trained for 1,000,000 steps of 128 sequences of 128 tokens, in bf16. The learning rate peaks at 5e-4 after
    10,000 warm-up steps and falls linearly to 0. Betas are 0.9 and 0.999, epsilon is 1e-6, weight decay is
    0.01 (also for embeddings), and dropout is 0.1. Gradients are clipped at 1, as in the authors' code. The
    generator replaces 15 % of the tokens.

    Unlike the authors' code, this recipe uses Adam with bias correction, does not divide rows into two
    segments, and shortens none of them (the authors shorten 5 %). Rows are also filled across documents,
    which do not attend to one another.
    """
    return Pretraining(
        name="electra_small",
        model=Model(
            "electra", layers=12, width=256, heads=4, positions=512, vocab_size=30522, dropout=0.1,
            embedding_size=128, generator_size=0.25,
        ),
        objective=ReplacedTokens(),
        data=Data(sequence_length=128),
        batch=BatchSize(sequences=128),
        budget=TrainingBudget(steps=1_000_000),
        optimizer=Optimizer(
            learning_rate=5e-4, weight_decay=0.01, betas=(0.9, 0.999), epsilon=1e-6, decay_embeddings=True
        ),
        schedule=Schedule(kind="linear", warmup_steps=10_000, final_fraction=0.0),
        precision="bf16",
        validation=Validation(every=5000, tokens=1_048_576),
        checkpoints=Checkpoints(every=5000, keep=3),
        execution=Execution(zero_stage=1),
    )  # fmt: skip


def electra_base() -> Pretraining:
    """ELECTRA-base (Clark et al., 2020, table 6): `electra_small` with a discriminator as large as BERT-base
    (109,483,009 parameters), a generator of a third of its width, and embeddings of width 768.

    Trained for 766,000 steps of 256 sequences of 512 tokens, with a learning rate of 2e-4.
    """
    small = electra_small()
    return replace(
        small,
        name="electra_base",
        model=replace(small.model, width=768, heads=12, embedding_size=768, generator_size=1 / 3),
        data=replace(small.data, sequence_length=512),
        batch=BatchSize(sequences=256),
        budget=TrainingBudget(steps=766_000),
        optimizer=replace(small.optimizer, learning_rate=2e-4),
    )


def electra_large() -> Pretraining:
    """ELECTRA-large (Clark et al., 2020, section 3.4 and table 6): `electra_base` with a discriminator the
    size of BERT-large (335,142,913 parameters), a generator of a quarter of its width, and embeddings of
    width 1,024.

    Trained for 1,750,000 steps of 2,048 sequences. The generator replaces 25 % of the tokens.
    """
    base = electra_base()
    return replace(
        base,
        name="electra_large",
        model=replace(base.model, layers=24, width=1024, heads=16, embedding_size=1024, generator_size=0.25),
        objective=ReplacedTokens(rate=0.25),
        batch=BatchSize(sequences=2048),
        budget=TrainingBudget(steps=1_750_000),
    )
