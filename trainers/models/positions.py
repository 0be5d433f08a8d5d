"""Position schemes that replace an architecture's table of learned positions: sinusoidal positions (Vaswani
et al., 2017, section 3.5) and clipped relative positions (Shaw et al., 2018).
"""

from typing import Any

import torch

from gristmill.libraries.loading import loading

# Of the modules that every command with a model loads, this one is the first to import transformers.
with loading("transformers"):
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

RELATIVE = "relative_sdpa"
"""The name of attention with clipped relative positions in a `transformers` configuration."""


def sinusoids(positions: int, width: int) -> Any:
    """Return the table of sinusoidal positions, fp32 [positions, width]. Row p contains sin(p / 10000^(2i /
    width)) in column 2i, and the cosine of the same angle in column 2i + 1.
    """
    angles = torch.arange(positions, dtype=torch.float64)[:, None] / 10000 ** (
        torch.arange(0, width, 2, dtype=torch.float64) / width
    )
    return torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1)[:, :width].float()


def fix_table(embedding: Any, first: int, table: Any, tokens: Any) -> None:
    """Replace the weights of a position embedding with `table`, fp32 [positions, width], and exclude them
    from training. Row 0 of `table` becomes row `first` of the embedding; rows of the embedding that `table`
    does not cover become 0. The output of the embedding is cast to the dtype of the token embedding `tokens`.
    """
    weight = torch.zeros(embedding.num_embeddings, embedding.embedding_dim)
    weight[first : first + len(table)] = table
    del embedding.weight
    embedding.register_buffer("weight", weight)
    embedding.register_forward_hook(lambda module, inputs, rows: rows.to(tokens.weight.dtype))


class RelativePositions(torch.nn.Module):
    """The clipped relative positions of one attention layer: embeddings RE [2k + 1, width] of the distances
    from -k to k, to which longer distances are clipped.
    """

    def __init__(self, width: int, distance: int, deviation: float) -> None:
        """Draw RE from a normal distribution with standard deviation `deviation`. `distance` is k."""
        super().__init__()
        self.distance = distance
        self.rows = torch.nn.Embedding(2 * distance + 1, width)
        torch.nn.init.normal_(self.rows.weight, std=deviation)

    def forward(self, queries: Any, keys: int, project: Any) -> Any:
        """Return the inner products, [rows, heads, queries, keys], of each query with W_K RE(clip(j - i, -k,
        k)), where i is the position of the query and j that of the key. `queries` are [rows, heads, queries,
        head width]; the last query is at the position of the last key. `project` applies W_K and, if there is
        one, its bias to [n, width]; the bias is subtracted again.
        """
        heads, width = queries.shape[1], queries.shape[3]
        numbers = torch.arange(2 * self.distance + 1, device=queries.device)
        rows = self.rows(numbers)
        bias = project(torch.zeros_like(rows[:1]))
        projected = (project(rows) - bias).view(-1, heads, width).permute(1, 2, 0)
        logits = queries @ projected
        columns = torch.arange(keys, device=queries.device)
        distances = columns[None, :] - columns[keys - queries.shape[2] :, None]
        chosen = distances.clamp(-self.distance, self.distance) + self.distance
        return logits.gather(3, chosen.expand(*logits.shape[:2], *chosen.shape))


def _keys(module: Any, rows: Any) -> Any:
    """Apply W_K of an attention layer to `rows`. GPT-2, BERT and BART name it differently."""
    if hasattr(module, "c_attn"):
        return module.c_attn(rows).split(module.split_size, dim=-1)[1]
    return module.key(rows) if hasattr(module, "key") else module.k_proj(rows)


def _attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> tuple[Any, None]:
    relative = getattr(module, "relative", None)
    if relative is not None:
        scaling = options.get("scaling") or query.shape[-1] ** -0.5
        bias = relative(query, key.shape[2], lambda rows: _keys(module, rows))
        options["position_bias"] = bias * scaling
    output: tuple[Any, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    return output


AttentionInterface.register(RELATIVE, _attend)
AttentionMaskInterface.register(RELATIVE, sdpa_mask)
