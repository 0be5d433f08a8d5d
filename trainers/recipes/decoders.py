"""Recipes for decoders: GPT, GPT-2, GPT-3 and Llama."""

from dataclasses import replace
from typing import Literal

from trainers.config.architecture import Model
from trainers.config.job import BatchSize, Checkpoints, Execution, Optimizer, Schedule, TrainingBudget
from trainers.config.pretraining import Data, Pretraining, Validation


def demo_decoder() -> Pretraining:
    """A small Llama that two CPU cores train in about two minutes, including start-up.

    The settings were chosen by measurement on the demo corpus, with 500,000 training tokens per run. Two
    layers reached a lower loss than four at lower cost. A standard deviation of 0.06 for the initial weights
    led to a lower loss than 0.02. With 2,048 tokens per step, the fixed cost of a step is only a small part
    of its time.
    """
    return Pretraining(
        name="demo_decoder",
        model=Model(
            architecture="llama", layers=2, width=128, heads=4, positions=256, feed_forward=512, initializer_range=0.06
        ),
        data=Data(sequence_length=256),
        batch=BatchSize(sequences=8),
        budget=TrainingBudget(steps=360),
        optimizer=Optimizer(learning_rate=4e-3, weight_decay=0.1),
        schedule=Schedule(kind="linear", warmup_steps=10, final_fraction=0.1),
        log_every=20,
        validation=Validation(every=180, tokens=8192),
        checkpoints=Checkpoints(every=180, keep=2),
    )


def gpt() -> Pretraining:
    """GPT (Radford et al., 2018, section 4.1): 116,534,784 parameters with its vocabulary of 40,000 merges.

    The budget of 1e11 tokens is 100 epochs of about 1e9 tokens from books. Batches contain 64 sequences of
    512 tokens. The optimizer is Adam with weight decay of 0.01 on all parameters except biases and gains. The
    learning rate peaks at 2.5e-4 after 2,000 warm-up steps and falls along a cosine to 0. Dropout is 0.1. The
    only special token of the published tokenizer is `<unk>`, which therefore separates documents. Computation
    is in bf16.
    """
    return Pretraining(
        name="gpt",
        model=Model("gpt", layers=12, width=768, heads=12, positions=512, vocab_size=40478, dropout=0.1),
        data=Data(sequence_length=512),
        batch=BatchSize(sequences=64),
        budget=TrainingBudget(tokens=100_000_000_000),
        optimizer=Optimizer(learning_rate=2.5e-4, weight_decay=0.01, betas=(0.9, 0.999), decay_embeddings=True),
        schedule=Schedule(kind="cosine", warmup_steps=2000, final_fraction=0.0),
        precision="bf16",
        validation=Validation(every=5000, tokens=1_048_576),
        checkpoints=Checkpoints(every=5000, keep=3),
        execution=Execution(zero_stage=1),
    )


def gpt2_small() -> Pretraining:
    """GPT-2 small, 124,439,808 parameters, trained in bf16 in batches of 512 sequences of 1,024 tokens
    (Radford et al., 2019).

    The paper gives neither a budget nor learning rates. The budget of 10 B tokens is our choice. The learning
    rate, schedule and optimizer are those of the GPT-3 model of this size (Brown et al., 2020, table 2.1 and
    appendix B): 6e-4, betas 0.9 and 0.95, weight decay 0.1, clipping at 1, warm-up over 375 M tokens, cosine
    to a tenth. Position embeddings are initialised with a standard deviation of 0.02, like token embeddings;
    the released code uses 0.01.
    """
    return Pretraining(
        name="gpt2_small",
        model=Model("gpt2", layers=12, width=768, heads=12, positions=1024, vocab_size=50257),
        data=Data(sequence_length=1024),
        batch=BatchSize(tokens=524_288),
        budget=TrainingBudget(tokens=10_000_000_000),
        optimizer=Optimizer(learning_rate=6e-4, weight_decay=0.1),
        schedule=Schedule(kind="cosine", warmup_steps=715, final_fraction=0.1),
        precision="bf16",
        validation=Validation(every=250, tokens=1_048_576),
        checkpoints=Checkpoints(every=1000, keep=3),
        execution=Execution(zero_stage=1),
    )


def _larger(name: str, layers: int, width: int, heads: int, rate: float) -> Pretraining:
    small = gpt2_small()
    return replace(
        small,
        name=name,
        model=replace(small.model, layers=layers, width=width, heads=heads),
        optimizer=replace(small.optimizer, learning_rate=rate),
    )


