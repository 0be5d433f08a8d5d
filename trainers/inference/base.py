"""The base that a fine-tuning run starts from (a run, an export or a Hugging Face directory), and the model
of a trained run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from gristmill.errors import ConfigError, UserError
from gristmill.host import lent
from gristmill.storage.disk import LocalPath
from tokenizer.vocabulary.definition import read_definition
from tokenizer.vocabulary.specials import add_fallback_marks
from trainers.adapters.adapter_files import StockHead, base_fingerprint, save_adapter
from trainers.config.architecture import PRETRAINING_ONLY, RECURRENT_RATES, Model
from trainers.config.finetuning import Finetuning
from trainers.config.job import Job
from trainers.data.examples.task_corpus import TaskCorpus
from trainers.engine.assembly import base_network, build_forward
from trainers.engine.forward import Forward
from trainers.inference.export_form import WEIGHTS, read_export, read_whole
from trainers.models import MODELS, build_model, give_characters
from trainers.models.encoders.disentangled.disentangled_embedding import merge_embeddings
from trainers.models.heads.stock_heads import stock_names, why_not_stock_head
from trainers.models.interface import HeadKind
from trainers.runs import checkpoint
from trainers.runs.parent import checkpoint_of, describe, kind_of, require_parent, require_unchanged, weights_digest
from trainers.runs.published_model import model_of, published_head, published_weights
from trainers.runs.run import read_config, read_run, verified_copy

_PEFT_TASKS = {"classify": "SEQ_CLS", "regress": "SEQ_CLS", "tag": "TOKEN_CLS", "span": "QUESTION_ANS"}


@dataclass(frozen=True)
class Base:
    """The base of a fine-tuning run, without its tensors.

    `kind` is `run`, `export` or `hugging_face`. `specials` maps the roles of the tokenizer's special tokens
    to their ids. `step` is the step of the checkpoint if the base is a run, otherwise None.
    """

    path: LocalPath
    kind: str
    model: Model
    tokenizer: LocalPath
    specials: dict[str, int]
    step: int | None = None


def open_base(path: LocalPath, step: int | None = None) -> Base:
    """Open the base at `path`. For a run, `step` selects the checkpoint; None selects the best of a
    fine-tuning run, otherwise the newest. Raises UserError or ConfigError if the base cannot be used.
    """
    kind = kind_of(path)
    if kind == "run":
        picked = checkpoint_of(path, step)
        return Base(path, kind, read_config(path).model, verified_copy(path), read_run(path)["specials"], picked.step)
    tokenizer = path / "tokenizer.json"
    if not tokenizer.is_file():
        raise UserError(f"init.path: {path} has no tokenizer.json; save its tokenizer there")
    specials = add_fallback_marks(read_definition(str(tokenizer)).roles)
    model = read_export(path)[1].model if kind == "export" else model_of(path, specials)
    return Base(path, kind, model, tokenizer, specials)


def base_weights(config: Job, specials: dict[str, int], record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors that a fine-tuning run starts from: {parameter name: fp32 tensor on the CPU}. They
    may include parameters that the run does not use. If the run has a task head, parameters that the base
    lacks are left out. `record` describes the base, as `parent` in `run.json` does.

    Raises UserError if the base's files are missing or have changed, or if the base lacks a tensor of the
    model of a run without a task head. Raises ConfigError if the run's model does not fit the base's, or if
    the parameters of the base's method cannot be merged into the weights.
    """
    assert config.init is not None
    path = LocalPath(config.init.path)
    require_parent(record)
    base = open_base(path, record.get("step"))
    _check_sizes(config.model, base.model)
    if base.kind == "hugging_face":
        require_unchanged(path, weights_digest(path), record["fingerprints"]["weights"])
        weights = _published(path, base.model, config)
    elif base.kind == "export":

        def read(origin: dict[str, Any]) -> dict[str, Any]:
            require_unchanged(path, origin["checkpoint"], record["checkpoint"])
            return _tensors(path, origin, config)

        weights = read_whole(path, read)
    else:
        parent = checkpoint_of(path, record["step"])
        require_unchanged(path, parent.checksum, record["checkpoint"])
        weights = _weights_of_run(path, parent)
    if _head_kind(config) is None and (absent := _absent(config, specials, weights)):
        raise UserError(
            f"init.path: {path} has no tensor {absent[0]} ({len(absent)} are missing), which is needed to generate text; "
            f"use another base"
        )
    return weights


