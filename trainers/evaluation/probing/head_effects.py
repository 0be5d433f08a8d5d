"""Measure how much a model depends on its attention heads: its loss with each head masked alone, and with
more and more heads masked together (Michel et al., 2019).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainers.evaluation.probing.head_watch import HeadSite, HeadWatch, watch_heads
from trainers.evaluation.scoring.scorer import EncodedRequest, Scorer

Masked = Mapping[HeadSite, Sequence[int]]
"""The indices of the masked heads, by layer."""


@dataclass(frozen=True)
class LossChange:
    """The effect of masking some heads, in nats per token: the `loss` with these heads masked, its `change`
    from the loss of the whole model, and the standard `error` of the change over the windows of the texts,
    NaN for a single window.
    """

    loss: float
    change: float
    error: float


@dataclass(frozen=True)
class HeadEffects:
    """How masking attention heads changes a model's loss, in nats per token. `loss` is the loss of the whole
    model, averaged over `tokens` tokens.

    `alone` holds, for each layer, the effect of masking each of its heads alone. `pruned` holds pairs (number
    of heads masked together, effect); the least useful heads are masked first.
    """

    loss: float
    alone: dict[HeadSite, list[LossChange]]
    pruned: list[tuple[int, LossChange]]
    tokens: int

    @property
    def heads(self) -> int:
        """The number of heads in the model."""
        return sum(map(len, self.alone.values()))


def head_effects(
    scorer: Scorer, architecture: str, requests: Sequence[EncodedRequest], tell: Callable[[str], None]
) -> HeadEffects:
    """Measure the loss with each head masked alone, then with the least useful heads masked together: a tenth
    of all heads, two tenths, and so on up to all of them (Michel et al., 2019, section 4).
    """
    with watch_heads(scorer.forward.model, architecture) as watch:
        whole = _nats(scorer, watch, requests, {})
        count = sum(watch.heads.values())
        steps = list(dict.fromkeys(max(1, round(count * tenth / 10)) for tenth in range(1, 11)))
        tell(f"{scorer.name}: {count:,} heads, {count + len(steps):,} passes over {int(whole[1].sum()):,} tokens")
        sites = dict(watch.heads)
        alone = {
            site: [_change(whole, _nats(scorer, watch, requests, {site: [head]})) for head in range(heads)]
            for site, heads in sites.items()
        }
        order = [(change.change, site, head) for site, its in alone.items() for head, change in enumerate(its)]
        order.sort(key=lambda one: one[0])
        pruned = []
        for many in steps:
            masked: dict[HeadSite, list[int]] = {}
            for _, site, head in order[:many]:
                masked.setdefault(site, []).append(head)
            pruned.append((many, _change(whole, _nats(scorer, watch, requests, masked))))
    return HeadEffects(float(whole[0].sum() / whole[1].sum()), alone, pruned, int(whole[1].sum()))


def _nats(
    scorer: Scorer, watch: HeadWatch, requests: Sequence[EncodedRequest], masked: Masked
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Mask the heads in `masked`, and return each request's negative log-likelihood in nats and its number of
    tokens, both float64 [n].
    """
    import torch

    watch.gates.clear()
    for site, numbers in masked.items():
        watch.gates[site] = torch.ones(watch.heads[site])
        watch.gates[site][list(numbers)] = 0.0
    found = scorer.score_ids(requests)
    return -found.log_likelihood, found.tokens.astype(np.float64)


def _change(whole: tuple[np.ndarray, np.ndarray], without: tuple[np.ndarray, np.ndarray]) -> LossChange:
    difference, tokens = without[0] - whole[0], whole[1]
    mean, count = float(difference.sum() / tokens.sum()), len(tokens)
    left = difference - mean * tokens
    error = float(np.sqrt((left**2).sum() * count / (count - 1)) / tokens.sum()) if count > 1 else float("nan")
    return LossChange(float(without[0].sum() / tokens.sum()), mean, error)
