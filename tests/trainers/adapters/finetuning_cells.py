"""The fine-tuning matrix: every method on every architecture for every kind of task. Each cell is a tiny run:

job -> rows of a task -> two steps -> checkpoint -> a fresh model -> the same predictions

`docs/finetuning_matrix.py` runs all cells. The tests run a selection that covers every pair of values of two
axes that occurs in a trainable cell.
"""

import itertools
import json
import math
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
import torch

from gristmill.config import parse
from gristmill.errors import ConfigError
from gristmill.storage.disk import LocalPath
from tests.trainers.engine.heads.task_batches import tiny
from tokenizer.kinds.train import train
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.adapters import METHODS
from trainers.config.architecture import ARCHITECTURES
from trainers.config.finetuning import Encoding, Finetuning
from trainers.config.job import BatchSize, Init, Optimizer, TrainingBudget
from trainers.data.examples.task_corpus import open_tasks, task_split, task_training
from trainers.engine.assembly import build_forward
from trainers.engine.forward import tensors
from trainers.engine.optimizers import SkippingAdamW, parameter_groups
from trainers.inference.base import base_weights, open_base, trained_forward
from trainers.inference.predict import predict_outputs
from trainers.inference.write_answers import target_nats, writable_ids, write_answers
from trainers.models import MODELS, build_model, give_characters
from trainers.runs import checkpoint
from trainers.runs.resolve_finetuning import resolve_finetuning
from trainers.runs.run import fingerprints, open_run, read_run, verified_copy
from trainers.tasks.predictions import score_predictions
from trainers.tasks.schema.task import Task, TaskKind

KINDS = get_args(TaskKind)
AXES = (tuple(METHODS), tuple(MODELS), KINDS)
STEPS, BATCH, TOKENS = 2, 4, 3
# Sizes that fit a model of width 32; the other fields are the defaults.
SETTINGS = {"adalora": {"rank": 2, "initial_rank": 4}, "multitask_prompt": {"rank": 2}}
COMMON = {"name": "toy", "files": {split: f"{split}.jsonl" for split in ("train", "dev")}}
TASKS = {
    "classify": {
        "columns": {"text": "a", "text_b": "b", "label": "label"},
        "labels": ["x", "y", "z"],
        "metrics": ["accuracy"],
    },
    "regress": {"columns": {"text": "a", "label": "value"}, "metrics": ["pearson"]},
    "tag": {"columns": {"words": "words", "tags": "tags"}, "labels": ["O", "T", "U"], "metrics": ["accuracy"]},
    "span": {"columns": {"question": "b", "passage": "a", "answers": "answers"}, "metrics": ["exact_match"]},
    "choose": {"columns": {"text": "a", "candidates": "candidates", "label": "right"}, "metrics": ["accuracy"]},
    "generate": {"columns": {"text": "a", "target": "b"}, "metrics": ["exact_match", "perplexity"]},
}
WORDS = ("abcd", "bcde", "cde", "defgh", "ef", "fghi")


def every_cell():
    return list(itertools.product(*AXES))


def is_sensible(method, architecture, kind):
    """Return whether a cell can be trained. Some methods refuse some architectures, encoders do not generate
    text, and generation has no head to train.
    """
    if kind == "generate" and (ARCHITECTURES[architecture].family == "encoder" or method in ("head", "features")):
        return False
    return METHODS[method]().refusal(architecture) is None


def pairs_of(cell):
    return set(itertools.combinations(enumerate(cell), 2))


def pairwise_cover(cells):
    """Return cells that cover every pair covered by any of the given cells. Cells are chosen greedily by the
    number of new pairs, with ties broken by order (Cohen et al., 1997, section 4, without random candidates).
    """
    missing, chosen = set().union(*map(pairs_of, cells)), []
    left = {cell: pairs_of(cell) for cell in cells}
    while missing:
        best = max(left, key=lambda cell: len(left[cell] & missing))
        missing -= left.pop(best)
        chosen.append(best)
    return chosen


def write_rows(folder):
    """Write the files of the tasks. Each example works for every kind of task."""
    rng = np.random.default_rng(0)
    for split, count in (("train", STEPS * BATCH), ("dev", 3)):
        rows = []
        for number in range(count):
            words = [split[:2] + str(number), *map(str, rng.choice(WORDS, rng.integers(2, 5)))]
            text = " ".join(words)
            rows.append(
                {
                    "a": text,
                    "b": words[-1],
                    "label": "xyz"[number % 3],
                    "value": number / 4,
                    "right": number % 2,
                    "words": words,
                    "tags": ["OTU"[len(word) % 3] for word in words],
                    "answers": [{"text": words[1], "answer_start": text.index(words[1])}],
                    "candidates": [words[0], " ".join(words[:2])],
                }
            )
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@dataclass(frozen=True)
class Refused:
    reason: str