def gpt2_medium() -> Pretraining:
    """GPT-2 medium, 354,823,168 parameters: `gpt2_small` with 24 layers of width 1,024, 16 heads, and the
    learning rate of GPT-3 medium.
    """
    return _larger("gpt2_medium", 24, 1024, 16, 3e-4)


def gpt2_large() -> Pretraining:
    """GPT-2 large, 774,030,080 parameters: `gpt2_small` with 36 layers of width 1,280, 20 heads, and the
    learning rate of GPT-3 large.
    """
    return _larger("gpt2_large", 36, 1280, 20, 2.5e-4)


def gpt2_xl() -> Pretraining:
    """GPT-2 XL, 1,557,611,200 parameters: `gpt2_small` with 48 layers of width 1,600, 25 heads, and the
    learning rate of GPT-3 XL.
    """
    return _larger("gpt2_xl", 48, 1600, 25, 2e-4)


def _gpt3(
    name: str, layers: int, width: int, heads: int, batch: int, rate: float, stage: Literal[1, 2, 3] = 1
) -> Pretraining:
    """Return the recipe of a model in table 2.1 of Brown et al., 2020, trained in batches of `batch`
    sequences of 2,048 tokens.

    Warm-up takes 375 M tokens. The learning rate falls along a cosine to a tenth over all 300 B tokens; in
    the paper, over 260 B (appendix B). All attention layers are dense; in the paper, every second one has
    locally banded sparse attention. The batch size is constant; in the paper, it grows.
    """
    model = _larger(name, layers, width, heads, rate)
    return replace(
        model,
        model=replace(model.model, positions=2048),
        data=replace(model.data, sequence_length=2048),
        batch=BatchSize(tokens=2048 * batch),
        budget=TrainingBudget(tokens=300_000_000_000),
        schedule=replace(model.schedule, warmup_steps=round(375e6 / 2048 / batch)),
        execution=Execution(zero_stage=stage),
    )


def gpt3_small() -> Pretraining:
    """GPT-3 small, 125,226,240 parameters (Brown et al., 2020, table 2.1): 300 B tokens in batches of 0.5 M
    tokens, learning rate 6e-4, dense attention.
    """
    return _gpt3("gpt3_small", 12, 768, 12, 256, 6e-4)


def gpt3_medium() -> Pretraining:
    """GPT-3 medium, 355,871,744 parameters: `gpt3_small` with 24 layers of width 1,024, 16 heads, and
    learning rate 3e-4.
    """
    return _gpt3("gpt3_medium", 24, 1024, 16, 256, 3e-4)


def gpt3_large() -> Pretraining:
    """GPT-3 large, 760,300,032 parameters: `gpt3_small` with 24 layers of width 1,536, 16 heads, and learning
    rate 2.5e-4.
    """
    return _gpt3("gpt3_large", 24, 1536, 16, 256, 2.5e-4)


def gpt3_xl() -> Pretraining:
    """GPT-3 XL, 1,315,723,264 parameters: 24 layers of width 2,048, batches of 1 M tokens, learning rate
    2e-4. It has 16 heads, because the paper's 24 heads of width 128 (table 2.1) do not fit a width of 2,048.
    """
    return _gpt3("gpt3_xl", 24, 2048, 16, 512, 2e-4)


def gpt3_2_7b() -> Pretraining:
    """GPT-3 2.7B, 2,651,553,280 parameters: 32 layers of width 2,560, batches of 1 M tokens, learning rate
    1.6e-4.
    """
    return _gpt3("gpt3_2_7b", 32, 2560, 32, 512, 1.6e-4, 2)


def gpt3_6_7b() -> Pretraining:
    """GPT-3 6.7B, 6,658,404,352 parameters: 32 layers of width 4,096, batches of 2 M tokens, learning rate
    1.2e-4.
    """
    return _gpt3("gpt3_6_7b", 32, 4096, 32, 1024, 1.2e-4, 3)


def gpt3_13b() -> Pretraining:
    """GPT-3 13B, 12,853,386,240 parameters: 40 layers of width 5,120, batches of 2 M tokens, learning rate
    1e-4. The paper's width of 5,140 (table 2.1) is not divisible by its number of heads, 40.
    """
    return _gpt3("gpt3_13b", 40, 5120, 40, 1024, 1e-4, 3)


