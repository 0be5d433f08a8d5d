"""The names of the stacks, the attention layers and the parts of the blocks in the model of each
architecture, and functions that find these modules in a network.

Some architectures compute several parts with a single matrix, for example queries, keys and values in GPT-2.
A method that adapts one of these parts adapts the whole matrix.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Part = Literal["query", "key", "value", "output", "up", "down"]
"""The matrices of a block: those of its attention layers, and `up` and `down` of its feed-forward layer."""


@dataclass(frozen=True)
class BlockNames:
    """What training methods need to know about an architecture: the names of its modules, and what it
    supports.

    `stacks` names the modules that form its stacks, without the heads. `attention` is a regular expression
    for the names of the attention layers: the self-attention of encoder and decoder, and cross-attention. It
    is None for a recurrent architecture, which has no attention. `parts` maps each part of a block to a
    regular expression for the end of the names of its modules; parts without a module (XLNet's attention
    matrices) are missing. `biases` says whether the architecture has biases.

    `prefixes` says which code can put prefix keys and values before those of the text: `stock` (the stock
    model, which accepts past keys), `ours` (only our own) or `none` (CANINE, DeBERTa, XLNet and architectures
    without attention). `embeds` says whether tokens have embeddings, so that embeddings of virtual tokens can
    be added.
    """

    stacks: tuple[str, ...]
    attention: str | None = None
    parts: dict[Part, str] = field(default_factory=dict)
    biases: bool = True
    prefixes: Literal["stock", "ours", "none"] = "stock"
    embeds: bool = True


def _parts(*patterns: str) -> dict[Part, str]:
    return dict(zip(get_args(Part), patterns, strict=True))


_SELF = r"attention\.self\."
_BERT_ENDS = r"attention\.output\.dense", r"intermediate\.dense", r"layer\.\d+\.output\.dense"
_BERT = _parts(rf"{_SELF}query", rf"{_SELF}key", rf"{_SELF}value", *_BERT_ENDS)
_GPT = _parts(*[r"attn\.c_attn"] * 3, r"attn\.c_proj", r"mlp\.c_fc", r"mlp\.c_proj")
BLOCKS: dict[str, BlockNames] = {
    "albert": BlockNames(
        ("albert",),
        r".*\.attention",
        _parts(r"attention\.query", r"attention\.key", r"attention\.value", r"attention\.dense", r"ffn", r"ffn_output"),
        prefixes="ours",
    ),
    "awd_lstm": BlockNames(("lstm",), prefixes="none"),
    "bart": BlockNames(
        ("model",),
        r".*\.(?:self_attn|encoder_attn)",
        _parts(r"attn\.q_proj", r"attn\.k_proj", r"attn\.v_proj", r"attn\.out_proj", r"fc1", r"fc2"),
    ),
    "bert": BlockNames(("bert",), r".*\.attention\.self", _BERT),
    "canine": BlockNames(("canine",), r".*\.attention\.self", _BERT, prefixes="none", embeds=False),
    "deberta": BlockNames(
        ("deberta",), r".*\.attention\.self", _parts(*[rf"{_SELF}in_proj"] * 3, *_BERT_ENDS), prefixes="none"
    ),
    "deberta_v2": BlockNames(
        ("deberta",),
        r".*\.attention\.self",
        _parts(rf"{_SELF}query_proj", rf"{_SELF}key_proj", rf"{_SELF}value_proj", *_BERT_ENDS),
        prefixes="none",
    ),
    "electra": BlockNames(("electra",), r".*\.attention\.self", _BERT),
    "elmo": BlockNames(("elmo",), prefixes="none"),
    "gpt": BlockNames(("transformer",), r".*\.attn", _GPT, prefixes="ours"),
    "gpt2": BlockNames(("transformer",), r".*\.attn", _GPT),
    "gru": BlockNames(("encoder",), prefixes="none"),
    "llama": BlockNames(
        ("model",),
        r".*\.self_attn",
        _parts(
            r"self_attn\.q_proj",
            r"self_attn\.k_proj",
            r"self_attn\.v_proj",
            r"self_attn\.o_proj",
            r"mlp\.(?:gate_proj|up_proj)",
            r"mlp\.down_proj",
        ),
        biases=False,
    ),
    "modernbert": BlockNames(
        ("model",),
        r".*\.attn",
        _parts(*[r"attn\.Wqkv"] * 3, r"attn\.Wo", r"mlp\.Wi", r"mlp\.Wo"),
        biases=False,
        prefixes="ours",
    ),
    "roberta": BlockNames(("roberta",), r".*\.attention\.self", _BERT),
    "t5": BlockNames(
        ("encoder", "decoder"),
        r".*\.(?:SelfAttention|EncDecAttention)",
        _parts(
            r"Attention\.q",
            r"Attention\.k",
            r"Attention\.v",
            r"Attention\.o",
            r"DenseReluDense\.(?:wi|wi_0|wi_1)",
            r"DenseReluDense\.wo",
        ),
        biases=False,
    ),
    "xlnet": BlockNames(
        ("transformer",), r".*\.rel_attn", {"up": r"ff\.layer_1", "down": r"ff\.layer_2"}, prefixes="none"
    ),
}
"""The module names of every architecture in `trainers.config.architecture.ARCHITECTURES`."""


def refuse_parts(kind: str, architecture: str, parts: Iterable[Part]) -> str | None:
    """Return the reason why a method that adapts these parts does not work with an architecture, or None if it does."""
    named = BLOCKS[architecture].parts
    if missing := [part for part in parts if part not in named]:
        there = " and ".join(named)
        return (
            f"got {kind}, which adapts the part {missing[0]} of every block; in {architecture} only {there} are layers of their "
            f"own; use bitfit, prompt, or lora with other targets"
        )
    return None


def pattern(architecture: str, parts: Iterable[Part]) -> str:
    """Return a regular expression that matches the full names of the modules of these parts. `refuse_parts`
    must accept the parts.
    """
    its = dict.fromkeys(BLOCKS[architecture].parts[part] for part in parts)
    return rf".*(?:{'|'.join(its)})"


def part_modules(network: Any, architecture: str, parts: Iterable[Part]) -> list[tuple[str, Any]]:
    """Return (name, module) for every module that computes one of the given parts of a block, in the order of
    the model. `refuse_parts` must accept the parts.
    """
    expression = re.compile(pattern(architecture, parts))
    return [(name, module) for name, module in network.named_modules() if expression.fullmatch(name)]


def attention_modules(network: Any, architecture: str) -> list[tuple[str, Any]]:
    """Return (name, module) for every attention layer of the blocks, including cross-attention in an
    encoder-decoder.
    """
    attention = BLOCKS[architecture].attention
    assert attention is not None, f"{architecture} has no attention"
    expression = re.compile(attention)
    return [(name, module) for name, module in network.named_modules() if expression.fullmatch(name)]


def stack_modules(network: Any, architecture: str) -> list[Any]:
    """Return the modules that contain the blocks, without any pretraining or task head."""
    return [getattr(network, name) for name in BLOCKS[architecture].stacks]


def token_embedding(network: Any, architecture: str) -> Any:
    """Return the module that embeds the input ids. In an encoder-decoder, this is the encoder's."""
    if architecture == "t5":
        return network.encoder.embed_tokens
    return network.model.encoder.embed_tokens if architecture == "bart" else network.get_input_embeddings()


def attention_kind(name: str) -> Literal["encoder", "decoder", "cross"]:
    """Return the kind of an encoder-decoder's attention layer, given the name of its module."""
    if "encoder_attn" in name or "EncDecAttention" in name:
        return "cross"
    return "encoder" if name.startswith(("encoder.", "model.encoder.")) else "decoder"


def key_width(attention: Any, architecture: str) -> int:
    """Return the width of an attention layer's keys, all heads together."""
    parts = BLOCKS[architecture].parts
    matrix = getattr(attention, parts["key"].rpartition(r"\.")[2])
    # The weight of GPT's Conv1D is [in, out], that of other layers [out, in].
    width = int(matrix.weight.shape[1 if hasattr(matrix, "nf") else 0])
    return width // 3 if parts["key"] == parts["query"] else width
