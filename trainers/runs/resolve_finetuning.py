"""Resolve a fine-tuning job: fill in its null values, which depend on its tasks and its base."""

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
from trainers.runs.resolve import check_micro_batch, resolve_schedule


def resolve_finetuning(config: Finetuning, corpus: TaskCorpus) -> Finetuning:
    """Fill in the null values of a job, which depend on its tasks and its base, limit the batch to the inputs
    of one epoch, and return the result. Resolving the result again changes nothing. Raises ConfigError for
    values that do not fit, and UserError if the base or the training file of a task is missing.
    """
    for task in config.tasks if config.encoding.text_to_text else ():
        spaced = next((label for label in task.label_names if label.split() != [label]), None)
        if task.kind == "tag" and spaced is not None:
            raise ConfigError(
                f"tasks: {task.name} has the label {spaced!r}, but tags written as text have spaces between them; spell it "
                f"without spaces in `labels` and map it there with `rename`, or leave out encoding.text_to_text"
            )
    config = replace(
        config,
        model=fill(config.model, corpus.tokenizer.vocab_size),
        init=settle(config.init) if config.init else None,
        encoding=replace(config.encoding, max_length=_max_length(config)),
        class_weights=_class_weights(config, corpus),
        files=_absolute(corpus.files),
    )
    data = task_training(corpus, config, frozenset())
    if config.batch.sequences is None:
        raise ConfigError("batch.sequences: null; set it to the number of inputs per step")
    sequences = min(config.batch.sequences, data.epoch_inputs)
    check_micro_batch(config)
    steps = _steps(config.budget, sequences, data.epoch_inputs)
    tokens = int(data.order.totals(steps * sequences).tokens.sum())
    config = replace(
        config,
        batch=BatchSize(sequences=sequences, tokens=math.ceil(Fraction(tokens, steps))),
        budget=replace(config.budget, steps=steps, tokens=tokens),
        schedule=resolve_schedule(config.schedule, steps),
        encoding=replace(config.encoding, answer_tokens=_answer_tokens(config, data)),
    )
    every = config.validation.every or max(1, math.ceil(data.epoch_inputs / sequences))
    return replace(config, validation=replace(config.validation, every=min(every, steps)))


def describe_tasks(job: Finetuning, config: Finetuning, corpus: TaskCorpus, data: TaskData) -> list[str]:
    """Return lines that describe the model, method and data of a run, and the leaks found in its tasks. `job`
    is the run's configuration as given, `config` the resolved one.
    """
    steps, sequences, model = config.budget.steps or 0, config.batch.sequences or 0, config.model
    begins = "from scratch" if config.init is None else f"from {config.init.path}"
    lines = [
        f"model  {model.architecture}, {model.layers} layers of width {model.width}, {begins}",
        f"method  {config.method.kind}, learning rate {config.optimizer.learning_rate:g}, warm-up over "
        f"{config.schedule.warmup_steps:,} of {steps:,} steps",
        f"data  {sequences:,} inputs per step; {steps:,} steps read {config.budget.tokens:,} tokens, "
        f"{steps * sequences / data.epoch_inputs:.2f} epochs of {data.epoch_inputs:,} inputs",
    ]
    if sequences != job.batch.sequences:
        lines.append(
            f"data  {job.batch.sequences:,} inputs per step were requested, the training set has {sequences:,}"
        )
    return lines + [f"leak  {name}: {leak}" for name, leaks in corpus.leaks.items() for leak in leaks]


def _absolute(files: Location | None) -> str | None:
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


def _answer_tokens(config: Finetuning, data: TaskData) -> int | None:
    """Return the maximum number of tokens in an answer, by default the length of the longest training target.
    None if the model does not write text.
    """
    if not config.writes_text:
        return None
    longest = max(int(task.segments.sizes[1].max()) for task in data.tasks)
    return config.encoding.answer_tokens or max(1, longest)


def _steps(budget: TrainingBudget, sequences: int, inputs: int) -> int:
    if budget.steps is not None:
        return budget.steps
    if budget.epochs is not None:
        return math.ceil(Fraction(budget.epochs) * inputs / sequences)
    raise ConfigError("budget.epochs: null; give budget.epochs or budget.steps")


def _class_weights(config: Finetuning, corpus: TaskCorpus) -> dict[str, float] | None:
    """Return the weight of every class, or None if classes are not weighted. With `balanced`, class k of K
    has weight N / (K N_k), where N is the number of labelled training examples and N_k the number of those in
    class k (King and Zeng, 2001).
    """
    wanted = config.class_weights
    if wanted is None:
        return None
    task = config.tasks[0]
    if task.kind != "classify" or config.writes_text:
        raise ConfigError(
            f"class_weights: got {wanted}, a task of kind {task.kind} has no classes to weight; leave it out"
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
