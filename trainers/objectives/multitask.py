"""Pairs among text (T5's multi-task pre-training: Raffel et al., 2020, section 3.5.3): tasks, written as pairs of texts, are
mixed into pretraining from its first step.

document   sst2 sentence: a gripping film | positive
input      sst2 sentence: a gripping film  <eos>
target     positive  <eos>
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from trainers.objectives.shared.context import Context
from trainers.objectives.shared.pairs import Pairs, documents_of
from trainers.objectives.shared.prompt_format import PromptFormat
from trainers.objectives.span_corruption import Corruption
from trainers.rows.batch import Batch


@dataclass(frozen=True)
class Multitask(Corruption):
    """Write the target of a pair, given its source: the answer of a task, a translation, a summary. A document without a target
    is read as in `span_corruption`, whose fields these are. The weights of sources mix both.

    Needs shards with `target`. Of a pair that the end of a row cuts, a piece with tokens of both sides is a pair, and a piece of
    one side is read as a document without a target. With `data.packing: best_fit` or `documents`, only pairs longer than a row
    are cut. Either side may have all but one of the tokens of a pair, so an encoder-decoder's rows of 512 hold 512 tokens of
    text, where those of `span_corruption` hold 568.
    """

    kind: Literal["multitask"] = "multitask"

    needs_pairs: ClassVar[bool] = True

    @property
    def prompt_format(self) -> PromptFormat:
        """The format of prompts: the model answers a text as it is, and fills the gaps of one that has any."""
        return replace(super().prompt_format, gap=None, plain_text=True)

    def rendered(self, tokens: int, family: str) -> int:
        """Return the longer of input and target, whether the document is a pair or is corrupted."""
        return max(super().rendered(tokens, family), tokens)

    def pairs(self, batch: Batch, context: Context) -> Pairs:
        """Return source and target of each pair, and an input and a target for every other document."""
        assert batch.in_target is not None
        documents = documents_of(batch, context)
        text, in_target, eos = documents.content, batch.in_target[documents.text], context.special("<eos>")
        owner = np.repeat(np.arange(len(text.sizes)), text.sizes)
        of_target = np.bincount(owner, in_target, minlength=len(text.sizes))
        is_pair = (of_target > 0) & (of_target < text.sizes)
        corrupted = self.corrupted(documents, context)
        sources, targets = (text.keep(side).with_marks(None, eos) for side in (~in_target, in_target))
        return documents.pairs(
            corrupted.inputs.replaced(is_pair, sources), corrupted.targets.replaced(is_pair, targets)
        )
