"""Fill in the middle (Bavarian et al., "Efficient Training of Language Models to Fill in the Middle", 2022): a document is
cut into prefix, middle and suffix, and the middle is moved to the end.

    PSM  <fim_prefix> prefix <fim_suffix> suffix <fim_middle> middle <eos>
    SPM  <fim_prefix> <fim_suffix> suffix <fim_middle> prefix middle <eos>

SPM is the paper's second variant (appendix D), the one that lets both orders be trained together. Cuts are between
characters (section 3 prefers them to cuts between tokens, which fail on prompts that end inside of a token), and each part is
encoded as its text alone would be: the ids that a prompt has. `trainers.objectives.shared.character_cuts` says how.
Each document of a row is cut by itself after packing (context level, section 4.4); the model predicts all of it, as it
predicts the documents that are left as they are.
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
    """A share `rate` of the documents is cut, at two places drawn uniformly between its characters, and of
    those a share `spm` is in the order suffix, prefix, middle. The paper finds rates up to 0.9 free of cost for what is
    predicted left to right. Each part is encoded by itself, as a prompt of the same text is; of WordPiece and of other
    vocabularies that do not keep spaces the cuts are between tokens.
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
        """Shares are shares."""
        for name in ("rate", "spm"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, allowed 0 to 1")

    def rendered(self, tokens: int, family: str) -> int:
        """The document with `<bos>`, and what cutting it takes."""
        return tokens + 1 + self._reserved

    @property
    def _reserved(self) -> int:
        """Positions kept for what cutting a document takes: no fewer than the marks, and enough on average over the documents
        that are cut and those that are not. What the cuts of one take beyond that comes out of `spare` and of what the
        others of its row do not need.
        """
        return max(len(_MARKS), math.ceil(self.rate * (len(_MARKS) + _MEAN_GROWTH)))

    @property
    def spare(self) -> int:
        """So many that a document alone in its row may grow by GROWTH."""
        return GROWTH - (self._reserved - len(_MARKS))

    def pairs(self, batch: Batch, context: Context) -> Pairs:
        """Every document as a target without an input."""
        documents = documents_of(batch, context)
        chance = documents.per_document(context, "fill_in_the_middle/cuts", 4)
        order = np.where(chance[:, 0] >= self.rate, 0, np.where(chance[:, 1] >= self.spm, 1, 2))
        assert context.texts is not None
        unused = self._reserved - len(_MARKS) * (order > 0)
        free = self.spare + np.bincount(documents.rows, unused, minlength=len(batch.inputs)).astype(np.int64)
        content, cuts = context.texts.cut(documents.content, order > 0, chance[:, 2:], documents.rows, free)
        return self.moved(replace(documents, content=content), order, cuts, context)

    def moved(self, documents: Documents, order: np.ndarray, cuts: np.ndarray, context: Context) -> Pairs:
        """The pairs with document i left as it is (order 0), as PSM (1) or as SPM (2), its middle `cuts[i, 0]` up to
        `cuts[i, 1]`.
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
    """Write each document in its order, then `last`, where that is a token."""
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
