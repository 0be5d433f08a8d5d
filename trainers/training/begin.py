"""Read the tensors that a run starts from, those of its parent (`init`) or of its fine-tuning base, and check
that they fit the run's model.

Weights are read from safetensors only, and no code from the parent's directory is executed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from gristmill.errors import ConfigError
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import read_json
from trainers.config.architecture import RECURRENT_RATES, Model
from trainers.config.finetuning import Finetuning
from trainers.config.job import Job
from trainers.data.job_interface import JobCorpus
from trainers.inference.base import base_weights
from trainers.inference.export_form import config_of
from trainers.inference.model_export import load_trained
from trainers.models import MODELS
from trainers.runs import checkpoint
from trainers.runs.checkpoint import Checkpoint, ParallelLayout
from trainers.runs.parent import (
    checkpoint_of,
    kind_of,
    read_published,
    read_vocabularies,
    require_unchanged,
    weight_files,
    weights_digest,
)
from trainers.runs.published_model import check_configuration, published_weights, read_configuration
from trainers.runs.run import read_config, read_run
from trainers.training.transfer_vocabulary import transfer_vocabulary

# Fields that may differ from the parent's model: they change no tensor, or are meant to change (longer
# contexts).
_FREE_SIZES = (
    *("positions", "dropout", "initializer_range", "rope_base", "vocab_size"),
    *("sentence_head", "boundary_head", "mask_decoder"),
    *RECURRENT_RATES,
)


class _Weights(Mapping[str, dict[str, Any]]):
    """Weights with a new optimizer state, in the form that `Engine.restore` takes."""

    def __init__(self, weights: Mapping[str, Any]) -> None:
        self._weights = weights

    def __getitem__(self, name: str) -> dict[str, Any]:
        weight = self._weights[name]
        zeros = weight.new_zeros(weight.shape)
        return {"weight": weight, "exp_avg": zeros, "exp_avg_sq": zeros, "momentum_buffer": zeros, "iterate": weight}

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def read_state(
    config: Job, corpus: JobCorpus, record: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> Mapping[str, dict[str, Any]]:
    """Read the initial weights and optimizer state of a run whose config has `init`, in the form that
    `Engine.restore` takes: {parameter name: {"weight": tensor, moment: tensor, ...}}. The optimizer state is
    the parent's if it is kept, otherwise a new one. `record` describes the parent, as `parent` in `run.json`
    does. `shapes` maps this run's parameters to their shapes.

    Raises UserError if the parent's files have changed, and ConfigError if the models differ or the optimizer
    state cannot be kept.
    """
    init = config.init
    assert init is not None
    path, kind, specials = LocalPath(init.path), record["kind"], corpus.tokenizer.specials
    if kind == "hugging_face":
        require_unchanged(path, weights_digest(path), record["fingerprints"]["weights"])
        weights = _hugging_face(path, config.model, specials)
    elif kind == "export":
        require_unchanged(path, read_json(path / "gristmill.json", "export again")["checkpoint"], record["checkpoint"])
        trained = load_trained(path)
        _check_model(config.model, trained.config.model)
        weights = dict(trained.model.named_parameters())
    else:
        parent, theirs = checkpoint_of(path, record["step"]), read_config(path)
        require_unchanged(path, parent.checksum, record["checkpoint"])
        _check_model(config.model, theirs.model)
        if init.optimizer == "keep" and config.optimizer.kind != theirs.optimizer.kind:
            raise ConfigError(
                f"init.optimizer: got keep, {path} was trained with {theirs.optimizer.kind} and this run with "
                f"{config.optimizer.kind}, which keeps a different state; set it to reset"
            )
        if init.vocabulary == "transfer":
            return _transferred(checkpoint.read_weights(parent), config, corpus, path, shapes)
        state = checkpoint.read_state(parent)
        _check_shapes({name: tuple(state[name]["weight"].shape) for name in state}, shapes, path)
        return _kept(state, path) if init.optimizer == "keep" else _Weights(checkpoint.read_weights(parent))
    weights = {name: weight.detach() for name, weight in weights.items()}
    for name, shape in shapes.items():  # the position table of a RoBERTa export may begin with unused rows
        if name.endswith("position_embeddings.weight") and name in weights and len(weights[name]) > shape[0]:
            weights[name] = weights[name][-shape[0] :] if config.model.architecture == "roberta" else weights[name]
    if init.vocabulary == "transfer":
        return _transferred(weights, config, corpus, path, shapes)
    _check_shapes({name: tuple(weight.shape) for name, weight in weights.items()}, shapes, path)
    return _Weights(weights)


def check_parent(config: Job, specials: dict[str, int]) -> None:
    """Check that the model of a new run fits its parent as that is configured. Weights are not read: tensors
    that contradict the parent's configuration are found when training begins.

    Raises ConfigError if the models differ, and UserError if the parent's configuration cannot be read.
    """
    assert config.init is not None
    path = LocalPath(config.init.path)
    kind = kind_of(path)
    if kind == "hugging_face":
        _check_published(path, config.model, specials)
    elif kind == "export":
        _check_model(config.model, config_of(path, read_json(path / "gristmill.json", "export again")).model)
    else:
        _check_model(config.model, read_config(path).model)


def _transferred(
    weights: Mapping[str, Any],
    config: Job,
    corpus: JobCorpus,
    path: LocalPath,
    shapes: Mapping[str, tuple[int, ...]],
) -> _Weights:
    vocabularies = read_vocabularies(path, corpus)
    weights = transfer_vocabulary(weights, config.model, corpus.tokenizer.specials, *vocabularies)
    _check_shapes({name: tuple(weight.shape) for name, weight in weights.items()}, shapes, path)
    return _Weights(weights)


def initial_base(config: Job, corpus: JobCorpus, run: LocalPath) -> Mapping[str, Any]:
    """Return the weights of a fine-tuning run's base, {parameter name: tensor}. Empty for other runs, and for
    a run without a base. Raises UserError if the base is missing or has changed, and ConfigError if its model
    differs from the run's.
    """
    parent = read_run(run).get("parent")
    if not isinstance(config, Finetuning) or parent is None:
        return {}
    return base_weights(config, corpus.tokenizer.specials, parent)


def describe_new(forward: Any, config: Job, base: Mapping[str, Any]) -> str:
    """Describe in one line the parameters that a fine-tuning run trains but does not initialise from its
    base. Return an empty string if there are none, or if the run has no base.
    """
    if not isinstance(config, Finetuning) or not base:
        return ""
    head: list[tuple[str, int]] = []
    added: list[tuple[str, int]] = []
    for name, parameter in forward.model.named_parameters():
        its = name.startswith("task_head.")
        filled = name in base and base[name].shape == parameter.shape and not name.startswith("task_head.output.")
        if parameter.requires_grad and not filled:
            (head if its else added).append((name.removeprefix("task_head."), parameter.numel()))
    parts = []
    if head:
        layers = dict.fromkeys(name.rpartition(".")[0] for name, _ in head)
        parts.append(f"head of the task: {', '.join(layers)} ({sum(size for _, size in head):,} parameters)")
    if added:
        count = f"{len(added)} tensors, the first is" if len(added) > 1 else "the tensor"
        parts.append(f"{config.method.kind}: {count} {added[0][0]} ({sum(size for _, size in added):,} parameters)")
    return "; ".join(parts)


def describe_resume(resumed: Checkpoint, now: ParallelLayout, drops: bool) -> str:
    """Return a line that says where a run continues, with a warning if the run has dropout (`drops`) and its
    number of workers or its micro-batch has changed.
    """
    message, before = f"from step {resumed.step}, {resumed.tokens:,} tokens", resumed.split
    if before != now and drops:
        message += (
            f"; {before.workers} workers with micro-batches of {before.micro_batch} are now {now.workers} with "
            f"{now.micro_batch}: dropout draws other numbers, so the tokens are exact and the losses only "
            f"statistically equal"
        )
    return message


def _kept(state: Mapping[str, dict[str, Any]], path: Path) -> Mapping[str, dict[str, Any]]:
    if any(len(state[name]) == 1 for name in list(state)[:1]):
        raise ConfigError(f"init.optimizer: got keep, the checkpoint of {path} has no optimizer state; set it to reset")
    return state


def _check_shapes(theirs: Mapping[str, tuple[int, ...]], ours: Mapping[str, tuple[int, ...]], path: Path) -> None:
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        here, there = ours.get(name), theirs.get(name)
        if here != there:
            shown = [f"has {list(shape)}" if shape is not None else "has none" for shape in (there, here)]
            raise ConfigError(
                f"init.path: tensor {name}: {path} {shown[0]}, this run's model {shown[1]}; give the model section the "
                f"parent's sizes"
            )


def _check_model(ours: Model, theirs: Model) -> None:
    for field in fields(Model):
        here, there = getattr(ours, field.name), getattr(theirs, field.name)
        if here != there and field.name not in _FREE_SIZES:
            raise ConfigError(f"model.{field.name}: got {here}, the model of init.path has {there}; set it to this")


def _check_published(path: LocalPath, model: Model, specials: dict[str, int]) -> None:
    weight_files(path)
    written = read_published(path)
    ours = MODELS[model.architecture].configuration(model, specials)
    if written.get("model_type") != ours.model_type:
        raise ConfigError(
            f"model.architecture: got {model.architecture} ({ours.model_type}), {path} holds {written.get('model_type')!r}; "
            f"give the recipe of that architecture"
        )
    if model.position != model.traits.positions[0]:
        raise ConfigError(f"model.position: got {model.position}, {path} has {model.traits.positions[0]}")
    check_configuration(ours.to_dict(), read_configuration(path).to_dict(), path)


def _hugging_face(path: LocalPath, model: Model, specials: dict[str, int]) -> dict[str, Any]:
    _check_published(path, model, specials)
    weights, absent = published_weights(path, model)
    if absent:
        raise ConfigError(
            f"init.path: {path} has no tensor {absent[0]} ({len(absent)} are missing); use another recipe"
        )
    return weights