def check_model(config: Finetuning, corpus: TaskCorpus) -> None:
    """Check that the model of a resolved fine-tuning run can be built and that the weights of its base can be
    loaded. Raises the errors of `build_forward` and `base_weights`.
    """
    import torch

    specials = corpus.tokenizer.specials
    with torch.device("meta"):
        build_forward(config, specials, {}, corpus.encode)
    if config.init is not None:
        base_weights(config, specials, describe(config, corpus))


def trained_forward(run: LocalPath, picked: checkpoint.Checkpoint, weights: Mapping[str, Any] | None = None) -> Forward:
    """Return the model of a run at a checkpoint, with the run's loss functions, in evaluation mode, in fp32
    on the CPU. `weights` are those of the checkpoint; by default, they are read from it.
    """
    import torch

    config, record = read_config(run), read_run(run)
    forward = build_forward(config, record["specials"], _frozen(config, record))
    parameters = dict(forward.model.named_parameters())
    with torch.no_grad():
        for name, weight in (checkpoint.read_weights(picked) if weights is None else weights).items():
            parameters[name].copy_(weight)
    give_characters(forward.model, config.model, verified_copy(run))
    forward.eval()
    return forward


def _frozen(config: Job, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the weights of a run's base if the run's method freezes the base, so that its checkpoints lack
    them; otherwise an empty dictionary.
    """
    if isinstance(config, Finetuning) and config.method.freezes and record.get("parent"):
        return base_weights(config, record["specials"], record["parent"])
    return {}


def save_run_adapter(run: LocalPath, picked: checkpoint.Checkpoint, directory: LocalPath) -> None:
    """Write the adapter of a fine-tuning run (the parameters that it trains), from the checkpoint `picked`,
    to the new `directory`.
    """
    config, record = read_config(run), read_run(run)
    assert isinstance(config, Finetuning)
    sizes, network = config.model, trained_forward(run, picked).model
    base = base_network(config, record["specials"], _frozen(config, record))
    fingerprint, path = base_fingerprint(base, sizes.architecture), config.init.path if config.init else None
    head = _stock_head(config, network)
    save_adapter(directory, network, config.method, sizes.architecture, sizes.family, fingerprint, path, head)


def _stock_head(config: Finetuning, network: Any) -> StockHead | None:
    kind, architecture = config.head_kind, MODELS[config.model.architecture]
    if kind is None or why_not_stock_head(architecture, config.model, kind, config.head.pooling, config.layers):
        return None
    return StockHead(*stock_names(network, architecture), _PEFT_TASKS.get(kind))


def _weights_of_run(run: LocalPath, picked: checkpoint.Checkpoint) -> dict[str, Any]:
    """Return a run's weights at a checkpoint, keyed by parameter name. Parameters that its fine-tuning method
    added are merged into the weights of the base. Raises ConfigError if the method does not allow this.
    """
    config, record = read_config(run), read_run(run)
    if not isinstance(config, Finetuning) or not config.method.freezes:
        return merge_embeddings(checkpoint.read_weights(picked))
    if not config.method.mergeable:
        raise ConfigError(
            f"init.path: {run} was fine-tuned with {config.method.kind}, whose parameters cannot be merged into weights "
            f"of a base; use a run with another method"
        )
    network = trained_forward(run, picked).model
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


def exported_weights(path: LocalPath, config: Job) -> dict[str, Any]:
    """Verify an export and return its tensors under their names in our models. If `config` has a task head,
    its tensors are included.
    """
    return read_whole(path, lambda origin: _tensors(path, origin, config))


def _tensors(path: LocalPath, origin: Mapping[str, Any], config: Job) -> dict[str, Any]:
    from safetensors.torch import load_file

    if origin["transformers"]["loads"]:
        return _published(path, config.model, config)
    return dict(load_file(lent(path / WEIGHTS)))


def _head_kind(config: Job) -> HeadKind | None:
    return config.head_kind if isinstance(config, Finetuning) else None


def _absent(config: Job, specials: dict[str, int], weights: Mapping[str, Any]) -> list[str]:
    return [name for name, _ in build_model(config.model, specials, 0).named_parameters() if name not in weights]


def _check_sizes(ours: Model, theirs: Model) -> None:
    free = {"dropout", "initializer_range", "sentence_head", *PRETRAINING_ONLY, *RECURRENT_RATES}
    if theirs.scheme not in ("learned", "disentangled"):  # neither a table nor ranges of distances depend on the length
        free.add("positions")
    for field in fields(Model):
        here, there = getattr(ours, field.name), getattr(theirs, field.name)
        if here != there and field.name not in free:
            raise ConfigError(f"model.{field.name}: got {here}, the model of init.path has {there}; leave it out")
