"""What the trainer must know of an architecture: its `transformers` configuration, and the pass through it in two parts.

The pass ends before the output layer, so that logits are computed at the targets alone: masked language modelling needs
them at 15 % of the positions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

from trainers.config.architecture import Model


@dataclass(frozen=True)
class Inputs:
    """What one stack reads, as tensors: `ids` and `positions` (from 0 in every document) int64 [rows, length], and `mask`
    bool [rows, 1, length, length], what each position sees.

    `token_types` int64 [rows, length] is BERT's segment A or B. An encoder-decoder has the inputs of its decoder in
    `decoder`, and in `cross` bool [rows, 1, target length, length] what the decoder sees of the encoder.
    """

    ids: Any
    positions: Any
    mask: Any
    token_types: Any = None
    decoder: Optional["Inputs"] = None
    cross: Any = None


@dataclass(frozen=True)
class Architecture:
    """`configuration` makes the `transformers` configuration from sizes and special ids; `create` the model from that and both,
    where the stock class of the family does not do. `hidden` [rows, length, width] is the state of every position (of the
    decoder, where there is one), `logits` maps states [..., width] to [..., vocabulary]; `sentence` states [rows, length,
    width] to the two classes of sentence pairs [rows, 2]. Both parts together compute what the stock model does, and call
    its own modules.

    `tables` are its position embeddings, each with the row of position 0, and `attentions` its self-attention layers: what
    other position schemes replace. `decoder_name` is what a parameter of the encoder is called in the decoder. `publish`
    changes a trained model, given the special ids, into what plain `transformers` computes alike.
    """

    configuration: Callable[[Model, dict[str, int]], Any]
    hidden: Callable[[Any, Inputs], Any]
    logits: Callable[[Any, Any], Any]
    create: Callable[[Any, Model, dict[str, int]], Any] | None = None
    sentence: Callable[[Any, Any], Any] | None = None
    tables: Callable[[Any], list[tuple[Any, int]]] | None = None
    attentions: Callable[[Any], list[Any]] | None = None
    decoder_name: Callable[[str], str] | None = None
    publish: Callable[[Any, dict[str, int]], None] | None = None
    attention: str = "sdpa"


def special_ids(specials: dict[str, int]) -> dict[str, int | None]:
    """The special ids that every configuration holds, None where the tokenizer has none: `transformers` would take those of
    the published models. Embeddings of a padding token are 0 and not trained, so another token must not be called that.
    """
    return {f"{name}_token_id": specials.get(f"<{name}>") for name in ("bos", "eos", "pad")}


def decoder_start_id(model: Model, specials: dict[str, int]) -> int:
    """The id that the decoder of an encoder-decoder reads first."""
    start = model.traits.decoder_start
    assert start is not None, f"{model.architecture} is no encoder-decoder"
    return specials[start]
