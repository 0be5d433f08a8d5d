"""Watch the attention heads of a model, and mask some of them.

with watch_heads(network, architecture) as watch:
    watch.gates[site] = ...     factors of the heads of a layer; a head with factor 0 is masked
    watch.observe = ...         called with the attention weights of every layer
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from gristmill.errors import UserError
from trainers.models import MODELS

Stack = Literal["decoder", "encoder"]


@dataclass(frozen=True)
class HeadSite:
    """An attention layer: its `stack` and its number in the stack (`layer`, from 1). `attends` is `self` if
    the layer attends to its own stack, `cross` if it attends to the encoder.
    """

    stack: Stack
    layer: int
    attends: Literal["self", "cross"]


@dataclass
class HeadWatch:
    """A hook into the attention of a network.

    - `gates`: for some layers, the factors by which the outputs of the layer's heads are multiplied, fp32
      [heads].
    - `observe`: if set, it is called with each layer and its attention weights [rows, queries, heads,
      keys].
    - `heads`: the number of heads of each layer that has attended so far, in the order in which the
      layers attended.
    - `owners`: the layers that each module belongs to. A module that several layers share attends for
      them in turn.
    - `sites`: the layers of each module that has attended so far.
    - `turns`: how often each module has attended.
    """

    gates: dict[HeadSite, Any] = field(default_factory=dict)
    observe: Callable[[HeadSite, Any], None] | None = None
    heads: dict[HeadSite, int] = field(default_factory=dict)
    owners: dict[Any, list[tuple[Stack, int]]] = field(default_factory=dict)
    sites: dict[Any, list[HeadSite]] = field(default_factory=dict)
    turns: Counter[Any] = field(default_factory=Counter)

    def attend(self, base: Any, module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        """Run the attention function `base`, and return its output and weights. If the layer has gates, the
        output of each head is multiplied by its gate. If `observe` is set, it is called with the attention
        weights.
        """
        import torch

        site = self._site(module)
        self.heads.setdefault(site, query.shape[1])
        output, weights = base(module, query, key, value, mask, **options)
        if self.observe is not None:
            # Values that are the rows of an identity matrix make the weights themselves the output.
            unit = torch.eye(key.shape[2], dtype=value.dtype, device=value.device).expand(*key.shape[:3], -1)
            self.observe(site, base(module, query, key, unit, mask, **options)[0])
        gate = self.gates.get(site)
        return (output if gate is None else output * gate.to(output)[:, None]), weights

    def _site(self, module: Any) -> HeadSite:
        if module not in self.sites:
            taken = {site for sites in self.sites.values() for site in sites}
            own = [HeadSite(stack, layer, "self") for stack, layer in self.owners[module]]
            self.sites[module] = [replace(site, attends="cross") if site in taken else site for site in own]
        sites = self.sites[module]
        self.turns[module] += 1
        return sites[(self.turns[module] - 1) % len(sites)]


@contextmanager
def watch_heads(network: Any, architecture: str) -> Iterator[HeadWatch]:
    """Yield a `HeadWatch` that is hooked into the attention of `network` until the block ends. Raises
    UserError for an architecture that does not attend through the attention interface of `transformers`.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    model, watch = MODELS[architecture], HeadWatch()
    if model.attention == "eager":
        raise UserError(
            f"heads: the attention of {architecture} cannot be watched; give a model of another architecture"
        )
    watch.owners |= _owners("decoder", model.blocks(network))
    if model.encoder_blocks is not None:
        watch.owners |= _owners("encoder", model.encoder_blocks(network))
    changed = []
    for module in network.modules():
        config: Any = getattr(module, "config", None)
        base = getattr(config, "_attn_implementation", None)
        if base is not None and not base.startswith("watched_"):
            name = f"watched_{base}"
            AttentionInterface.register(name, partial(watch.attend, ALL_ATTENTION_FUNCTIONS[base]))
            AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[base])
            config._attn_implementation = name
            changed.append((config, base))
    try:
        yield watch
    finally:
        for config, base in changed:
            config._attn_implementation = base


def _owners(stack: Stack, blocks: list[Any]) -> dict[Any, list[tuple[Stack, int]]]:
    owners: dict[Any, list[tuple[Stack, int]]] = {}
    for number, block in enumerate(blocks, 1):
        for module in block.modules():
            owners.setdefault(module, []).append((stack, number))
    return owners
