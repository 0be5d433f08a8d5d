"""P-tuning v2 (Liu et al., 2022), also called deep prompts: a prompt in every layer. The functions of this
module are shared with prefix tuning.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gristmill.errors import ConfigError
from trainers.adapters.shared.blocks import BLOCKS, attention_kind, attention_modules, key_width
from trainers.adapters.shared.training_method import Encode, TrainingMethod, freeze, set_tensors
from trainers.adapters.virtual.prompt_tuning import prompt_config


@dataclass(frozen=True)
class DeepPrompts(TrainingMethod):
    """Train `tokens` keys and values per layer directly, as P-tuning v2 does: prefix tuning without its MLP.
    According to Liu et al. (2022, section 3.3), the MLP helps on some tasks and hurts on others.

    In an encoder-decoder, cross-attention layers have a prefix too.
    """

    kind: Literal["p_tuning_v2"] = "p_tuning_v2"
    tokens: int = 20

    def refusal(self, architecture: str) -> str | None:
        return super().refusal(architecture) or refuse_prefixes(architecture)

    def check(self) -> None:
        if self.tokens < 1:
            raise ValueError(f"tokens: got {self.tokens}, allowed 1 or more")

    @property
    def prefix_length(self) -> int:
        return self.tokens

    def insert(self, network: Any, architecture: str, family: str, encode: Encode | None) -> None:
        insert_prefixes(network, architecture, self.tokens, None)

    def peft_config(self, network: Any, architecture: str, family: str) -> Mapping[str, Any] | None:
        return prefix_config(network, architecture, family, self.tokens)

    def peft_state(self, network: Any, architecture: str) -> dict[str, Any]:
        return prefix_state(network, architecture)

    def load_peft(self, network: Any, architecture: str, state: Mapping[str, Any]) -> None:
        """Split the tensor of a `peft_state` by layer, and copy each layer's keys and values into its prefix."""
        rows = [
            module.prefix.rows.weight.detach()
            for _, module in attention_modules(network, architecture)
            if hasattr(module, "prefix")
        ]
        saved = state["prompt_embeddings"].split([each.shape[1] for each in rows], dim=1)
        set_tensors(
            {str(number): each for number, each in enumerate(rows)},
            {str(number): each for number, each in enumerate(saved)},
        )


def refuse_prefixes(architecture: str) -> str | None:
    """Return the reason why an architecture does not support prefixes, or None if it does."""
    if not BLOCKS[architecture].embeds:
        return f"got a method with prefixes, and layers of {architecture} read characters or four at once; use lora or bitfit"
    if BLOCKS[architecture].prefixes == "none":
        return (
            f"got a method with prefixes, and every key of {architecture} is read with its distance, which a prefix lacks; "
            f"use prompt or bitfit"
        )
    return None


def insert_prefixes(network: Any, architecture: str, tokens: int, encoder: Any) -> None:
    """Freeze the network, except the task's head, and give every attention layer a prefix of `tokens` keys
    and values. These are computed from the output of `encoder` or, if it is None, are trained directly.
    Raises ConfigError for clipped relative positions (Shaw et al., 2018).
    """
    from trainers.adapters.virtual.prefix_attention import Prefix, add_prefix, use_prefixes

    if any(hasattr(attention, "relative") for _, attention in attention_modules(network, architecture)):
        raise ConfigError(
            "method.kind: got a method with prefixes, for a model with relative positions; use prompt, lora or adapter"
        )
    freeze(network)
    firsts: dict[str, Any] = {}
    for name, attention in attention_modules(network, architecture):
        prefix = Prefix(tokens, key_width(attention, architecture), encoder)
        kind = attention_kind(name)
        if architecture == "t5" and kind != "cross":
            prefix.distances.append(firsts.setdefault(kind, attention))
        add_prefix(attention, prefix)
    use_prefixes(network)


def prefix_config(network: Any, architecture: str, family: str, tokens: int) -> dict[str, Any] | None:
    """Return peft's PREFIX_TUNING configuration, or None if peft 0.21 cannot apply these prefixes: if the
    stock model does not accept past keys, or in an encoder-decoder.

    In an encoder-decoder, peft gives a prefix to the decoder's self-attention only, and layer i gets the keys
    of layer 2i.
    """
    if BLOCKS[architecture].prefixes != "stock" or family == "encoder_decoder":
        return None
    (_, first), *_ = attention_modules(network, architecture)
    heads = getattr(network.config, "num_key_value_heads", None) or network.config.num_attention_heads
    sizes = {"token_dim": key_width(first, architecture), "num_attention_heads": heads}
    return prompt_config("PREFIX_TUNING", network, architecture, family, tokens, prefix_projection=False) | sizes


def prefix_state(network: Any, architecture: str) -> dict[str, Any]:
    """Return the state that peft stores: a single tensor `prompt_embeddings`, with the keys and values of all
    layers side by side.
    """
    import torch

    attentions = [module for _, module in attention_modules(network, architecture) if hasattr(module, "prefix")]
    return {"prompt_embeddings": torch.cat([attention.prefix().detach() for attention in attentions], 1)}
