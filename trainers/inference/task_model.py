"""A fine-tuned model that makes predictions: a run, an export, or an export's adapter on its base."""

from dataclasses import dataclass, replace
from typing import Any

from gristmill.errors import UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import read_json
from trainers.adapters.adapter_files import load_adapter
from trainers.config.finetuning import Finetuning
from trainers.config.job import Init, Job
from trainers.config.job_kinds import parse_job
from trainers.data.examples.task_corpus import TaskCorpus, open_tasks
from trainers.engine.assembly import build_without_method
from trainers.engine.forward import Forward
from trainers.inference.base import base_weights, exported_weights, trained_forward
from trainers.inference.export_form import ADAPTER, ORIGIN, read_origin
from trainers.models import give_characters
from trainers.runs import checkpoint
from trainers.runs.parent import describe, settle
from trainers.runs.run import SCORES, read_config, verified_copy


@dataclass(frozen=True)
class TaskModel:
    """A model fine-tuned on a single task, from a run or an export at `path`. `threshold` is the no-answer
    threshold, if the run has tuned one. `found` is the run's checkpoint; None for an export.
    """

    path: LocalPath
    config: Finetuning
    tokenizer: LocalPath
    threshold: float | None
    found: checkpoint.Checkpoint | None = None

    def forward(self, base: LocalPath | None, corpus: TaskCorpus) -> Forward:
        """Return the model with its loss functions, in evaluation mode, in fp32 on the CPU. `corpus` must
        have the model's tokenizer. `base` is the base of an exported adapter; the default is the base that
        the adapter's run recorded.

        Raises UserError if `base` is given for a model that is not an exported adapter, and ConfigError if
        `base` is not the one that the adapter was trained on.
        """
        adapter = self.path / ADAPTER
        if base is not None and (self.found is not None or not adapter.is_dir()):
            raise UserError(f"--model: got {base}, {self.path} has its base already; leave it out")
        if self.found is not None:
            return trained_forward(self.path, self.found)
        specials = corpus.tokenizer.specials
        if not adapter.is_dir():
            weights = exported_weights(self.path, self.config)
            forward = build_without_method(self.config, specials, weights)
            _fill_head(forward.model, weights)
            give_characters(forward.model, self.config.model, self.tokenizer)
            return forward.eval()
        known = self.config.init
        if base is not None:
            same = known is not None and str(base.resolve()) == known.path
            known = settle(Init(path=str(base), step=known.step if same and known else None))
        config = replace(self.config, init=known)
        record = describe(config, open_tasks(config)) if known is not None else None
        weights = base_weights(config, specials, record) if record is not None else {}
        forward = build_without_method(config, specials, weights)
        give_characters(forward.model, config.model, self.tokenizer)
        load_adapter(adapter, forward.model, config.model.architecture, config.model.family)
        return forward.eval()


def open_task_model(path: LocalPath) -> TaskModel:
    """Open a fine-tuned model: a run, an export, or the `adapter` of an export. Raises UserError if `path` is
    none of these, if a run has no checkpoint, or if the model was trained on several tasks.
    """
    if path.name == ADAPTER and (path.parent / ORIGIN).exists():
        path = LocalPath(path.parent)
    if (path / ORIGIN).exists():
        origin = read_origin(path)
        config = _one_task(path, parse_job(origin["config"], str(path / ORIGIN)))
        return TaskModel(path, config, path / "tokenizer.json", origin.get("threshold"))
    config = _one_task(path, read_config(path) if (path / "run.json").exists() else None)
    found = checkpoint.pick(path, print)
    if found is None:
        raise UserError(f"{path}: has no checkpoint yet; let it train until the first one")
    return TaskModel(path, config, verified_copy(path), threshold_of(path), found)


def threshold_of(run: LocalPath) -> float | None:
    """Return the no-answer threshold that a run has tuned, or None if it has tuned none."""
    return read_json(run / SCORES).get("threshold") if (run / SCORES).exists() else None


def _one_task(path: LocalPath, config: Job | None) -> Finetuning:
    if not isinstance(config, Finetuning) or len(config.tasks) > 1:
        raise UserError(
            f"{path}: is not a model fine-tuned on a single task; give a run of `finetune` with one task, or its export"
        )
    return config


def _fill_head(network: Any, weights: dict[str, Any]) -> None:
    """Copy the parameters of the task head from `weights` to `network`, including those of the output layer,
    which a new fine-tuning run would initialise at random.
    """
    import torch

    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.startswith("task_head."):
                parameter.copy_(weights[name])
