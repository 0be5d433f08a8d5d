"""Gradient-disentangled embedding sharing (DeBERTaV3: He et al., 2023, section 3): a discriminator reads its
generator's embeddings plus a table of its own. For export, the two tables are merged.
"""

from collections.abc import Mapping
from typing import Any

import torch


class DisentangledEmbedding(torch.nn.Module):
    """The discriminator's embeddings, E_D = sg(E_G) + E_delta: the generator's embeddings `base`, which
    receive no gradient from here, plus `delta`.
    """

    def __init__(self, base: torch.nn.Embedding) -> None:
        super().__init__()
        self.base = base
        self.delta = torch.nn.Embedding(base.num_embeddings, base.embedding_dim, padding_idx=base.padding_idx)
        torch.nn.init.zeros_(self.delta.weight)

    def forward(self, ids: Any) -> Any:
        """Return the embeddings [..., width] of the tokens `ids`, int64 [...]."""
        return self.base(ids).detach() + self.delta(ids)

    def merged(self) -> Any:
        """Return the sum of the tables `base` and `delta`, [vocabulary, width]."""
        return self.base.weight.detach() + self.delta.weight.detach()


def merge_embeddings(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return `weights`, keyed by name, with every pair of tables `base` and `delta` replaced by one table,
    their sum.
    """
    ending = ".delta.weight"
    tables = {name.removesuffix(ending) for name in weights if name.endswith(ending)}
    kept = {
        name: weight for name, weight in weights.items() if name.rpartition(".")[0].rpartition(".")[0] not in tables
    }
    return kept | {f"{name}.weight": weights[f"{name}.base.weight"] + weights[f"{name}{ending}"] for name in tables}
