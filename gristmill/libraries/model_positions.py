"""How many tokens a model of the library `transformers` can read at once."""

from typing import Any


def most_tokens(config: Any) -> int | None:
    """Return the longest input of a model in tokens, or None if `config` does not limit it. RoBERTa's
    positions begin after the position of padding, so two cannot be used.
    """
    positions = int(getattr(config, "max_position_embeddings", 0))
    if positions <= 0:
        return None
    return positions - 2 if config.model_type in ("roberta", "xlm-roberta", "camembert") else positions