class Matrix:
    """Runs cells in a folder that holds the task files and, in Hugging Face format, a base model of each
    architecture.
    """

    def __init__(self, folder):
        self._folder, self._bases, self._made = folder, {}, itertools.count()
        write_rows(folder)
        self._tokenizer = train("bytes", [], 384)

    def _base(self, architecture):
        if architecture not in self._bases:
            path = LocalPath(self._folder / architecture)
            model = tiny(architecture, layers=2)
            build_model(replace(model, vocab_size=384), SPECIAL_IDS, 1).save_pretrained(path)
            (path / "tokenizer.json").write_bytes(self._tokenizer)
            self._bases[architecture] = path, open_base(path).model
        return self._bases[architecture]

    def _job(self, method, architecture, kind):
        path, model = self._base(architecture)
        has = METHODS[method].__dataclass_fields__
        fields = {**({"tokens": TOKENS} if "tokens" in has else {}), **SETTINGS.get(method, {})}
        job = Finetuning(
            name="cell",
            model=replace(model, dropout=0.1 if "dropout" in model.traits.has else 0.0),
            tasks=(parse(Task, {**COMMON, "kind": kind, **TASKS[kind]}, "toy.yaml"),),
            files=str(self._folder),
            init=Init(str(path)),
            method=parse(METHODS[method], {"kind": method, **fields}, "method"),
            batch=BatchSize(sequences=BATCH),
            budget=TrainingBudget(steps=STEPS),
            encoding=Encoding(max_length=64),
            optimizer=Optimizer(learning_rate=1e-2),
        )
        job.check()
        corpus = open_tasks(job)
        return resolve_finetuning(job, corpus), corpus

    def make(self, method, architecture, kind):
        """Run a cell. Return `Refused` if the product refuses the cell, otherwise None; raise AssertionError
        if a check fails.
        """
        run = LocalPath(self._folder / f"run{next(self._made)}")
        try:
            job, corpus = self._job(method, architecture, kind)
            open_run(run, job, corpus)
            record = read_run(run)
            weights = base_weights(job, record["specials"], record["parent"])
            forward = build_forward(job, record["specials"], weights, corpus.encode)
            give_characters(forward.model, job.model, verified_copy(run))
        except (ConfigError, ValueError) as error:
            return Refused(str(error).splitlines()[0])
        train_steps(forward, job, corpus)
        state = ((n, {"weight": p.detach()}) for n, p in forward.model.named_parameters() if p.requires_grad)
        checkpoint.save(run, STEPS, 1, fingerprints(job, corpus), state, keep=1)
        found = checkpoint.newest(run, fail)
        expected, loaded = predict(forward, job, corpus), predict(trained_forward(run, found), job, corpus)
        assert len(expected) == len(loaded)
        for ours, theirs in zip(expected, loaded, strict=True):
            assert np.array_equal(ours, theirs), "the loaded model predicts something else"
        return None


def fail(message):
    raise AssertionError(message)


def train_steps(forward, job, corpus):
    """Train for two steps. Check that losses and gradients are finite, that the trainable parameters and no
    others have gradients, and that no frozen parameter changes.
    """
    data, parameters = task_training(corpus, job), dict(forward.model.named_parameters())
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    optimizer = SkippingAdamW(parameter_groups(forward.model, job.optimizer))
    forward.train()
    for step in range(STEPS):
        losses, count = [], 0
        for batch in data.split(data.order.take(step * BATCH, BATCH), BATCH, 0, 1):
            count += int(sum(loss.targets(batch).sum() for loss in forward.losses))
            losses.append(sum(forward(**tensors(batch, "cpu"))[loss.name].sum() for loss in forward.losses))
        loss = sum(losses) / count
        assert count
        assert math.isfinite(loss.item()), f"step {step}: the loss is {loss.item()}"
        optimizer.zero_grad()
        loss.backward()
        for name, parameter in parameters.items():
            if parameter.requires_grad:
                assert parameter.grad is not None, f"step {step}: {name} has no gradient"
                assert torch.isfinite(parameter.grad).all(), f"step {step}: the gradient of {name} is not finite"
            else:
                assert parameter.grad is None, f"step {step}: {name} is frozen, but has a gradient"
        optimizer.step()
    for name, parameter in parameters.items():
        if not parameter.requires_grad:
            assert torch.equal(parameter, before[name]), f"{name} is frozen, but has changed"
    assert any(not torch.equal(parameters[name], before[name]) for name in before), "nothing has changed"


def predict(forward, job, corpus):
    """Return a model's outputs on the dev split as arrays, and the scores of the resulting predictions."""
    held_out = task_split(corpus, job, "dev")
    forward.eval()
    if not job.writes_text:
        outputs = predict_outputs(forward, held_out, BATCH)
        predictions, arrays = held_out.predictions(outputs), [outputs.scores]
    else:
        (inputs,) = held_out.tasks
        (end,) = inputs.format.target_after[:1]
        allowed = writable_ids(corpus.tokenizer.specials, corpus.tokenizer.vocab_size, job.model.vocab_size, end)
        answers, _ = write_answers(forward, inputs, allowed, 4, held_out.length, BATCH)
        nats, tokens = target_nats(forward, inputs, BATCH)
        texts = [" ".join(map(str, answer)) for answer in answers]
        predictions, arrays = held_out.written_predictions(texts, "", nats, tokens), [nats, *answers]
    assert all(np.isfinite(array).all() for array in arrays)
    scores = score_predictions(predictions, repetitions=0)
    return [*arrays, np.array([score.value for score in scores.values()])]
