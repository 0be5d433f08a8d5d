"""P-tuning v2 (Liu et al., 2022): prompts in every layer, deep prompts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trainers.adapters.shared.blocks import attention_kind, attention_modules, key_width
from trainers.adapters.shared.training_method import Encode, TrainingMethod, freeze, set_tensors
from trainers.adapters.virtual.prompt_tuning import prompt_config


@dataclass(frozen=True)
class DeepPrompts(TrainingMethod):
    """Train `tokens` keys and values per layer as they are: prefix tuning without its MLP, which the paper finds to help
    on some tasks and to hurt on others (section 3.3).

    In an encoder-decoder they precede those of the attentions named in `where`; peft knows `[decoder]` alone.
    """

    kind: Literal["p_tuning_v2"] = "p_tuning_v2"
    tokens: int = 20
    where: tuple[Literal["encoder", "cross", "decoder"], ...] = ("encoder", "cross", "decoder")

    def check(self) -> None:
        """Validate ranges."""
        if self.tokens < 1:
            raise ValueError(f"tokens: got {self.tokens}, allowed 1 or more")
        check_where(self.where)

    @property
    def prefix_length(self) -> int:
        """`tokens`."""
        return self.tokens

    def insert(self, network: Any, architecture: str, family: str, encode: Encode | None) -> None:
        """Give every attention keys and values of its own."""
        insert_prefixes(network, architecture, family, self.tokens, self.where, None)

    def peft_config(self, network: Any, architecture: str, family: str) -> Mapping[str, Any] | None:
        """peft's PREFIX_TUNING."""
        return prefix_config(network, architecture, family, self.tokens, self.where)

    def peft_state(self, network: Any, architecture: str) -> dict[str, Any]:
        """Keys and values of all layers."""
        return prefix_state(network, architecture)

    def load_peft(self, network: Any, architecture: str, state: Mapping[str, Any]) -> None:
        """Set them."""
        rows = [
            module.prefix.rows.weight.detach()
            for _, module in attention_modules(network, architecture)
            if hasattr(module, "prefix")
        ]
        found = state["prompt_embeddings"].split([each.shape[1] for each in rows], dim=1)
        set_tensors(
            {str(number): each for number, each in enumerate(rows)},
            {str(number): each for number, each in enumerate(found)},
        )


def check_where(where: tuple[str, ...]) -> None:
    """ValueError if no attention is named."""
    if not where:
        raise ValueError("where: got none, allowed one or more of encoder, cross, decoder")


def insert_prefixes(
    network: Any, architecture: str, family: str, tokens: int, where: tuple[str, ...], encoder: Any
) -> None:
    """Give every attention, in an encoder-decoder those of `where`, `tokens` keys and values; they are parameters if
    `encoder` is None.
    """
    from trainers.adapters.virtual.prefix_attention import Prefix, add_prefix, use_prefixes

    freeze(network)
    firsts: dict[str, Any] = {}
    for name, attention in attention_modules(network, architecture):
        kind = attention_kind(name)
        if family == "encoder_decoder" and kind not in where:
            continue
        prefix = Prefix(tokens, key_width(attention), encoder)
        if architecture == "t5" and kind != "cross":
            prefix.distances.append(firsts.setdefault(kind, attention))
        add_prefix(attention, prefix)
    use_prefixes(network)


def prefix_config(
    network: Any, architecture: str, family: str, tokens: int, where: tuple[str, ...]
) -> dict[str, Any] | None:
    """peft's PREFIX_TUNING; None where peft 0.21 cannot run it."""
    if architecture in ("gpt", "modernbert") or (family == "encoder_decoder" and where != ("decoder",)):
        return None
    (_, first), *_ = attention_modules(network, architecture)
    config = network.config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    layers = config.decoder_layers if architecture == "bart" else getattr(config, "num_decoder_layers", None)
    sizes = {
        "token_dim": key_width(first),
        "num_attention_heads": heads,
        "num_layers": layers or config.num_hidden_layers,
    }
    whole = prompt_config("PREFIX_TUNING", network, architecture, family, tokens, prefix_projection=False, **sizes)
    assert whole is not None
    return whole | {"num_transformer_submodules": 2 if family == "encoder_decoder" else 1}


def prefix_state(network: Any, architecture: str) -> dict[str, Any]:
    """Keys and values of all layers side by side, as peft stores them."""
    import torch

    attentions = [module for _, module in attention_modules(network, architecture) if hasattr(module, "prefix")]
    return {"prompt_embeddings": torch.cat([attention.prefix().detach() for attention in attentions], 1)}
