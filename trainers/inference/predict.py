"""Predict with a fine-tuned model: predict and score the splits of its run's tasks, or predict the examples
of a file.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from gristmill.errors import UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.location import Location
from gristmill.storage.store import write_json
from tokenizer.encode import Encoder
from trainers.config.finetuning import Finetuning
from trainers.data.examples.held_out import HeldOut
from trainers.data.examples.task_corpus import TRAIN, TaskCorpus, open_tasks, task_split
from trainers.engine.forward import Forward, tensors
from trainers.engine.hardware.device import compute_device
from trainers.inference.base import trained_forward
from trainers.inference.task_model import open_task_model
from trainers.inference.write_answers import target_nats, writable_ids, write_answers
from trainers.rows.task_outputs import TaskOutputs, join_outputs, outputs_of
from trainers.runs import checkpoint
from trainers.runs.run import SCORES
from trainers.tasks.majority import majority_scores
from trainers.tasks.predictions import Predictions, score_predictions, tune_threshold, write_predictions
from trainers.tasks.schema.task import GOLD, Layout, Task
from trainers.tasks.task_files import available_splits

PREDICTIONS = "predictions"
"""The directory of a run's predictions, one Parquet file for each split."""


def predict_outputs(forward: Forward, held_out: HeldOut, size: int) -> TaskOutputs:
    """Return the outputs of the model's head for every input, computed in batches of `size` inputs."""
    import torch

    kind = forward.model.task_head.kind
    device = next(forward.parameters()).device
    forward.eval()
    parts = []
    with torch.no_grad():
        for batch in held_out.batches(size, 0, 1):
            predicted = forward(predicts=True, **tensors(batch, device))["predictions"]
            parts.append(outputs_of(kind, predicted.float().cpu().numpy(), batch))
    return join_outputs(parts)


def score_run(
    run: LocalPath, config: Finetuning, corpus: TaskCorpus, tell: Callable[[str], None] = print
) -> dict[str, Any]:
    """Predict splits of a run's tasks with the run's best checkpoint, and write the predictions and
    `scores.json`. Returns the content of `scores.json`. `config.final_splits` selects the splits. The run
    must have a checkpoint.

    Splits whose gold is hidden are predicted but not scored. The no-answer threshold of a `span` task is
    tuned on the split that the run validates on.
    """
    best = checkpoint.pick(run, print)
    assert best is not None
    forward = trained_forward(run, best).to(compute_device())
    (run / PREDICTIONS).mkdir(exist_ok=True)
    splits: dict[str, Any] = {}
    floors: dict[str, dict[str, float]] = {}
    for task in config.tasks:
        threshold: float | None = None
        for split in held_out_splits(corpus, task) if config.final_splits == "all" else corpus.splits(task)[1:]:
            name = split if len(config.tasks) == 1 else f"{task.name}.{split}"
            tunes = split in corpus.splits(task)
            predictions = _decide(_predict(forward, config, corpus, task, split, str(run), tell), threshold, tunes)
            threshold = predictions.threshold
            write_predictions(predictions, run / PREDICTIONS / f"{name}.parquet")
            if predictions.labelled:
                splits[name] = {metric: asdict(score) for metric, score in score_predictions(predictions).items()}
                floors[name] = majority_scores(corpus.examples(task, TRAIN), corpus.examples(task, split))
    names = ",".join(task.name for task in config.tasks)
    record = {"task": names, "method": config.method.kind, "step": best.step, "splits": splits, "floors": floors}
    record["threshold"] = threshold
    write_json(run / SCORES, record)
    return record


def score_line(scores: Mapping[str, Mapping[str, float]], floors: Mapping[str, float]) -> str:
    """Return the scores of a split as one line of text: the value and the 95 % interval of each metric, and
    its majority baseline if `floors` contains one.
    """
    parts = []
    for name, score in scores.items():
        floor = f" (floor {floors[name]:.4f})" if name in floors else ""
        parts.append(f"{name} {score['value']:.4f} [{score['low']:.4f}, {score['high']:.4f}]{floor}")
    return ", ".join(parts)


