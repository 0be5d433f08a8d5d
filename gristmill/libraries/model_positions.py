"""The maximum input length, in tokens, of a model of the library `transformers`."""

from typing import Any

# RoBERTa and models like it number tokens from pad_token_id + 1, and MPNet from 2.
_AFTER_PADDING = frozenset(
    {
        "camembert",
        "data2vec-text",
        "esm",
        "ibert",
        "longformer",
        "luke",
        "markuplm",
        "roberta",
        "roberta-prelayernorm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    }
)


def most_tokens(config: Any) -> int | None:
    """Return the maximum input length of a model in tokens, including special tokens, or None if `config`
    does not limit it.
    """
    positions = int(getattr(config, "max_position_embeddings", None) or 0)
    if positions <= 0:
        return None
    if config.model_type in _AFTER_PADDING:
        return positions - int(config.pad_token_id) - 1
    return positions - 2 if config.model_type == "mpnet" else positions
