"""Recipes for encoder-decoders, and for the T5 paper's prefix language models, which are decoders."""

from dataclasses import replace
from typing import Literal

from trainers.config.architecture import Model
from trainers.config.job import BatchSize, Checkpoints, Execution, Optimizer, Schedule, TrainingBudget
from trainers.config.pretraining import Data, Pretraining, Validation
from trainers.objectives.multitask import Multitask
from trainers.objectives.prefix_lm import PrefixLM
from trainers.objectives.sentences.gap_sentences import GapSentences
from trainers.objectives.spans.denoising import Denoising
from trainers.objectives.spans.salient_spans import SalientSpans
from trainers.objectives.spans.span_corruption import SpanCorruption


def t5_base() -> Pretraining:
    """T5-base, 222,903,552 parameters: the baseline of Raffel et al. (2020, section 3.1).

    It is trained in bf16 for 2^19 steps of 128 sequences of 512 tokens, with dropout 0.1. Noise spans average
    3 tokens and cover 15 % of the tokens.

    The authors use AdaFactor with a rate relative to the root mean square of each tensor: 0.01 for 10,000
    steps, after which it falls with the inverse square root of the step. Here the rate of AdamW warms up to
    1e-3 over 10,000 steps and then falls in the same way.
    """
    return Pretraining(
        name="t5_base",
        model=Model("t5", layers=12, width=768, heads=12, positions=512, vocab_size=32128, dropout=0.1),
        objective=SpanCorruption(),
        data=Data(sequence_length=512),
        batch=BatchSize(sequences=128),
        budget=TrainingBudget(steps=2**19),
        optimizer=Optimizer(learning_rate=1e-3, weight_decay=0.0, betas=(0.9, 0.999)),
        schedule=Schedule(kind="inverse_sqrt", warmup_steps=10_000, final_fraction=0.0),
        precision="bf16",
        validation=Validation(every=5000, tokens=1_048_576),
        checkpoints=Checkpoints(every=5000, keep=3),
        execution=Execution(zero_stage=1),
    )


def _t5(name: str, base: Pretraining, zero_stage: Literal[1, 2, 3] = 1, **sizes: int) -> Pretraining:
    execution = replace(base.execution, zero_stage=zero_stage)
    return replace(base, name=name, model=replace(base.model, **sizes), execution=execution)  # type: ignore[arg-type]


def t5_small() -> Pretraining:
    """T5-small, 60,506,624 parameters (Raffel et al., 2020, section 3.7): `t5_base` with 6 layers of width
    512 and 8 heads.
    """
    return _t5("t5_small", t5_base(), layers=6, width=512, heads=8)


def t5_large() -> Pretraining:
    """T5-large, 737,668,096 parameters: `t5_base` with 24 layers of width 1,024 and 16 heads."""
    return _t5("t5_large", t5_base(), layers=24, width=1024, heads=16)


def t5_3b() -> Pretraining:
    """T5-3B, 2,851,598,336 parameters: `t5_large` with 32 heads of width 128, an inner size of 16,384 and
    ZeRO stage 2.
    """
    return _t5("t5_3b", t5_large(), 2, heads=32, head_width=128, feed_forward=16384)


def t5_11b() -> Pretraining:
    """T5-11B, 11,307,321,344 parameters: `t5_large` with 128 heads of width 128 and an inner size of 65,536.

    Every worker builds the whole model in fp32, which takes 45 GB of memory, before ZeRO 3 partitions it.
    """
    return _t5("t5_11b", t5_large(), 3, heads=128, head_width=128, feed_forward=65536)


def t5_v1_1_base() -> Pretraining:
    """T5 v1.1 base, 247,577,856 parameters: `t5_base` with gated GELU of inner size 2,048, an untied output
    layer, and no dropout (Shazeer, "GLU Variants Improve Transformer", 2020, and the release notes of T5
    1.1).
    """
    base = t5_base()
    model = replace(base.model, gated=True, tied=False, feed_forward=2048, dropout=0.0)
    return replace(base, name="t5_v1_1_base", model=model)


