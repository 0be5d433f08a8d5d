"""Read published models: Hugging Face model directories that gristmill did not write.

Nothing is downloaded, no code from a directory runs, and weights are read only from safetensors.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gristmill.errors import ConfigError, UserError
from gristmill.host import lent
from tokenizer.vocabulary.definition import read_definition
from trainers.config.architecture import Model, fill
from trainers.models import MODELS, stack_parameters, stock_class
from trainers.models.interface import HeadForm
from trainers.runs.parent import weight_files

_TYPES = {"openai-gpt": "gpt", "deberta-v2": "deberta_v2"}
"""Our architectures by the `model_type` of `transformers`, where the two names differ."""
# DeBERTa's authors name the output layer otherwise than `transformers`, which computes the same with it.
_OUTPUT = {
    r"^lm_predictions\.lm_head\.dense\.": "cls.predictions.transform.dense.",
    r"^lm_predictions\.lm_head\.LayerNorm\.": "cls.predictions.transform.LayerNorm.",
    r"^lm_predictions\.lm_head\.bias$": "cls.predictions.bias",
}
# Of Llama, a single stock class names its stack differently from the other classes.
_RENAMES = {"deberta": _OUTPUT, "deberta_v2": _OUTPUT, "llama": {r"^transformer\.": "model."}}
# Fields of a Hugging Face configuration that change results without changing the shape of a tensor.
_DECISIVE = (
    *(
        "model_type",
        "hidden_act",
        "activation_function",
        "hidden_activation",
        "afn",
        "feed_forward_proj",
        "dense_act_fn",
    ),
    *("num_attention_heads", "n_head", "num_heads", "encoder_attention_heads", "decoder_attention_heads", "head_dim"),
    *("num_key_value_heads", "layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps", "norm_eps", "scale_embedding"),
    *("tie_word_embeddings", "relative_attention_num_buckets", "relative_attention_max_distance", "local_attention"),
    *("global_attn_every_n_layers", "layer_types", "scale_attn_weights", "scale_attn_by_inverse_layer_idx"),
    *("is_decoder", "add_cross_attention", "attention_bias", "mlp_bias", "norm_bias", "encoder_ffn_dim"),
    *(
        "conv_act",
        "pooler_hidden_act",
        "ff_activation",
        "decoder_ffn_dim",
        "type_vocab_size",
        "scale_decoder_outputs",
        "inner_group_num",
    ),
)
# Fields that decide the shapes of tensors. The number of positions and the size of the vocabulary may differ.
_SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "n_embd", "n_layer", "d_model", "d_ff", "num_layers"),
    *("num_decoder_layers", "encoder_layers", "decoder_layers"),
)
# Fields that our configurations lack, each with the only value that our models support.
_FIXED = {"position_embedding_type": "absolute", "sliding_window": None, "use_sliding_window": False}


def read_configuration(path: Path) -> Any:
    """Return the `transformers` configuration of a Hugging Face directory. Raises UserError if it cannot be
    read or its `model_type` is not supported.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    file = path / "config.json"
    try:
        written = json.loads(file.read_text(encoding="utf-8"))
        kind = written.get("model_type")
        if kind not in {*MODELS, *_TYPES} - {*_TYPES.values()}:
            known = sorted({*MODELS, *_TYPES} - {*_TYPES.values()})
            raise UserError(f"init.path: {file} has model_type {kind!r}, allowed {', '.join(known)}; use another base")
        register = MODELS[_TYPES.get(kind, kind)].register
        if register is not None:
            register()
        return AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, StrictDataclassError) as error:
        if isinstance(error, UserError):
            raise
        shown = " ".join(str(error).split())
        raise UserError(f"init.path: {file} cannot be read ({shown}); save the model again") from error


def model_of(path: Path, specials: dict[str, int]) -> Model:
    """Return the `model` section of a job for the model in a Hugging Face directory. `specials` maps the
    names of special tokens to their ids.

    Raises ConfigError if our model does not support a value in the directory's configuration, and UserError
    as `read_configuration` does.
    """
    theirs = read_configuration(path)
    name = _TYPES.get(theirs.model_type, theirs.model_type)
    try:
        model = MODELS[name].sizes(theirs)
        model.check()
    except ValueError as error:
        raise ConfigError(f"init.path: {path}/config.json: {error}; use another base") from error
    model = fill(model, model.vocab_size or read_definition(str(path / "tokenizer.json")).vocab_size)
    check_configuration(MODELS[name].configuration(model, specials).to_dict(), theirs.to_dict(), path)
    return model


