"""The attention of DeBERTa's version 1 with separate query states, as the enhanced mask decoder needs it."""

from typing import Any

import torch
from transformers.models.deberta.modeling_deberta import DisentangledSelfAttention, scaled_size_sqrt


class QueriedAttention(DisentangledSelfAttention):
    """Disentangled attention that accepts separate `query_states`. The class of `transformers` 5 fails with
    them.
    """

    def forward(
        self,
        hidden_states: Any,
        attention_mask: Any,
        output_attentions: bool = False,
        query_states: Any = None,
        relative_pos: Any = None,
        rel_embeddings: Any = None,
    ) -> tuple[Any, Any]:
        """Return (context, attention weights or None). The context is the output of attention from
        `query_states`, by default `hidden_states`, to `hidden_states`; all three are [rows, length, width].
        """
        if query_states is None:
            given = (hidden_states, attention_mask, output_attentions)
            return super().forward(*given, relative_pos=relative_pos, rel_embeddings=rel_embeddings)
        # Called as a module, because ZeRO 3 collects its parameters then.
        queries = self.transpose_for_scores(self.in_proj(query_states)).chunk(3, dim=-1)[0]
        _, keys, values = self.transpose_for_scores(self.in_proj(hidden_states)).chunk(3, dim=-1)
        queries = queries + self.transpose_for_scores(self.q_bias[None, None])
        values = values + self.transpose_for_scores(self.v_bias[None, None])
        kinds = 1 + len(self.pos_att_type)
        queries = queries / scaled_size_sqrt(queries, kinds).to(queries.dtype)
        distances = self.pos_dropout(rel_embeddings)
        scores = queries @ keys.mT + self.disentangled_att_bias(queries, keys, relative_pos, distances, kinds)
        scores = scores.masked_fill(~attention_mask.bool(), torch.finfo(queries.dtype).min)
        weights = self.dropout(scores.softmax(-1))
        context = (weights @ values).transpose(1, 2).flatten(2)
        return context, (weights if output_attentions else None)
