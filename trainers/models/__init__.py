"""Build models from an architecture's name, its sizes and a seed, and relate them to the stock models of
`transformers`.

To add an architecture, add its traits to `trainers.config.architecture.ARCHITECTURES`, keyed by its name, and
define `ARCHITECTURE` in a module of that name in the folder `Traits.folder`. For fine-tuning, also describe
its blocks in `trainers.adapters.shared.blocks.BLOCKS`.
"""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizer.vocabulary.definition import read_definition
from tokenizer.vocabulary.specials import add_fallback_marks
from trainers.config.architecture import ARCHITECTURES, Model, generator_of
from trainers.models.interface import Architecture
from trainers.objectives.shared.spellings import spellings

MODELS: dict[str, Architecture] = {
    name: importlib.import_module(f"trainers.models.{traits.folder}.{name}").ARCHITECTURE
    for name, traits in ARCHITECTURES.items()
}
_STOCK = {
    "decoder": "AutoModelForCausalLM",
    "encoder": "AutoModelForMaskedLM",
    "encoder_decoder": "AutoModelForSeq2SeqLM",
}


def build_model(model: Model, specials: dict[str, int], seed: int) -> Any:
    """Build a freshly initialised fp32 `transformers` language model.

    The weights depend only on the arguments; the caller's random state is unchanged. `model` must be resolved
    (`trainers.config.architecture.fill`).
    """
    import torch
    import transformers

    architecture = MODELS[model.architecture]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        configuration = architecture.configuration(model, specials)
        configuration._attn_implementation = architecture.attention
        configuration.dtype = torch.float32
        if architecture.create is not None:
            network = architecture.create(configuration, model, specials)
        else:
            network = getattr(transformers, _STOCK[model.family]).from_config(configuration)
        _replace_positions(network, architecture, model)
        _fuse_gelu(network)
    if model.tied_stacks:
        _tie_stacks(network, architecture)
    return network


def give_characters(network: Any, model: Model, tokenizer: Path) -> None:
    """Tell a network that reads characters how the tokens in a `tokenizer.json` are spelled. Other networks
    are unchanged.
    """
    spell = MODELS[model.architecture].spell
    if spell is not None:
        definition = read_definition(str(tokenizer))
        spell(network, spellings(definition), add_fallback_marks(definition.roles))


def _fuse_gelu(network: Any) -> None:
    """Make a network compute GELU's tanh approximation in one operation; `transformers` takes several."""
    from torch.nn import GELU
    from transformers.activations import NewGELUActivation

    for module in list(network.modules()):
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, GELU(approximate="tanh"))


def language_model(network: Any, model: Model) -> tuple[Any, Model]:
    """Return the network that predicts tokens, and its sizes: the generator if there is one, otherwise the
    whole network.
    """
    return (network, model) if model.generator_size is None else (network.generator, generator_of(model))


def stock_parts(network: Any, model: Model) -> dict[str, Any]:
    """Return the stock models that make up a network, keyed by their subdirectory of an export ("" for the
    export itself).
    """
    if model.generator_size is None:
        return {"": network}
    parts = MODELS[model.architecture].parts
    assert parts is not None
    return parts(network)


def load_parts(network: Any, model: Model, read: Callable[[str, Any], Mapping[str, Any]]) -> None:
    """Load the parts of a network that has a generator. `read` takes a part's directory in an export and the
    part's class, and returns the part's tensors.
    """
    parts = stock_parts(network, model)
    for directory, part in parts.items():
        part.load_state_dict(read(directory, type(part)))
    if hasattr(network, "adopt"):  # its discriminator has a copy of the embeddings
        network.adopt(parts[""])


def stack_parameters(network: Any, model: Model) -> set[str]:
    """Return the names of the parameters that a model's hidden states depend on. Pretraining heads, poolers,
    a generator and XLNet's `mask_emb` are left out.
    """
    stacks = [network.get_encoder(), network.get_decoder()] if model.decoder_layers else [network.base_model]
    used = {id(parameter) for stack in stacks for parameter in stack.parameters()}
    names = {name for name, parameter in network.named_parameters() if id(parameter) in used}
    return {name for name in names if ".pooler." not in name and not name.endswith(".mask_emb")}


def stock_class(model: Model) -> Any:
    """Return the class that loads a model of these sizes: a class of `transformers` or one of ours."""
    import transformers

    own = MODELS[model.architecture].own_class
    if own is not None:
        return own()
    if model.sentence_head:
        return transformers.AutoModelForPreTraining
    return getattr(transformers, MODELS[model.architecture].auto or _STOCK[model.family])


def _replace_positions(network: Any, architecture: Architecture, model: Model) -> None:
    if model.position not in ("sinusoidal", "relative"):
        return
    import torch

    from trainers.models import positions

    assert architecture.tables is not None
    table = positions.sinusoids(model.positions, model.width)
    for embedding, first in architecture.tables(network):
        fixed = table if model.position == "sinusoidal" else torch.zeros_like(table)
        positions.fix_table(embedding, first, fixed, network.get_input_embeddings())
    if model.position == "relative":
        assert architecture.attentions is not None
        sizes = (model.width, model.relative_distance, model.initializer_range)
        for attention in architecture.attentions(network):
            attention.relative = positions.RelativePositions(*sizes)
        network.config._attn_implementation = positions.RELATIVE


def _tie_stacks(network: Any, architecture: Architecture) -> None:
    assert architecture.decoder_name is not None
    encoder, decoder = network.get_encoder(), network.get_decoder()
    for name, parameter in list(encoder.named_parameters()):
        path, _, last = architecture.decoder_name(name).rpartition(".")
        setattr(decoder.get_submodule(path), last, parameter)


def untie_stacks(network: Any, architecture: str) -> None:
    """Give the decoder copies of the parameters that it shares with the encoder, except the token embeddings."""
    import torch

    rename = MODELS[architecture].decoder_name
    assert rename is not None
    embeddings = network.get_input_embeddings().weight
    for name, parameter in list(network.get_encoder().named_parameters()):
        if parameter is not embeddings:
            path, _, last = rename(name).rpartition(".")
            copy = torch.nn.Parameter(parameter.detach().clone())
            setattr(network.get_decoder().get_submodule(path), last, copy)


def why_not_stock(model: Model) -> str | None:
    """Return why plain `transformers` cannot run this model, or None if it can."""
    if model.traits.recurrent:
        return f"{model.architecture} is not part of transformers"
    if model.position == "relative":
        return "clipped relative positions are not part of transformers"
    return None
