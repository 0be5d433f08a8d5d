"""Recipes for nanoGPT's two character-level Shakespeare examples. nanoGPT's README publishes the losses of
both (see docs/reproduced.md).

Settings are those of `config/train_shakespeare_char.py` and of the commands in the README (karpathy/nanoGPT
at 3adf61e), with three main differences. nanoGPT's layers have no biases; GPT-2's layers here have biases.
nanoGPT's GELU is exact; here it is the tanh approximation. nanoGPT draws windows at random with replacement;
here each epoch reads every window once.
"""

from dataclasses import replace

from trainers.config.architecture import Model
from trainers.config.job import BatchSize, Checkpoints, Execution, Optimizer, Schedule, TrainingBudget
from trainers.config.pretraining import Data, Pretraining, Validation


def nanogpt_cpu() -> Pretraining:
    """nanoGPT's example for a CPU: 4 layers of width 128, rows of 64 characters, 2,000 steps of 12 rows.
    Published validation loss: 1.88.
    """
    return Pretraining(
        name="nanogpt_cpu",
        model=Model("gpt2", layers=4, width=128, heads=4, positions=64),
        data=Data(sequence_length=64),
        batch=BatchSize(sequences=12),
        budget=TrainingBudget(steps=2000),
        optimizer=Optimizer(learning_rate=1e-3, weight_decay=0.1, betas=(0.9, 0.99), decay_embeddings=True),
        schedule=Schedule(kind="cosine", warmup_steps=100, final_fraction=0.1),
        log_every=100,
        # The whole validation split, 111,540 characters, as often as costs what nanoGPT's nine evaluations cost.
        validation=Validation(every=1000, tokens=131_072, documents=False),
        checkpoints=Checkpoints(every=1000, keep=1),
        execution=Execution(zero_stage=0),
    )


def nanogpt_gpu() -> Pretraining:
    """nanoGPT's example for a GPU: 6 layers of width 384, rows of 256 characters, dropout 0.2, 5,000 steps of
    64 rows, in bf16. Published best validation loss: 1.4697.
    """
    small = nanogpt_cpu()
    return replace(
        small,
        name="nanogpt_gpu",
        model=replace(small.model, layers=6, width=384, heads=6, positions=256, dropout=0.2),
        data=Data(sequence_length=256),
        batch=BatchSize(sequences=64),
        budget=TrainingBudget(steps=5000),
        precision="bf16",
        validation=replace(small.validation, every=250),
        execution=Execution(zero_stage=1),
    )
