"""Prefixes: keys and values that precede the keys and values of the text in the attention layers of a model.
Every segment of a packed row attends to the prefix, which belongs to no segment.
"""

from functools import partial
from types import MethodType
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


class PrefixEncoder(torch.nn.Module):
    """The part of the prefix MLP that all layers share: its input embeddings, [tokens, width], and its first
    layer (Li and Liang, 2021, section 4.3).
    """

    def __init__(self, tokens: int, width: int, hidden: int) -> None:
        super().__init__()
        self.rows, self.inner = torch.nn.Embedding(tokens, width), torch.nn.Linear(width, hidden)

    def forward(self) -> Any:
        """Return the outputs of the shared first layer, [tokens, hidden]."""
        return self.inner(self.rows(torch.arange(self.rows.num_embeddings, device=self.rows.weight.device))).tanh()


class Prefix(torch.nn.Module):
    """The prefix keys and values of one attention layer: either parameters, or computed from `encoder` by a
    separate output layer.
    """

    def __init__(self, tokens: int, width: int, encoder: PrefixEncoder | None = None) -> None:
        """Create a prefix of `tokens` keys and values. `width` is the width of the keys over all heads."""
        super().__init__()
        self.tokens, self.encoder = tokens, encoder
        if encoder is None:
            self.rows = torch.nn.Embedding(tokens, 2 * width)
        else:
            self.outer = torch.nn.Linear(encoder.inner.out_features, 2 * width)
        self.distances: list[
            Any
        ] = []  # T5: the first attention layer of the stack, which has the biases for all its layers

    def forward(self) -> Any:
        """Return the keys and the values side by side, [tokens, 2 x width]."""
        if self.encoder is not None:
            return self.outer(self.encoder())
        return self.rows(torch.arange(self.tokens, device=self.rows.weight.device))

    def heads(self, rows: int, width: int) -> tuple[Any, Any]:
        """Return the keys and the values, repeated for `rows` rows, each [rows, heads, tokens, width].
        `width` is the width of one head.
        """
        both = self().view(self.tokens, 2, -1, width).permute(1, 2, 0, 3)[:, None]
        keys, values = both.expand(2, rows, *both.shape[2:])
        return keys, values


def add_prefix(attention: Any, prefix: Prefix) -> None:
    """Give an attention layer a prefix. Layers of GPT-1 read it immediately; all other layers read it only
    after `use_prefixes`.
    """
    attention.prefix = prefix
    if hasattr(attention, "_attn"):
        attention._attn = MethodType(_attend_gpt, attention)


def use_prefixes(network: Any) -> None:
    """Make the attention layers of a network read the prefixes that `add_prefix` gave them. Layers with eager
    attention, other than GPT-1's, ignore their prefixes.
    """
    for module in network.modules():
        config: Any = getattr(module, "config", None)
        base = getattr(config, "_attn_implementation", None)
        if base is not None and base != "eager" and not base.startswith("prefix_"):
            name = f"prefix_{base}"
            AttentionInterface.register(name, partial(_attend, ALL_ATTENTION_FUNCTIONS[base]))
            AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[base])
            config._attn_implementation = name


def _attend(base: Any, module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
    prefix = getattr(module, "prefix", None)
    if prefix is None:
        return base(module, query, key, value, attention_mask, **options)
    if attention_mask is None and query.shape[2] > 1 and getattr(module, "is_causal", False):
        square = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
        attention_mask = square.tril(key.shape[2] - query.shape[2])[None, None]
    bias = options.get("position_bias")
    if bias is not None:
        of_prefix = _distance_bias(prefix, bias, attention_mask)
        # Distances within the text are the same in all rows, so the bias may have a single row.
        options["position_bias"] = torch.cat([of_prefix, bias.expand(len(of_prefix), -1, -1, -1)], 3)
    keys, values = prefix.heads(key.shape[0], key.shape[3])
    key, value = torch.cat([keys.to(key.dtype), key], 2), torch.cat([values.to(value.dtype), value], 2)
    if attention_mask is not None:
        attention_mask = torch.nn.functional.pad(
            attention_mask, (prefix.tokens, 0), value=attention_mask.dtype == torch.bool
        )
    return base(module, query, key, value, attention_mask, **options)


def _distance_bias(prefix: Prefix, bias: Any, mask: Any) -> Any:
    """Return T5's bias [rows, heads, queries, tokens] for the distances to a prefix directly before the
    segment. It is 0 in cross-attention.
    """
    queries, keys = bias.shape[2:]
    if not prefix.distances:
        return bias.new_zeros(*bias.shape[:3], prefix.tokens)
    attention = prefix.distances[0]
    places = torch.arange(keys - queries, keys, device=bias.device)
    starts = 0 if mask is None else mask[:, 0].int().argmax(2)  # a segment begins at the first key that it attends to
    distances = torch.arange(-prefix.tokens, 0, device=bias.device) - (places - starts).view(-1, queries)[..., None]
    buckets = attention._relative_position_bucket(
        distances,
        bidirectional=not attention.is_decoder,
        num_buckets=attention.relative_attention_num_buckets,
        max_distance=attention.relative_attention_max_distance,
    )
    return attention.relative_attention_bias(buckets).permute(0, 3, 1, 2)


def _attend_gpt(
    self: Any, query: Any, key: Any, value: Any, attention_mask: Any = None, output_attentions: bool = False
) -> list[Any]:
    """Compute the attention of a GPT-1 block over its prefix and the text. `key` is [batch, heads, width,
    tokens].
    """
    keys, values = self.prefix.heads(value.shape[0], value.shape[3])
    logits = query @ torch.cat([keys.transpose(2, 3), key], 3)
    if self.scale:
        logits = logits / value.shape[3] ** 0.5
    seen = torch.nn.functional.pad(attention_mask, (self.prefix.tokens, 0))
    weights = self.attn_dropout((logits + seen).softmax(-1))
    return [weights @ torch.cat([values, value], 2)]
