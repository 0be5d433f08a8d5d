"""The first version of P-tuning (Liu et al., 2021): an LSTM or an MLP computes the prompt from trained
embeddings.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trainers.adapters.shared.blocks import token_embedding
from trainers.adapters.shared.training_method import Encode, TrainingMethod, freeze
from trainers.adapters.virtual.prompt_tuning import PromptTuning, check_prompt, prompt_config, start_rows


@dataclass(frozen=True)
class PTuning(TrainingMethod):
    """Train `tokens` embeddings and an encoder that turns them into the virtual tokens that precede every
    text. `hidden` is the width of the encoder (null: the width of the embeddings). The model is frozen,
    although Liu et al. (2021) also train it in some experiments.
    """

    kind: Literal["p_tuning"] = "p_tuning"
    tokens: int = 20
    encoder: Literal["lstm", "mlp"] = "lstm"
    hidden: int | None = None

    def check(self) -> None:
        check_prompt(self.tokens, "random", None)
        if self.hidden is not None and self.hidden < 1:
            raise ValueError(f"hidden: got {self.hidden}, allowed 1 or more, or null for the width of the embeddings")

    @property
    def virtual_tokens(self) -> int:
        return self.tokens

    def insert(self, network: Any, architecture: str, family: str, encode: Encode | None) -> None:
        from trainers.adapters.virtual.virtual_embedding import EncodedRows, add_virtual_tokens

        table = token_embedding(network, architecture)
        rows = start_rows(table, self.tokens, "vocabulary", None, None)
        freeze(network)
        add_virtual_tokens(table, EncodedRows(rows, self.encoder, self.hidden or table.embedding_dim))

    @property
    def deployed(self) -> PromptTuning:
        """Prompt tuning with the same number of tokens. Its random embeddings are replaced when the prompt
        that the trained encoder computes is loaded.
        """
        return PromptTuning(tokens=self.tokens, init="random")

    def peft_config(self, network: Any, architecture: str, family: str) -> Mapping[str, Any] | None:
        width = self.hidden or token_embedding(network, architecture).embedding_dim
        others = {"encoder_reparameterization_type": self.encoder.upper(), "encoder_hidden_size": width}
        return prompt_config("P_TUNING", network, architecture, family, self.tokens, **others)

    def peft_state(self, network: Any, architecture: str) -> dict[str, Any]:
        return {"prompt_embeddings": token_embedding(network, architecture).virtual().detach()}
