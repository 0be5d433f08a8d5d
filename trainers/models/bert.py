"""BERT (Devlin et al., 2019): learned positions, post-norm blocks, GELU, a masked-language-model head."""

from typing import Any

from trainers.config import Model


def bert(model: Model, specials: dict[str, int]) -> Any:
    """The `transformers` configuration of a BERT of these sizes."""
    from transformers import BertConfig

    return BertConfig(
        vocab_size=model.vocab_size,
        max_position_embeddings=model.positions,
        hidden_size=model.width,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        intermediate_size=model.feed_forward,
        hidden_dropout_prob=model.dropout,
        attention_probs_dropout_prob=model.dropout,
        initializer_range=model.initializer_range,
        tie_word_embeddings=model.tied,
        bos_token_id=specials["<bos>"],
        eos_token_id=specials["<eos>"],
        pad_token_id=specials["<pad>"],
    )
