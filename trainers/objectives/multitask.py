"""Multi-task pretraining on ordinary text mixed with tasks, which are written as pairs of texts (T5: Raffel
et al., 2020, section 3.5.3).

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
from trainers.objectives.spans.span_corruption import Corruption
from trainers.rows.batch import Batch


@dataclass(frozen=True)
class Multitask(Corruption):
    """Predict the target of a pair from its source: the answer to a task, a translation, a summary. A
    document without a target is corrupted as in `span_corruption`, which documents the fields. The weights of
    sources determine the mixture of pairs and text.

    Needs shards with the column `target`. With `data.packing: best_fit` or `documents`, only pairs longer
    than a row are cut. A piece of a pair is still a pair if it contains tokens of both source and target;
    otherwise it is read as a document without a target.

    In an encoder-decoder, rows of length 512 hold at most 512 tokens of text, because a source or a target
    may contain all tokens of its pair except one. With `span_corruption` and its defaults, they hold 568.
    """

    kind: Literal["multitask"] = "multitask"

    needs_pairs: ClassVar[bool] = True

    @property
    def prompt_format(self) -> PromptFormat:
        """The format of prompts: a plain text is the source of a pair, and the model writes the target."""
        return replace(super().prompt_format, gap=None, plain_text=True)

    def rendered(self, tokens: int, family: str) -> int:
        return max(super().rendered(tokens, family), tokens)

    def pairs(self, batch: Batch, context: Context) -> Pairs:
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
