"""The names of the parts of a block in the `transformers` model of each architecture.

GPT, GPT-2 and ModernBERT compute queries, keys and values with a single matrix, and ModernBERT computes both
inner projections of its gated feed-forward layer with one. A method that adapts one of these parts adapts the
whole matrix.
"""

import re
from collections.abc import Iterable
from typing import Any, Literal

Part = Literal["query", "key", "value", "output", "up", "down"]
"""The matrices of a block: those of its attention layers, and `up` and `down` of its feed-forward layer."""

_BERT = {
    "query": r"attention\.self\.query",
    "key": r"attention\.self\.key",
    "value": r"attention\.self\.value",
    "output": r"attention\.output\.dense",
    "up": r"intermediate\.dense",
    "down": r"layer\.\d+\.output\.dense",
}
_GPT = {
    "query": r"attn\.c_attn",
    "key": r"attn\.c_attn",
    "value": r"attn\.c_attn",
    "output": r"attn\.c_proj",
    "up": r"mlp\.c_fc",
    "down": r"mlp\.c_proj",
}
_PARTS: dict[str, dict[str, str]] = {
    "albert": {
        "query": r"attention\.query",
        "key": r"attention\.key",
        "value": r"attention\.value",
        "output": r"attention\.dense",
        "up": r"ffn",
        "down": r"ffn_output",
    },
    "bart": {
        "query": r"attn\.q_proj",
        "key": r"attn\.k_proj",
        "value": r"attn\.v_proj",
        "output": r"attn\.out_proj",
        "up": r"fc1",
        "down": r"fc2",
    },
    "bert": _BERT,
    "deberta_v2": {**_BERT, **{part: rf"attention\.self\.{part}_proj" for part in ("query", "key", "value")}},
    "electra": _BERT,
    "gpt": _GPT,
    "gpt2": _GPT,
    "llama": {
        "query": r"self_attn\.q_proj",
        "key": r"self_attn\.k_proj",
        "value": r"self_attn\.v_proj",
        "output": r"self_attn\.o_proj",
        "up": r"mlp\.(?:gate_proj|up_proj)",
        "down": r"mlp\.down_proj",
    },
    "modernbert": {
        "query": r"attn\.Wqkv",
        "key": r"attn\.Wqkv",
        "value": r"attn\.Wqkv",
        "output": r"attn\.Wo",
        "up": r"mlp\.Wi",
        "down": r"mlp\.Wo",
    },
    "roberta": _BERT,
    "t5": {
        "query": r"Attention\.q",
        "key": r"Attention\.k",
        "value": r"Attention\.v",
        "output": r"Attention\.o",
        "up": r"DenseReluDense\.(?:wi|wi_0|wi_1)",
        "down": r"DenseReluDense\.wo",
    },
    "xlnet": {"up": r"ff\.layer_1", "down": r"ff\.layer_2"},
}
STACKS: dict[str, tuple[str, ...]] = {
    "albert": ("albert",),
    "awd_lstm": ("lstm",),
    "bart": ("model",),
    "bert": ("bert",),
    "deberta_v2": ("deberta",),
    "electra": ("electra",),
    "elmo": ("elmo",),
    "gpt": ("transformer",),
    "gpt2": ("transformer",),
    "llama": ("model",),
    "modernbert": ("model",),
    "roberta": ("roberta",),
    "t5": ("encoder", "decoder"),
    "xlnet": ("transformer",),
}
"""The modules that are the stacks of a model; the others are heads."""
# The attention layers of a block: the decoder's, the encoder's, and cross-attention from decoder to encoder.
_ATTENTIONS = {
    "albert": r".*\.attention",
    "bart": r".*\.(?:self_attn|encoder_attn)",
    "bert": r".*\.attention\.self",
    "deberta_v2": r".*\.attention\.self",
    "electra": r".*\.attention\.self",
    "gpt": r".*\.attn",
    "gpt2": r".*\.attn",
    "llama": r".*\.self_attn",
    "modernbert": r".*\.attn",
    "roberta": r".*\.attention\.self",
    "t5": r".*\.(?:SelfAttention|EncDecAttention)",
    "xlnet": r".*\.rel_attn",
}
RECURRENT = ("awd_lstm", "elmo")
"""Architectures without attention, whose blocks have none of the parts above."""
FUSED = ("gpt", "gpt2", "modernbert")
"""Architectures with a single matrix for queries, keys and values."""


def refuse_parts(kind: str, architecture: str, parts: Iterable[str]) -> str | None:
    """Return the reason why a method that adapts these parts does not work with an architecture, or None if it does."""
    if missing := [part for part in parts if part not in _PARTS[architecture]]:
        there = " and ".join(_PARTS[architecture])
        return (
            f"got {kind}, which adapts the part {missing[0]} of every block; in {architecture} only {there} are layers of their "
            f"own; use bitfit, prompt, or lora with other targets"
        )
    return None


def pattern(architecture: str, parts: Iterable[str]) -> str:
    """Return a regular expression that matches the full names of the modules of these parts, for peft's
    `target_modules`.
    """
    its = dict.fromkeys(_PARTS[architecture][part] for part in parts)
    return rf".*(?:{'|'.join(its)})"


def part_modules(network: Any, architecture: str, parts: Iterable[str]) -> list[tuple[str, Any]]:
    """Return (name, module) for these parts in all blocks, in the order of the model."""
    expression = re.compile(pattern(architecture, parts))
    return [(name, module) for name, module in network.named_modules() if expression.fullmatch(name)]


def attention_modules(network: Any, architecture: str) -> list[tuple[str, Any]]:
    """Return (name, module) for every attention layer of the blocks, including cross-attention in an
    encoder-decoder.
    """
    expression = re.compile(_ATTENTIONS[architecture])
    return [(name, module) for name, module in network.named_modules() if expression.fullmatch(name)]


def stack_modules(network: Any, architecture: str) -> list[Any]:
    """Return the stacks of blocks, without the heads of pretraining."""
    return [getattr(network, name) for name in STACKS[architecture]]


def token_embedding(network: Any, architecture: str) -> Any:
    """Return the embedding table of the first stack's input ids (the encoder's in an encoder-decoder)."""
    if architecture == "t5":
        return network.encoder.embed_tokens
    return network.model.encoder.embed_tokens if architecture == "bart" else network.get_input_embeddings()


def attention_kind(name: str) -> Literal["encoder", "decoder", "cross"]:
    """Return whether the attention layer with this module name belongs to the encoder, to the decoder, or is
    cross-attention.
    """
    if "encoder_attn" in name or "EncDecAttention" in name:
        return "cross"
    return "encoder" if name.startswith(("encoder.", "model.encoder.")) else "decoder"


def key_width(attention: Any) -> int:
    """Return the width of an attention layer's keys, over all its heads."""
    for name in ("key", "k_proj", "k"):
        if hasattr(attention, name):
            return int(getattr(attention, name).weight.shape[0])
    fused = attention.Wqkv.weight.shape[0] if hasattr(attention, "Wqkv") else attention.c_attn.weight.shape[1]
    return int(fused) // 3
