"""Resolve a fine-tuning job: compute every value that it leaves null from its tasks and its base."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np

from gristmill.errors import ConfigError
from gristmill.storage.location import Location
from trainers.config.architecture import fill
from trainers.config.finetuning import Finetuning
from trainers.config.job import BatchSize, TrainingBudget
from trainers.data.examples.task_corpus import TRAIN, TaskCorpus, task_training
from trainers.data.examples.task_data import TaskData
from trainers.runs.parent import settle
from trainers.runs.resolve import resolve_schedule


def resolve_finetuning(config: Finetuning, corpus: TaskCorpus) -> Finetuning:
    """Return the job with every null value computed; resolving the result changes nothing. Raises ConfigError
    for values that do not fit the tasks or one another.
    """
    config = replace(
        config,
        model=fill(config.model, corpus.tokenizer.vocab_size),
        init=settle(config.init) if config.init else None,
        encoding=replace(config.encoding, max_length=_max_length(config)),
        class_weights=_class_weights(config, corpus),
        files=_absolute(corpus.files),
    )
    data = task_training(corpus, config, frozenset())
    sequences = config.batch.sequences
    if sequences is None:
        raise ConfigError("batch.sequences: null; give the inputs of a step")
    if sequences > data.epoch_inputs:
        raise ConfigError(f"batch.sequences: got {sequences}, allowed 1 to {data.epoch_inputs}, the inputs of an epoch")
    steps = _steps(config.budget, sequences, data.epoch_inputs)
    tokens = int(data.order.totals(steps * sequences).tokens.sum())
    config = replace(
        config,
        batch=BatchSize(sequences=sequences, tokens=math.ceil(Fraction(tokens, steps))),
        budget=replace(config.budget, steps=steps, tokens=tokens),
        schedule=resolve_schedule(config.schedule, steps),
    )
    every = config.validation.every or max(1, math.ceil(data.epoch_inputs / sequences))
    return replace(config, validation=replace(config.validation, every=min(every, steps)))


def describe_tasks(config: Finetuning, corpus: TaskCorpus, data: TaskData) -> list[str]:
    """Return lines that describe what a run trains on."""
    steps, sequences = config.budget.steps or 0, config.batch.sequences or 0
    lines = [
        f"data  {sequences:,} inputs a step; {steps:,} steps read {config.budget.tokens:,} tokens, "
        f"{steps * sequences / data.epoch_inputs:.2f} epochs of {data.epoch_inputs:,} inputs"
    ]
    return lines + [str(fields["message"]) for _, fields in data.notices()]


def _absolute(files: Location | None) -> str | None:
    """Return the directory of the tasks' files as every worker finds it."""
    if files is None:
        return None
    return str(files if files.local is None else files.local.resolve())


def _max_length(config: Finetuning) -> int:
    longest = config.model.positions
    wanted = config.encoding.max_length or longest
    if wanted > longest and config.model.scheme != "t5_bias":
        raise ConfigError(
            f"encoding.max_length: got {wanted}, the model has {longest} positions; allowed up to {longest}"
        )
    return wanted


def _steps(budget: TrainingBudget, sequences: int, inputs: int) -> int:
    """The steps of a budget; those of its epochs are rounded up, so that every input is read."""
    if budget.steps is not None:
        return budget.steps
    if budget.epochs is not None:
        return math.ceil(Fraction(budget.epochs) * inputs / sequences)
    raise ConfigError("budget.epochs: null; give budget.epochs or budget.steps")


def _class_weights(config: Finetuning, corpus: TaskCorpus) -> dict[str, float] | None:
    """The weight of every class: given, or N / (K N_k) for class k with N_k of N training examples, K classes
    (King and Zeng, 2001), whose mean over the examples is 1.
    """
    wanted = config.class_weights
    if wanted is None:
        return None
    task = config.tasks[0]
    if task.kind != "classify" or config.writes_text:
        raise ConfigError(
            f"class_weights: got {wanted}, a task of kind {task.kind} has no classes to weigh; leave it out"
        )
    names = task.label_names
    if isinstance(wanted, dict):
        unknown = sorted(set(wanted) ^ set(names))
        if unknown or min(wanted.values()) <= 0:
            raise ConfigError(f"class_weights: got {wanted}, expected a number above 0 for each of {', '.join(names)}")
        return wanted
    labels = corpus.examples(task, TRAIN).labels
    assert labels is not None
    counts = np.bincount(labels[labels >= 0], minlength=len(names))
    if not counts.all():
        missing = names[int(np.argmin(counts))]
        raise ConfigError(
            f"class_weights: got balanced, no training example has the label {missing!r}; give the weights"
        )
    return {name: float(counts.sum() / (len(names) * count)) for name, count in zip(names, counts, strict=True)}
