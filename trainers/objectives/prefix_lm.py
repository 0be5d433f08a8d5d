"""Prefix language modelling (Raffel et al., 2020, section 3.2; Liu et al., "Generating Wikipedia by
Summarizing Long Sequences", 2018): split a document and predict the second part from the first.

    "Thank you for inviting" -> "me to your party last week ."

In a decoder, both parts form one text, and the positions of the first part may attend to one another in both
directions.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from gristmill.compilation import kernel
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.pairs import Documents, PairObjective, Pairs, documents_of
from trainers.objectives.shared.prompt_format import PromptFormat
from trainers.objectives.shared.ragged import Ragged
from trainers.rows.batch import Batch, Frame


@dataclass(frozen=True)
class PrefixLM(PairObjective):
    """Split each document in two and predict the second part from the first. The first part of a document of
    n tokens is its first k tokens, where k is drawn uniformly from 1 to n - 1, as in T5's code. With
    `target_share`, the second part is that share of the document, but at least one token and at most n - 1. A
    document of one token has no target. In a decoder, `bidirectional_prefix` lets the positions of the first
    part see one another in both directions, and `loss_on_prefix` adds the tokens of the first part to the
    loss.
    """

    kind: Literal["prefix_lm"] = "prefix_lm"
    target_share: float | None = None
    bidirectional_prefix: bool = True
    loss_on_prefix: bool = False

    frame: ClassVar[Frame] = Frame("<bos>", None)
    families: ClassVar[tuple[str, ...]] = ("decoder", "encoder_decoder")
    gives_likelihood: ClassVar[bool] = True
    least_tokens: ClassVar[int] = 2
    prompt_format: ClassVar[PromptFormat] = PromptFormat(plain_text=True)

    def check(self) -> None:
        """Raise ValueError if `target_share` is out of range, or if `bidirectional_prefix` and
        `loss_on_prefix` are both true.
        """
        if self.target_share is not None and not 0 < self.target_share < 1:
            raise ValueError(
                f"target_share: got {self.target_share}, allowed above 0 and below 1, or null for any split"
            )
        self.check_prefix()

    def rendered(self, tokens: int, family: str) -> int:
        """Return an upper bound on the number of positions that a document of `tokens` tokens takes. The
        additional position is for the `<eos>` of an encoder's input or the `<bos>` of a decoder.
        """
        return tokens + 1

    def pairs(self, batch: Batch, context: Context) -> Pairs:
        documents = documents_of(batch, context)
        sizes = documents.content.sizes
        if self.target_share is None:
            chance = documents.per_document(context, "prefix_lm/split")[:, 0]
            return self.split(documents, 1 + (chance * (sizes - 1)).astype(np.int64), context)
        wanted = np.rint(sizes * self.target_share).astype(np.int64)
        return self.split(documents, sizes - np.minimum(np.maximum(wanted, 1), sizes - 1), context)

    def split(self, documents: Documents, places: np.ndarray, context: Context) -> Pairs:
        """Return the pairs that result when document i is split before its token with index `places[i]`. A
        document of one token becomes an input with an empty target.
        """
        content = documents.content
        many = content.sizes > 1
        places = np.where(many, places, content.sizes)
        more = many & (documents.following >= 0)
        starts = np.concatenate([[0], np.cumsum(places)])
        goals = np.concatenate([[0], np.cumsum(content.sizes - places + more)])
        inputs, targets = np.empty(starts[-1], dtype=np.int64), np.empty(goals[-1], dtype=np.int64)
        _split(content.tokens, content.offsets, documents.following, starts, inputs, goals, targets)
        given = Ragged(inputs, starts)
        if context.family == "encoder_decoder":
            given = given.with_marks(None, context.special("<eos>"))
        return documents.pairs(given, Ragged(targets, goals))


@kernel(nogil=True)
def _split(
    tokens: np.ndarray,
    offsets: np.ndarray,
    following: np.ndarray,
    input_offsets: np.ndarray,
    inputs: np.ndarray,
    target_offsets: np.ndarray,
    targets: np.ndarray,
) -> None:
    for document in range(len(offsets) - 1):
        place = offsets[document]
        for k in range(input_offsets[document], input_offsets[document + 1]):
            inputs[k] = tokens[place]
            place += 1
        for k in range(target_offsets[document], target_offsets[document + 1]):
            targets[k] = tokens[place] if place < offsets[document + 1] else following[document]
            place += 1
