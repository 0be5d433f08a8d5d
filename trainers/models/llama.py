"""Llama (Touvron et al., 2023): rotary positions, RMS norm, gated feed-forward, grouped key and value heads."""

from typing import Any

from trainers.config import Model


def llama(model: Model, specials: dict[str, int]) -> Any:
    """The `transformers` configuration of a Llama of these sizes."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=model.vocab_size,
        max_position_embeddings=model.positions,
        hidden_size=model.width,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.key_value_heads,
        intermediate_size=model.feed_forward,
        initializer_range=model.initializer_range,
        tie_word_embeddings=model.tied,
        rope_parameters={"rope_type": "default", "rope_theta": model.rope_base},
        bos_token_id=specials["<bos>"],
        eos_token_id=specials["<eos>"],
        pad_token_id=specials["<pad>"],
    )
