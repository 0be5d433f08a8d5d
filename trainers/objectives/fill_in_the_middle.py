"""Fill in the middle (Bavarian et al., "Efficient Training of Language Models to Fill in the Middle", 2022):
cut a document into prefix, middle and suffix, and move the middle to the end.

    PSM  <fim_prefix> prefix <fim_suffix> suffix <fim_middle> middle <eos>
    SPM  <fim_prefix> <fim_suffix> suffix <fim_middle> prefix middle <eos>

SPM is the paper's second variant (appendix D), which allows both orders to be trained together. Cuts fall
between characters, as the paper prefers (section 3): models trained with cuts between tokens fail on prompts
that end inside a token. Each part is encoded separately, so it has the ids that a prompt with the same text
has (`trainers.objectives.shared.character_cuts`). Each document of a row is cut separately, after packing
(context level, section 4.4). The model predicts every token of a document, whether it is cut or not.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from gristmill.compilation import kernel
from tokenizer.vocabulary.specials import FIM_MIDDLE, FIM_PREFIX, FIM_SUFFIX
from trainers.objectives.shared.character_cuts import GROWTH
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.pairs import Documents, PairObjective, Pairs, documents_of
from trainers.objectives.shared.prompt_format import PromptFormat
from trainers.objectives.shared.ragged import Ragged
from trainers.rows.batch import Batch, Frame

_MEAN_GROWTH = 2  # tokens that the cuts of a document add on average
_MARKS = (FIM_PREFIX, FIM_MIDDLE, FIM_SUFFIX)


@dataclass(frozen=True)
class FillInTheMiddle(PairObjective):
    """Move the middle of some documents to their end, and predict every token.

    A share `rate` of the documents is cut at two places, drawn uniformly from the positions before, between
    and after their characters. Of these documents, a share `spm` is written in the order suffix, prefix,
    middle, and the others in the order prefix, suffix, middle. The paper finds that rates up to 0.9 cost
    nothing in left-to-right prediction. Each part is encoded separately, as a prompt with the same text would
    be. With WordPiece and other vocabularies that do not keep spaces, documents are cut between tokens.
    """

    kind: Literal["fill_in_the_middle"] = "fill_in_the_middle"
    rate: float = 0.5
    spm: float = 0.5

    frame: ClassVar[Frame] = Frame("<bos>", None)
    families: ClassVar[tuple[str, ...]] = ("decoder",)
    gives_likelihood: ClassVar[bool] = True
    needs_texts: ClassVar[bool] = True
    prompt_format: ClassVar[PromptFormat] = PromptFormat(names=_MARKS)

    def check(self) -> None:
        """Raise ValueError if `rate` or `spm` is not between 0 and 1."""
        for name in ("rate", "spm"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, allowed 0 to 1")

    def rendered(self, tokens: int, family: str) -> int:
        """Return the number of positions reserved for a document of `tokens` tokens."""
        return tokens + 1 + self._reserved

    @property
    def _reserved(self) -> int:
        """The number of positions that packing reserves in each document for cutting it: the number of marks
        of a cut document or, if larger, the mean number of tokens that cutting adds per document, counting 0
        for documents that are not cut.
        """
        return max(len(_MARKS), math.ceil(self.rate * (len(_MARKS) + _MEAN_GROWTH)))

    @property
    def spare(self) -> int:
        """The number of positions of a row that packing leaves free, so that even a document alone in its row
        can grow by `character_cuts.GROWTH` tokens in addition to its marks.
        """
        return GROWTH - (self._reserved - len(_MARKS))

    def pairs(self, batch: Batch, context: Context) -> Pairs:
        """Return every document, cut or not, as a target with an empty input."""
        documents = documents_of(batch, context)
        chance = documents.per_document(context, "fill_in_the_middle/cuts", 4)
        order = np.where(chance[:, 0] >= self.rate, 0, np.where(chance[:, 1] >= self.spm, 1, 2))
        assert context.texts is not None
        unused = self._reserved - len(_MARKS) * (order > 0)
        free = self.spare + np.bincount(documents.rows, unused, minlength=len(batch.inputs)).astype(np.int64)
        content, cuts = context.texts.cut(documents.content, order > 0, chance[:, 2:], documents.rows, free)
        return self.move_middle(replace(documents, content=content), order, cuts, context)

    def move_middle(self, documents: Documents, order: np.ndarray, cuts: np.ndarray, context: Context) -> Pairs:
        """Return pairs with an empty input and a document as the target: document i unchanged if `order[i]`
        is 0, in the order PSM if it is 1, and in the order SPM if it is 2. The middle of document i is its
        tokens from `cuts[i, 0]` up to, but not including, `cuts[i, 1]`.
        """
        content, whole = documents.content, order == 0
        more = np.where(whole, documents.following >= 0, len(_MARKS) + 1)
        offsets = np.concatenate([[0], np.cumsum(content.sizes + more)])
        targets = np.empty(offsets[-1], dtype=np.int64)
        last = np.where(whole, documents.following, context.special("<eos>"))
        marks = np.array([context.special(mark) for mark in _MARKS])
        _move(content.tokens, content.offsets, order, cuts, marks, last, targets, offsets)
        nothing = Ragged(np.empty(0, dtype=np.int64), np.zeros(len(offsets), dtype=np.int64))
        return documents.pairs(nothing, Ragged(targets, offsets))


@kernel(nogil=True)
def _copy(tokens: np.ndarray, first: int, end: int, targets: np.ndarray, place: int) -> int:
    for k in range(first, end):
        targets[place + k - first] = tokens[k]
    return place + end - first


@kernel(nogil=True)
def _move(
    tokens: np.ndarray,
    offsets: np.ndarray,
    order: np.ndarray,
    cuts: np.ndarray,
    marks: np.ndarray,
    last: np.ndarray,
    targets: np.ndarray,
    target_offsets: np.ndarray,
) -> None:
    prefix, middle, suffix = marks
    for document in range(len(offsets) - 1):
        first, end, place = offsets[document], offsets[document + 1], target_offsets[document]
        one, two = first + cuts[document, 0], first + cuts[document, 1]
        if order[document] == 0:
            place = _copy(tokens, first, end, targets, place)
        else:
            targets[place] = prefix
            place += 1
            if order[document] == 1:
                place = _copy(tokens, first, one, targets, place)
            targets[place] = suffix
            place = _copy(tokens, two, end, targets, place + 1)
            targets[place] = middle
            place = _copy(tokens, one if order[document] == 1 else first, two, targets, place + 1)
        if last[document] >= 0:
            targets[place] = last[document]
