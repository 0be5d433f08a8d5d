"""Recipes: functions that return a configuration; one derives from another with `dataclasses.replace`.

To add one, write a function and name it in RECIPES.
"""

from collections.abc import Callable

from trainers.config import (
    Batch,
    Budget,
    Checkpoints,
    Data,
    Execution,
    Model,
    Optimizer,
    Pretraining,
    Schedule,
    Validation,
)


def demo_decoder() -> Pretraining:
    """A small Llama that two CPU cores train in about two minutes, start-up included.

    Chosen by measurement on the demo corpus, 500,000 training tokens each: two layers reached a lower loss than four and
    cost less, initial weights of 0.06 a lower one than of 0.02. Steps of 2,048 tokens keep what a step costs besides its
    tokens small.
    """
    return Pretraining(
        name="demo_decoder",
        model=Model(
            architecture="llama", layers=2, width=128, heads=4, positions=256, feed_forward=512, initializer_range=0.06
        ),
        data=Data(sequence_length=256),
        batch=Batch(sequences=8),
        budget=Budget(steps=360),
        optimizer=Optimizer(learning_rate=4e-3, weight_decay=0.1),
        schedule=Schedule(kind="linear", warmup_steps=10, final_fraction=0.1),
        log_every=20,
        validation=Validation(every=180, tokens=8192),
        checkpoints=Checkpoints(every=180, keep=2),
        execution=Execution(zero_stage=2, micro_batch=4),
    )


def gpt2_small() -> Pretraining:
    """GPT-2 small, 124,439,808 parameters (Radford et al., 2019); batch and rate of GPT-3 small (Brown et al. 2020)."""
    return Pretraining(
        name="gpt2_small",
        model=Model(architecture="gpt2", layers=12, width=768, heads=12, positions=1024, vocab_size=50257),
        data=Data(sequence_length=1024),
        batch=Batch(tokens=524_288),
        budget=Budget(tokens=10_000_000_000),
        optimizer=Optimizer(learning_rate=6e-4, weight_decay=0.1),
        schedule=Schedule(kind="cosine", warmup_steps=700, final_fraction=0.1),
        validation=Validation(every=250, tokens=1_048_576),
        checkpoints=Checkpoints(every=1000, keep=3),
        execution=Execution(zero_stage=1, micro_batch=16),
    )


def llama_tiny() -> Pretraining:
    """A Llama of toy size for tests and first tries: it learns within a minute on one core."""
    return Pretraining(
        name="llama_tiny",
        model=Model(architecture="llama", layers=2, width=64, heads=4, positions=128, key_value_heads=2),
        data=Data(sequence_length=128),
        batch=Batch(sequences=16),
        budget=Budget(steps=100),
        optimizer=Optimizer(learning_rate=5e-3),
        schedule=Schedule(kind="cosine", warmup_steps=10),
        validation=Validation(every=50, tokens=4096),
        checkpoints=Checkpoints(every=50, keep=2),
        execution=Execution(zero_stage=1, micro_batch=8),
    )


RECIPES: dict[str, Callable[[], Pretraining]] = {
    "demo_decoder": demo_decoder,
    "gpt2_small": gpt2_small,
    "llama_tiny": llama_tiny,
}