def check_configuration(ours: Mapping[str, Any], theirs: Mapping[str, Any], path: Path) -> None:
    """Raise ConfigError if two Hugging Face configurations, `ours` for our model and `theirs` from `path`,
    differ in a field of `_SIZES` or `_DECISIVE` that both set, in a field of `_FIXED` that `theirs` sets, or in how they
    scale rotary positions.
    """
    for name in (*_SIZES, *_DECISIVE, *_FIXED):
        here, there = ours.get(name, _FIXED.get(name)), theirs.get(name)
        if here != there and (None not in (here, there) or (name in _FIXED and there is not None)):
            raise ConfigError(
                f"init.path: {name}: {path}/config.json has {there!r}, this run's model {here!r}; change the model "
                f"section, or use another parent"
            )
    types = [_rope_types(each.get("rope_parameters") or {}) for each in (ours, theirs)]
    if types[0] != types[1]:
        raise ConfigError(
            f"init.path: {path}/config.json scales its rotary positions ({types[1]}), which is not supported"
        )


def _rope_types(parameters: Mapping[str, Any]) -> list[str]:
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return sorted({str(each.get("rope_type", "default")) for each in (nested or [dict(parameters)])})


def published_weights(path: Path, model: Model) -> tuple[dict[str, Any], list[str]]:
    """Return the parameters in a Hugging Face directory, as {name in our models: fp32 tensor}, and the names
    of our parameters that the directory lacks. Raises UserError if a parameter that the hidden states depend
    on is missing, if a tensor's shape contradicts `config.json`, or if the files cannot be read.
    """
    import torch
    from safetensors import SafetensorError

    weight_files(path)
    given = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True, "dtype": torch.float32}
    reported = {"ignore_mismatched_sizes": True, "output_loading_info": True}
    try:
        with _quiet():
            network, info = stock_class(model).from_pretrained(
                path, **given, **reported, key_mapping=_RENAMES.get(model.architecture)
            )
    except (OSError, SafetensorError) as error:
        raise UserError(f"init.path: the tensors of {path} cannot be read ({error}); copy them again") from error
    if wrong := sorted(info["mismatched_keys"]):
        name, there, expected = wrong[0]
        raise UserError(
            f"init.path: tensor {name}: {path} has {list(there)}, its config.json requires {list(expected)}; copy config.json "
            f"and the tensors again"
        )
    weights = {name: parameter.detach() for name, parameter in network.named_parameters()}
    absent = sorted(name for name in info["missing_keys"] if name in weights)
    if lost := sorted(set(absent) & stack_parameters(network, model)):
        raise UserError(f"init.path: {path} has no tensor {lost[0]} ({len(lost)} are missing); use another base")
    if model.architecture == "roberta":  # the position table of an export may begin with unused rows
        name = "roberta.embeddings.position_embeddings.weight"
        weights[name] = weights[name][-(model.positions + 2) :]
    return {name: weight for name, weight in weights.items() if name not in absent}, absent


def published_head(path: Path, form: HeadForm) -> dict[str, Any]:
    """Return the parameters of the task head in a Hugging Face directory, as {name, beginning with
    `task_head.`: fp32 tensor}. Parameters that the directory lacks are left out.
    """
    from safetensors import safe_open

    tensors = {}
    for file in weight_files(path):
        with safe_open(lent(file), "pt") as opened:
            names = set(opened.keys())
            for layer in ("dense", "norm", "output"):
                for part in ("weight", "bias"):
                    stock = f"{getattr(form, layer)}.{part}"
                    name = next((each for each in (stock, stock.partition(".")[2]) if each in names), None)
                    if name is not None:
                        tensors[f"task_head.{layer}.{part}"] = opened.get_tensor(name).float()
    return tensors


@contextmanager
def _quiet() -> Iterator[None]:
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