def byt5_small() -> Pretraining:
    """ByT5-small, 299,637,760 parameters (Xue et al., 2022, sections 3.1 and 3.2): `t5_v1_1_base` trained on
    bytes, with 12 encoder layers, 4 decoder layers, width 1,472 and inner size 3,584.

    It is trained for 1,000,000 steps of 1,024 sequences of 1,024 tokens. Noise spans average 20 bytes. The
    parameter count is for a vocabulary of 384, the size of the tokenizer `bytes`: 256 bytes and 128 special
    tokens.
    """
    base = t5_v1_1_base()
    return replace(
        base,
        name="byt5_small",
        model=replace(
            base.model,
            layers=12,
            decoder_layers=4,
            width=1472,
            heads=6,
            head_width=64,
            feed_forward=3584,
            positions=1024,
            vocab_size=None,
        ),
        objective=SpanCorruption(mean_span=20.0),
        data=replace(base.data, sequence_length=1024),
        batch=BatchSize(sequences=1024),
        budget=TrainingBudget(steps=1_000_000),
    )


def bart_base() -> Pretraining:
    """BART-base, 139,420,416 parameters (Lewis et al., 2020, section 4): 6 layers in each stack, 1,000,000
    steps.

    The noise is text infilling of 30 % of the tokens and sentence permutation. The paper gives neither batch
    size nor learning rate for this size; here they are those of BERT, which was trained on the same data.
    Weight decay and betas are RoBERTa's. Computed in bf16.
    """
    return Pretraining(
        name="bart_base",
        model=Model("bart", layers=6, width=768, heads=12, positions=1024, vocab_size=50265, dropout=0.1),
        objective=Denoising(),
        data=Data(sequence_length=512),
        batch=BatchSize(sequences=256),
        budget=TrainingBudget(steps=1_000_000),
        optimizer=Optimizer(
            learning_rate=1e-4, weight_decay=0.01, betas=(0.9, 0.98), epsilon=1e-6, decay_embeddings=True
        ),
        schedule=Schedule(kind="linear", warmup_steps=10_000, final_fraction=0.0),
        precision="bf16",
        validation=Validation(every=5000, tokens=1_048_576),
        checkpoints=Checkpoints(every=5000, keep=3),
        execution=Execution(zero_stage=1),
    )


def bart_large() -> Pretraining:
    """BART-large, 406,291,456 parameters (Lewis et al., 2020, section 5): 12 layers of width 1,024 in each
    stack, 500,000 steps of 8,000 sequences, and RoBERTa-large's learning rate and warm-up.

    The paper trains the last tenth of the steps without dropout; here dropout stays on.
    """
    base = bart_base()
    return replace(
        base,
        name="bart_large",
        model=replace(base.model, layers=12, width=1024, heads=16),
        batch=BatchSize(sequences=8000),
        budget=TrainingBudget(steps=500_000),
        optimizer=replace(base.optimizer, learning_rate=4e-4),
        schedule=replace(base.schedule, warmup_steps=30_000),
    )


def prefix_lm_base() -> Pretraining:
    """The prefix language model of the T5 paper (Raffel et al., 2020, section 3.2): one stack of T5-base's
    size, with bidirectional attention in the prefix and loss on the rest of the text. Batches, steps and
    schedule are those of `t5_base`.

    The stack is Llama's, with rotary positions instead of T5's bias, and without dropout. Learning rate,
    betas and weight decay are those of `gpt2_small`, a decoder of about this size.
    """
    base = t5_base()
    return replace(
        base,
        name="prefix_lm_base",
        model=Model("llama", layers=12, width=768, heads=12, positions=512, feed_forward=3072, vocab_size=32128),
        objective=PrefixLM(),
        optimizer=replace(base.optimizer, learning_rate=6e-4, weight_decay=0.1, betas=(0.9, 0.95)),
    )


