"""Learning rates by layer: lower towards the embeddings, and 0 until a layer is unfrozen (ULMFiT; Howard and
Ruder, 2018, sections 3.2 and 3.3).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

_BLOCK = re.compile(r"\.(?:layers?|h|block|albert_layer_groups)\.(\d+)\.")
# Also what DeBERTa reads beside the embeddings: the norm of distances, and the convolution of the tokens.
_EMBEDDINGS = re.compile(r"embed|\bshared\b|\bw[tp]e\b|deberta\.encoder\.(?:LayerNorm|conv)\b")
_ENCODER = re.compile(r"(?:model\.)?encoder\.")
# The layers of characters below and above the blocks of CANINE.
_FIRST = re.compile(r"canine\.(?:initial_char_encoder|chars_to_molecules)\.")
_FINAL = re.compile(r"canine\.(?:projection|final_char_encoder)\.")


def layer_depths(network: Any, family: str) -> dict[str, int]:
    """Return the depth of each parameter by name, counted from the top of the network: 0 for heads and the
    last norm, 1 for the last block, one more for each block below it, and one more again for the embeddings.

    In an encoder-decoder, the encoder lies below the decoder. Layers that share all their parameters count as
    one block. In CANINE, the character layers count as one block below the others and one above.
    """
    names = [name for name, _ in network.named_parameters()]
    two = family == "encoder_decoder"
    upper = _blocks(name for name in names if not (two and _ENCODER.match(name)))
    lower = _blocks(name for name in names if _ENCODER.match(name)) if two else 0
    final = int(any(map(_FINAL.match, names)))
    depths = {}
    for name in names:
        block, below = _BLOCK.search(name), upper if two and _ENCODER.match(name) else 0
        if _FIRST.match(name) or _FINAL.match(name):
            depths[name] = upper + 2 if _FIRST.match(name) else 1
        elif block is not None:
            depths[name] = final + below + (lower if below else upper) - int(block[1])
        else:
            depths[name] = upper + lower + 1 + 2 * final if _EMBEDDINGS.search(name) else below
    return depths


def _blocks(names: Any) -> int:
    return 1 + max((int(match[1]) for match in map(_BLOCK.search, names) if match), default=-1)


def split_by_layer(
    groups: Sequence[Mapping[str, Any]], depths: Mapping[Any, int], decay: float, unfreeze_every: int | None
) -> list[dict[str, Any]]:
    """Return the parameter groups, divided by depth. At depth d, the peak rate is multiplied by `decay`^d,
    and training begins at step d x `unfreeze_every` (the group's `from_step`) or, if `unfreeze_every` is
    None, at step 0. `depths` maps the id() of a parameter to its depth.
    """
    divided = []
    for group in groups:
        by_depth: dict[int, list[Any]] = {}
        for parameter in group["params"]:
            by_depth.setdefault(depths[id(parameter)], []).append(parameter)
        for depth, parameters in sorted(by_depth.items()):
            rate = group["peak"] * decay**depth
            begins = {"from_step": depth * (unfreeze_every or 0)}
            divided.append({**group, "params": parameters, "lr": rate, "peak": rate, **begins})
    return divided
