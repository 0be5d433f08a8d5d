"""Salient spans (REALM: Guu et al., "REALM: Retrieval-Augmented Language Model Pre-Training", 2020, section 3.4): a date or a
name is removed, which takes knowledge to restore. Roberts et al., "How Much Knowledge Can You Pack Into the Parameters of a
Language Model?", 2020, continue T5's pretraining with it: the span becomes a sentinel.

document   Armstrong stepped onto the Moon in July 1969 .
input      Armstrong stepped onto the Moon in <extra_id_0> .  <eos>
target     <extra_id_0> July 1969  <eos>
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from pipelines.contracts.shard_set import SPAN_TYPES, SpanType
from tokenizer.vocabulary.specials import SENTINELS
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.pairs import Documents, PairObjective, Pairs, documents_of
from trainers.objectives.shared.prompt_format import PromptFormat, fill_sentinels
from trainers.objectives.shared.salient_choice import choose_spans
from trainers.objectives.shared.sentinels import replace_with_sentinels, sentinel_ids
from trainers.rows.batch import Batch, Frame


@dataclass(frozen=True)
class SalientSpans(PairObjective):
    """Write the salient spans that were removed from a document. Each leaves a sentinel, after which the target has the span;
    there is no closing sentinel.

    `types` are the spans to choose from, which the column `spans` of the shards must have. One is removed from each of the
    `unit`: from every document, or, as in REALM, from every sentence, which also needs the column `sentences`. With `rate`, the
    share max(round(`rate` n), 1) of its n spans is removed instead. All are as likely, and every epoch has a new choice.

    A document is what of it is in the row, and a span that the end of a row cuts is left alone. A document or sentence without
    spans stays whole, and a document in which nothing was removed has no target: of such documents nothing is learned. Removed
    spans without a token between them share a sentinel. A document has at most as many sentinels as the vocabulary (100 in
    those trained here); the spans after the last one stay. The papers read single sentences of Wikipedia that have a span, with
    names of a tagger; here the whole row is the context, and names are found by patterns.
    """

    types: tuple[SpanType, ...] = SPAN_TYPES
    unit: Literal["documents", "sentences"] = "documents"
    rate: float | None = None
    kind: Literal["salient_spans"] = "salient_spans"

    frame: ClassVar[Frame] = Frame(None, None)
    families: ClassVar[tuple[str, ...]] = ("encoder_decoder",)
    prompt_format: ClassVar[PromptFormat] = PromptFormat(
        SENTINELS, SENTINELS[0], closed=True, generated=SENTINELS, answer=fill_sentinels
    )

    def check(self) -> None:
        """Validate ranges."""
        if not self.types:
            raise ValueError(f"types: got none, allowed one or more of {', '.join(SPAN_TYPES)}")
        if self.rate is not None and not 0 < self.rate <= 1:
            raise ValueError(f"rate: got {self.rate}, allowed above 0 and at most 1, or null for one span")

    @property
    def span_types(self) -> tuple[str, ...]:
        """The types of spans to choose from."""
        return self.types

    @property
    def needs_sentences(self) -> bool:
        """Whether spans are chosen by sentence."""
        return self.unit == "sentences"

    def rendered(self, tokens: int, family: str) -> int:
        """Return the positions of a target with its sentinels and `<eos>`. Runs of removed tokens have at least one other token
        between them, so tokens and sentinels are one more than the document at most.
        """
        return tokens + 2

    def pairs(self, batch: Batch, context: Context) -> Pairs:
        """Return each document with sentinels as input, and what they replaced as target."""
        documents = documents_of(batch, context)
        text, eos = documents.content, context.special("<eos>")
        removed = self._chosen(batch, documents, context)
        inputs, targets = replace_with_sentinels(text, removed, sentinel_ids(context))
        return documents.pairs(inputs.with_marks(None, eos), targets.with_marks(None, eos, targets.sizes > 0))

    def _chosen(self, batch: Batch, documents: Documents, context: Context) -> np.ndarray:
        """Choose the tokens to remove, bool [tokens]."""
        assert batch.spans is not None
        text = documents.content
        opens = np.zeros(len(text.tokens), dtype=bool)
        opens[text.offsets[:-1][text.sizes > 0]] = True
        units = opens
        if self.unit == "sentences":
            assert batch.sentence_starts is not None
            units = opens | batch.sentence_starts[documents.text]
        draws = documents.per_token(context, "salient_spans/choice")
        return choose_spans(batch.spans[documents.text], opens, units, draws, self.types, self.rate)[0]