def tiny_t5() -> Pretraining:
    """A T5 of toy size that learns within a minute on a CPU.

    On the demo corpus, a learning rate of 1e-2 reached a lower loss than 5e-3 and 2e-2.
    """
    return Pretraining(
        name="tiny_t5",
        model=Model("t5", layers=2, width=64, heads=4, positions=128),
        objective=SpanCorruption(),
        data=Data(sequence_length=128),
        batch=BatchSize(sequences=16),
        budget=TrainingBudget(steps=200),
        optimizer=Optimizer(learning_rate=1e-2, weight_decay=0.0, betas=(0.9, 0.98)),
        schedule=Schedule(kind="linear", warmup_steps=20, final_fraction=0.0),
        validation=Validation(every=100, tokens=16384),
        checkpoints=Checkpoints(every=100, keep=2),
        execution=Execution(zero_stage=1),
    )


def tiny_t5_v1_1() -> Pretraining:
    """A T5 v1.1 of toy size: `tiny_t5` with gated GELU and an untied output layer."""
    base = tiny_t5()
    return replace(base, name="tiny_t5_v1_1", model=replace(base.model, gated=True, tied=False))


def tiny_t5_shared() -> Pretraining:
    """A T5 of toy size whose encoder and decoder share one set of weights, a variant from the T5 paper."""
    base = tiny_t5()
    return replace(base, name="tiny_t5_shared", model=replace(base.model, tied_stacks=True))


def tiny_bart() -> Pretraining:
    """A BART of toy size that learns text infilling and sentence permutation within a minute on a CPU."""
    base = tiny_t5()
    return replace(
        base,
        name="tiny_bart",
        model=Model("bart", layers=2, width=64, heads=4, positions=160, initializer_range=0.06),
        objective=Denoising(),
        optimizer=replace(base.optimizer, learning_rate=4e-3),
    )


def tiny_pegasus() -> Pretraining:
    """A T5 of toy size with the objective of PEGASUS: `tiny_t5` with `gap_sentences`, in rows of 256 tokens
    that are cut between sentences.

    On the demo corpus, 19 % of these rows contain no document with two sentences, and so have no target. With
    rows of 128 tokens, this share would be 37 %.
    """
    base = tiny_t5()
    return replace(
        base,
        name="tiny_pegasus",
        model=replace(base.model, positions=256),
        objective=GapSentences(),
        data=replace(base.data, sequence_length=256, packing="full_sentences"),
    )


def tiny_salient_spans() -> Pretraining:
    """A T5 of toy size that restores a date or name removed from each sentence that contains one: `tiny_t5`
    with the objective `salient_spans` and three times as many steps.

    The shards need the columns `sentences` and `spans`. After the 200 steps of `tiny_t5`, the model has
    learned where a span ends, but nothing about its content.
    """
    base = tiny_t5()
    objective, budget = SalientSpans(unit="sentences"), TrainingBudget(steps=600)
    validation = Validation(every=300, tokens=16384)
    return replace(base, name="tiny_salient_spans", objective=objective, budget=budget, validation=validation)


def tiny_multitask() -> Pretraining:
    """A T5 of toy size pretrained on tasks and text together: `tiny_t5` with the objective `multitask`. It
    learns to write the target of a pair of texts from its source, and to restore corrupted documents. The
    shards need the column `target`.
    """
    base = tiny_t5()
    data = replace(base.data, packing="best_fit")
    return replace(base, name="tiny_multitask", objective=Multitask(), data=data)


def tiny_prefix_lm() -> Pretraining:
    """A prefix LM of toy size: a decoder that attends to its prefix in both directions."""
    base = tiny_t5()
    return replace(
        base,
        name="tiny_prefix_lm",
        model=Model("llama", layers=2, width=64, heads=4, positions=128, initializer_range=0.06),
        objective=PrefixLM(),
        optimizer=replace(base.optimizer, learning_rate=5e-3),
    )
