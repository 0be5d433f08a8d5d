"""Prefix tuning (Li and Liang, 2021): in every layer, trained keys and values precede the keys and values of
every text.
"""

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
    refuse_prefixes,
)


@dataclass(frozen=True)
class PrefixTuning(TrainingMethod):
    """Train a prefix of `tokens` keys and values in every attention layer, including the cross-attention
    layers of an encoder-decoder.

    During training, an MLP computes the prefixes from trained embeddings. `hidden` is the width of the MLP's
    inner layer (null: the width of the model's embeddings).
    """

    kind: Literal["prefix"] = "prefix"
    tokens: int = 20
    hidden: int | None = None

    def refusal(self, architecture: str) -> str | None:
        return super().refusal(architecture) or refuse_prefixes(architecture)

    def check(self) -> None:
        if self.tokens < 1:
            raise ValueError(f"tokens: got {self.tokens}, allowed 1 or more")
        if self.hidden is not None and self.hidden < 1:
            raise ValueError(f"hidden: got {self.hidden}, allowed 1 or more, or null for the width of the embeddings")

    @property
    def prefix_length(self) -> int:
        return self.tokens

    def insert(self, network: Any, architecture: str, family: str, encode: Encode | None) -> None:
        from trainers.adapters.virtual.prefix_attention import PrefixEncoder

        width = token_embedding(network, architecture).embedding_dim
        encoder = PrefixEncoder(self.tokens, width, self.hidden or width)
        insert_prefixes(network, architecture, self.tokens, encoder)

    @property
    def deployed(self) -> DeepPrompts:
        """`DeepPrompts` with the same number of tokens. It stores the keys and values that the trained MLP
        computes.
        """
        return DeepPrompts(tokens=self.tokens)

    def peft_config(self, network: Any, architecture: str, family: str) -> Mapping[str, Any] | None:
        return prefix_config(network, architecture, family, self.tokens)

    def peft_state(self, network: Any, architecture: str) -> dict[str, Any]:
        return prefix_state(network, architecture)