def gpt3() -> Pretraining:
    """GPT-3, 174,604,259,328 parameters: 96 layers of width 12,288, batches of 3.2 M tokens, learning rate
    6e-5. This recipe only documents the parameter count. The model is too large to train here, because every
    worker builds all of it in fp32, which takes 698 GB of memory.
    """
    return _gpt3("gpt3", 96, 12288, 96, 1600, 6e-5, 3)


def llama_1b() -> Pretraining:
    """A Llama of 1.1 B parameters, with the sizes and training settings of TinyLlama (Zhang et al., 2024,
    section 2), but trained on fewer tokens.

    It has 1,100,048,384 parameters with TinyLlama's vocabulary of 32,000. It is trained with AdamW on batches
    of 2 M tokens. The learning rate peaks at 4e-4 after 2,000 warm-up steps and falls along a cosine to a
    tenth of the peak. Betas are 0.9 and 0.95, weight decay is 0.1, and gradients are clipped at 1. The budget
    is 22 B tokens, 20 per parameter (Hoffmann et al., 2022); TinyLlama was trained on 3 T tokens.
    """
    return Pretraining(
        name="llama_1b",
        model=Model(
            "llama",
            layers=22,
            width=2048,
            heads=32,
            positions=2048,
            key_value_heads=4,
            feed_forward=5632,
            vocab_size=32000,
            tied=False,
        ),
        data=Data(sequence_length=2048),
        batch=BatchSize(tokens=2_097_152),
        budget=TrainingBudget(tokens=22_000_000_000),
        optimizer=Optimizer(learning_rate=4e-4, weight_decay=0.1),
        schedule=Schedule(kind="cosine", warmup_steps=2000, final_fraction=0.1),
        precision="bf16",
        validation=Validation(every=500, tokens=1_048_576),
        checkpoints=Checkpoints(every=1000, keep=3),
    )


def llama_160m() -> Pretraining:
    """A Llama with the depth, width, heads and feed-forward size of GPT-2 small: 162,417,408 parameters with
    a vocabulary of 32,000. The batch size, optimizer and schedule are those of `gpt2_small`, and the budget
    is 3.2 B tokens. All other settings are those of `llama_1b`.
    """
    large, small = llama_1b(), gpt2_small()
    return replace(
        large,
        name="llama_160m",
        model=replace(large.model, layers=12, width=768, heads=12, key_value_heads=12, feed_forward=3072),
        batch=small.batch,
        budget=TrainingBudget(tokens=3_200_000_000),
        optimizer=small.optimizer,
        schedule=small.schedule,
        execution=Execution(zero_stage=1),
    )


def llama_tiny() -> Pretraining:
    """A Llama of toy size for tests and first experiments; it learns within a minute on one core."""
    return Pretraining(
        name="llama_tiny",
        model=Model(architecture="llama", layers=2, width=64, heads=4, positions=128, key_value_heads=2),
        data=Data(sequence_length=128),
        batch=BatchSize(sequences=16),
        budget=TrainingBudget(steps=100),
        optimizer=Optimizer(learning_rate=5e-3),
        schedule=Schedule(kind="cosine", warmup_steps=10),
        validation=Validation(every=50, tokens=4096),
        checkpoints=Checkpoints(every=50, keep=2),
        execution=Execution(zero_stage=1),
    )


def tiny_gpt2() -> Pretraining:
    """A GPT-2 of toy size that learns within a minute on a CPU: `llama_tiny` with GPT-2's architecture and
    initial weights of standard deviation 0.06.
    """
    llama = llama_tiny()
    return replace(
        llama,
        name="tiny_gpt2",
        model=Model("gpt2", layers=2, width=64, heads=4, positions=128, initializer_range=0.06),
    )


def tiny_gpt() -> Pretraining:
    """A GPT of toy size: `tiny_gpt2` with GPT's post-norm blocks, trained for 300 steps at 2e-3. Post-norm
    blocks need lower learning rates: on the demo corpus, this recipe reaches a lower loss than a unigram
    model, but not if the rate is 4e-3.
    """
    gpt2 = tiny_gpt2()
    return replace(
        gpt2,
        name="tiny_gpt",
        model=replace(gpt2.model, architecture="gpt"),
        budget=TrainingBudget(steps=300),
        optimizer=replace(gpt2.optimizer, learning_rate=2e-3),
    )