def _predict(
    forward: Forward,
    config: Finetuning,
    corpus: TaskCorpus,
    task: Task,
    split: str,
    model: str,
    tell: Callable[[str], None],
) -> Predictions:
    held_out, size = task_split(corpus, config, split, task), config.execution.rows(auto=32)
    if not config.writes_text:
        return held_out.predictions(predict_outputs(forward, held_out, size), model)
    encoder = Encoder.load(str(corpus.directory.verify(corpus.tokenizer.file)))
    (inputs,) = held_out.tasks
    vocabulary = config.model.vocab_size or encoder.vocab_size
    allowed = writable_ids(corpus.tokenizer.specials, encoder.vocab_size, vocabulary, inputs.format.target_after[0])
    limit = config.encoding.answer_tokens or held_out.length
    answers, cut = write_answers(forward, inputs, allowed, limit, held_out.length, size)
    if cut:
        tell(f"{task.name} {split}: {cut:,} of {len(answers):,} answers are cut off (encoding.answer_tokens {limit:,})")
    measured = "perplexity" in task.metrics and held_out.examples[0].labelled
    nats, tokens = target_nats(forward, inputs, size) if measured else (None, None)
    return held_out.written_predictions([encoder.decode(answer) for answer in answers], model, nats, tokens)


def predict_file(model: LocalPath, file: Location, split: str = "input", base: LocalPath | None = None) -> Predictions:
    """Predict the examples of a file with a fine-tuned model: a run (at its best checkpoint), an export, or
    the adapter of an export. `base` is the base model of an exported adapter; the default is the base that
    the adapter's run recorded. `split` is the name that the predictions give to the examples of the file.

    The fields of the file must be named after the roles of the task's kind, such as `text` and `question`.
    Raises UserError if there is no such file, if its suffix names no format, if `model` is not a fine-tuned
    model of a single task, or if `base` is given for a model that is not an exported adapter. Raises
    ConfigError if the adapter was trained on another base.
    """
    opened = open_task_model(model)
    name = str(file if file.local is None else file.local.absolute())
    task = _task_of_file(opened.config.tasks[0], name, split)
    if task.format_of(name) is None:
        raise UserError(
            f"{file}: --input: the suffix names no format; expected .jsonl, .csv, .tsv, .parquet, .conll or .conllu, each "
            f"also with .gz; rename the file"
        )
    if not available_splits(task, None):
        raise UserError(f"{file}: no such file; give one with --input")
    config = replace(opened.config, tasks=(task,))
    corpus = open_tasks(replace(config, init=None, tokenizer=str(opened.tokenizer)))
    forward = opened.forward(base, corpus).to(compute_device())
    return _decide(_predict(forward, config, corpus, task, split, str(model), print), opened.threshold, tunes=False)


def _task_of_file(task: Task, file: str, split: str) -> Task:
    roles = [role for role in task.roles if role not in (GOLD[task.kind], "id", "group", "accepted")]
    plain = Layout(files={split: file}, columns={role: role for role in roles}, unlabelled=(split,))
    return replace(task, **{each.name: getattr(plain, each.name) for each in fields(Layout)}, elsewhere=(), folder=".")


def held_out_splits(corpus: TaskCorpus, task: Task) -> list[str]:
    """Return the splits of a task that have files, except the training split. The split that the run
    validates on comes first.
    """
    known = [split for split in available_splits(task, corpus.files) if split != TRAIN]
    return sorted(known, key=lambda split: split not in corpus.splits(task))


def _decide(predictions: Predictions, threshold: float | None, tunes: bool) -> Predictions:
    if predictions.scores is None or not predictions.task.no_answer or predictions.task.kind != "span":
        return predictions
    if threshold is not None:
        return replace(predictions, threshold=threshold)
    return tune_threshold(predictions) if tunes and predictions.labelled else predictions
