"""Prefix tuning (Li and Liang, 2021): trained keys and values before those of every text, in every layer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trainers.adapters.shared.blocks import token_embedding
from trainers.adapters.shared.training_method import Encode, TrainingMethod
from trainers.adapters.virtual.deep_prompts import (
    DeepPrompts,
    insert_prefixes,
    prefix_config,
    prefix_state,
)


@dataclass(frozen=True)
class PrefixTuning(TrainingMethod):
    """Train `tokens` keys and values per layer, which an MLP with an inner layer of `hidden` (null: the width of the
    embeddings) computes from trained embeddings; it is needed for training only.

    In an encoder-decoder, cross-attention has a prefix too.
    """

    kind: Literal["prefix"] = "prefix"
    tokens: int = 20
    hidden: int | None = None

    def check(self) -> None:
        """Validate ranges."""
        if self.tokens < 1:
            raise ValueError(f"tokens: got {self.tokens}, allowed 1 or more")
        if self.hidden is not None and self.hidden < 1:
            raise ValueError(f"hidden: got {self.hidden}, allowed 1 or more, or null for the width of the embeddings")

    @property
    def prefix_length(self) -> int:
        """`tokens`."""
        return self.tokens

    def insert(self, network: Any, architecture: str, family: str, encode: Encode | None) -> None:
        """Give every attention a prefix, computed from embeddings that all share."""
        from trainers.adapters.virtual.prefix_attention import PrefixEncoder

        width = token_embedding(network, architecture).embedding_dim
        encoder = PrefixEncoder(self.tokens, width, self.hidden or width)
        insert_prefixes(network, architecture, self.tokens, encoder)

    @property
    def deployed(self) -> DeepPrompts:
        """What the MLP computes are keys and values."""
        return DeepPrompts(tokens=self.tokens)

    def peft_config(self, network: Any, architecture: str, family: str) -> Mapping[str, Any] | None:
        """peft's PREFIX_TUNING, which reads what the MLP computes."""
        return prefix_config(network, architecture, family, self.tokens)

    def peft_state(self, network: Any, architecture: str) -> dict[str, Any]:
        """Keys and values of all layers."""
        return prefix_state(network, architecture)
