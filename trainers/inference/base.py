"""The base that a fine-tuning run begins with: a run, an export or a Hugging Face directory.

open_base(path) -> sizes, tokenizer, specials      base_weights(config) -> tensors      trained_forward(run) -> its model
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from gristmill.errors import ConfigError, UserError
from gristmill.host import lent
from gristmill.storage.disk import LocalPath
from tokenizer.vocabulary.definition import read_definition
from tokenizer.vocabulary.specials import add_fallback_marks
from trainers.adapters.adapter_files import base_fingerprint, save_adapter
from trainers.config.architecture import Model
from trainers.config.finetuning import Finetuning
from trainers.config.job import Job
from trainers.engine.assembly import base_network, build_forward
from trainers.engine.forward import Forward
from trainers.inference.export_form import WEIGHTS, read_export
from trainers.models import MODELS, build_model
from trainers.models.interface import HeadKind
from trainers.runs import checkpoint
from trainers.runs.parent import checkpoint_of, kind_of, require_unchanged, weights_digest
from trainers.runs.published_model import model_of, published_head, published_weights
from trainers.runs.run import read_config, read_run, verified_copy


@dataclass(frozen=True)
class Base:
    """What a fine-tuning run must know about its base before it reads a tensor.

    `kind` is that of `runs.parent.kind_of`. `specials` are the ids of the tokenizer's special tokens by role.
    `step` is that of a run's checkpoint, None for other bases.
    """

    path: LocalPath
    kind: str
    model: Model
    tokenizer: LocalPath
    specials: dict[str, int]
    step: int | None = None


def open_base(path: LocalPath, step: int | None = None) -> Base:
    """Open the base at `path`; of a run, the checkpoint of `step` or the newest.

    Raises UserError or ConfigError if `path` is not a base, or if we do not support its model.
    """
    kind = kind_of(path)
    if kind == "run":
        found = checkpoint_of(path, step)
        return Base(path, kind, read_config(path).model, verified_copy(path), read_run(path)["specials"], found.step)
    tokenizer = path / "tokenizer.json"
    if not tokenizer.is_file():
        raise UserError(f"init.path: {path} has no tokenizer.json; save its tokenizer there")
    specials = add_fallback_marks(read_definition(str(tokenizer)).roles)
    model = read_export(path)[1].model if kind == "export" else model_of(path, specials)
    return Base(path, kind, model, tokenizer, specials)


def base_weights(config: Job, specials: dict[str, int], record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors that a fine-tuning run begins with: {parameter name: fp32 tensor on the CPU}.

    Names that the base lacks are left out, and so are the heads of its pretraining unless the run uses them.
    If the base has hidden layers of a head, they are `task_head.*`. `record` describes the parent, as in
    `run.json`. Raises UserError if its files have changed or lack what the run needs, ConfigError if the
    run's model is another one.
    """
    assert config.init is not None
    path = LocalPath(config.init.path)
    base = open_base(path, record.get("step"))
    _check_sizes(config.model, base.model)
    if base.kind == "hugging_face":
        require_unchanged(path, weights_digest(path), record["fingerprints"]["weights"])
        weights = _published(path, base.model, config)
    elif base.kind == "export":
        require_unchanged(path, read_export(path)[0]["checkpoint"], record["checkpoint"])
        weights = _exported(path, base.model, config)
    else:
        found = checkpoint_of(path, record["step"])
        require_unchanged(path, found.checksum, record["checkpoint"])
        weights = _weights_of_run(path, found)
    if _head_kind(config) is None and (absent := _absent(config, specials, weights)):
        raise UserError(
            f"init.path: {path} has no tensor {absent[0]} ({len(absent)} are missing), which writes text; take another base"
        )
    return weights


def trained_forward(run: LocalPath, found: checkpoint.Checkpoint, weights: Mapping[str, Any] | None = None) -> Forward:
    """Return the model of a run at a checkpoint with its losses, ready to predict, in fp32 on the CPU.
    `weights` are those of the checkpoint; None reads them.
    """
    import torch

    config, record = read_config(run), read_run(run)
    forward = build_forward(config, record["specials"], _frozen(config, record))
    parameters = dict(forward.model.named_parameters())
    with torch.no_grad():
        for name, weight in (checkpoint.read_weights(found) if weights is None else weights).items():
            parameters[name].copy_(weight)
    forward.eval()
    return forward


def _frozen(config: Job, record: Mapping[str, Any]) -> dict[str, Any]:
    """The weights that checkpoints of a run do not have: those of its base, where its method freezes it."""
    if isinstance(config, Finetuning) and config.method.freezes and record.get("parent"):
        return base_weights(config, record["specials"], record["parent"])
    return {}


def save_run_adapter(run: LocalPath, found: checkpoint.Checkpoint, directory: LocalPath) -> None:
    """Write the parameters that a run's method has trained to a new directory (`adapters.adapter_files`)."""
    config, record = read_config(run), read_run(run)
    assert isinstance(config, Finetuning)
    base = base_network(config, record["specials"], _frozen(config, record))
    fingerprint, path = base_fingerprint(base), config.init.path if config.init else None
    sizes = (config.model.architecture, config.model.family)
    save_adapter(directory, trained_forward(run, found).model, config.method, *sizes, fingerprint, path)


def _weights_of_run(run: LocalPath, found: checkpoint.Checkpoint) -> dict[str, Any]:
    """The weights of a run; what its method has added is merged into them."""
    config, record = read_config(run), read_run(run)
    if not isinstance(config, Finetuning) or not config.method.freezes:
        return checkpoint.read_weights(found)
    if not config.method.mergeable:
        raise ConfigError(
            f"init.path: {run} was fine-tuned by {config.method.kind}, which adds what no weight of a base can hold; take a run "
            f"of another method"
        )
    network = trained_forward(run, found).model
    config.method.merge(network)
    weights = {name: parameter.detach() for name, parameter in network.named_parameters()}
    if record.get("parent") is None:
        return weights
    known = base_weights(config, record["specials"], record["parent"])
    return {name: weight for name, weight in weights.items() if name in known or name.startswith("task_head.")}


def _published(path: LocalPath, model: Model, config: Job) -> dict[str, Any]:
    weights, _ = published_weights(path, model)
    kind = _head_kind(config)
    return weights if kind is None else weights | published_head(path, MODELS[model.architecture].heads[kind])


def _exported(path: LocalPath, model: Model, config: Job) -> dict[str, Any]:
    """An export that plain `transformers` does not load has the tensors by our names."""
    from safetensors.torch import load_file

    if read_export(path)[0]["transformers"]["loads"]:
        return _published(path, model, config)
    return dict(load_file(lent(path / WEIGHTS)))


def _head_kind(config: Job) -> HeadKind | None:
    return config.head_kind if isinstance(config, Finetuning) else None


def _absent(config: Job, specials: dict[str, int], weights: Mapping[str, Any]) -> list[str]:
    return [name for name, _ in build_model(config.model, specials, 0).named_parameters() if name not in weights]


def _check_sizes(ours: Model, theirs: Model) -> None:
    """Raise ConfigError if the model of a run cannot hold the tensors of its base, or would compute something else."""
    free = {"dropout", "initializer_range", "sentence_head"}
    if theirs.scheme != "learned":  # without a table of positions
        free.add("positions")
    for field in fields(Model):
        here, there = getattr(ours, field.name), getattr(theirs, field.name)
        if here != there and field.name not in free:
            raise ConfigError(f"model.{field.name}: got {here}, the model of init.path has {there}; leave it out")
