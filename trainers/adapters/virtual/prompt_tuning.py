"""Prompt tuning (Lester et al., 2021): the model is frozen, and trained embeddings precede every text. The
functions of this module are shared with other methods that train prompts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gristmill.errors import ConfigError
from trainers.adapters.shared.blocks import token_embedding
from trainers.adapters.shared.training_method import Encode, TrainingMethod, freeze, set_tensors


@dataclass(frozen=True)
class PromptTuning(TrainingMethod):
    """Train the embeddings of `tokens` virtual tokens, which precede every text (the encoder's input in an
    encoder-decoder).

    `init` chooses their initial values: random numbers, the embeddings of random tokens of the vocabulary, or
    the embeddings of the tokens of `text`, repeated or cut to `tokens` tokens.
    """

    kind: Literal["prompt"] = "prompt"
    tokens: int = 20
    init: Literal["random", "vocabulary", "text"] = "vocabulary"
    text: str | None = None

    def check(self) -> None:
        check_prompt(self.tokens, self.init, self.text)

    @property
    def virtual_tokens(self) -> int:
        return self.tokens

    def insert(self, network: Any, architecture: str, family: str, encode: Encode | None) -> None:
        from trainers.adapters.virtual.virtual_embedding import PromptRows, add_virtual_tokens

        table = token_embedding(network, architecture)
        rows = start_rows(table, self.tokens, self.init, self.text, encode)
        freeze(network)
        add_virtual_tokens(table, PromptRows(rows))

    def peft_config(self, network: Any, architecture: str, family: str) -> Mapping[str, Any] | None:
        """Return peft's PROMPT_TUNING configuration, without the initialisation, because peft loads the
        trained prompt.
        """
        return prompt_config("PROMPT_TUNING", network, architecture, family, self.tokens)

    def peft_state(self, network: Any, architecture: str) -> dict[str, Any]:
        return {"prompt_embeddings": token_embedding(network, architecture).virtual().detach()}

    def load_peft(self, network: Any, architecture: str, state: Mapping[str, Any]) -> None:
        set_tensors({"prompt_embeddings": token_embedding(network, architecture).virtual.rows.weight.detach()}, state)


def check_prompt(tokens: int, init: str, text: str | None) -> None:
    """Raise ValueError if `tokens` is below 1, if the initialisation is "text" but no text is given, or if a
    text is given with another initialisation.
    """
    if tokens < 1:
        raise ValueError(f"tokens: got {tokens}, allowed 1 or more")
    if (init == "text") != bool(text):
        raise ValueError(
            f"text: got {'none' if not text else 'one'} with init {init}, allowed with init text, which needs it"
        )


def start_rows(table: Any, tokens: int, init: str, text: str | None, encode: Encode | None) -> Any:
    """Return the initial embeddings of a prompt (`virtual_embedding.first_rows`). Without `encode`, the
    initialisation `text` acts like `vocabulary`. Raises ConfigError if `text` has no tokens.
    """
    from trainers.adapters.virtual.virtual_embedding import first_rows

    if not text or encode is None:
        return first_rows(table, tokens, "vocabulary" if init == "text" else init, [])
    ids = encode(text)
    if not ids:
        raise ConfigError("method.text: the tokenizer turns it into no tokens; give another text, or init: vocabulary")
    return first_rows(table, tokens, init, ids)


_TASK_TYPES = {"decoder": "CAUSAL_LM", "encoder": "FEATURE_EXTRACTION", "encoder_decoder": "SEQ_2_SEQ_LM"}


def prompt_config(
    kind: str, network: Any, architecture: str, family: str, tokens: int, **others: Any
) -> dict[str, Any]:
    """Return peft's configuration of a prompt of type `kind`. `others` holds additional fields."""
    width = token_embedding(network, architecture).embedding_dim
    config = network.config
    return {
        "peft_type": kind,
        "task_type": _TASK_TYPES[family],
        "inference_mode": True,
        "num_virtual_tokens": tokens,
        "token_dim": width,
        "num_transformer_submodules": 1,
        "num_attention_heads": config.num_attention_heads,
        "num_layers": config.num_hidden_layers,
        **others,
    }
