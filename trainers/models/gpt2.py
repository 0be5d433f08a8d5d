"""GPT-2 (Radford et al., 2019): learned positions, pre-norm blocks, GELU, tied embeddings."""

from typing import Any

from trainers.config import Model


def gpt2(model: Model, specials: dict[str, int]) -> Any:
    """The `transformers` configuration of a GPT-2 of these sizes."""
    from transformers import GPT2Config

    return GPT2Config(
        vocab_size=model.vocab_size,
        n_positions=model.positions,
        n_embd=model.width,
        n_layer=model.layers,
        n_head=model.heads,
        n_inner=model.feed_forward,
        resid_pdrop=model.dropout,
        embd_pdrop=model.dropout,
        attn_pdrop=model.dropout,
        initializer_range=model.initializer_range,
        tie_word_embeddings=model.tied,
        bos_token_id=specials["<bos>"],
        eos_token_id=specials["<eos>"],
        pad_token_id=specials["<pad>"],
    )
