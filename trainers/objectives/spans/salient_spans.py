"""Salient spans (REALM: Guu et al., 2020, section 3.4): a date or a name is removed, so that restoring it
takes knowledge. Roberts et al., "How Much Knowledge Can You Pack Into the Parameters of a Language Model?",
2020, continue T5's pretraining in this way, with a sentinel in place of the span.

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
    """Write the salient spans that were removed from a document. In the input, a sentinel replaces each span;
    in the target, the span follows its sentinel. There is no closing sentinel.

    `types` are the types of spans to choose from; the column `spans` of the shards must have them. One span
    is removed from each `unit`: from every document or, as in REALM, from every sentence, which also needs
    the column `sentences`. With `rate`, max(round(`rate` n), 1) of the n spans of the unit are removed
    instead. All spans are equally likely, and a new choice is made in every epoch.

    Only the part of a document that is in the row is read, and a span that the end of a row cuts is not
    removed. A document or sentence without spans stays whole. A document in which nothing was removed has no
    target and adds nothing to the loss. Removed spans without a token between them share a sentinel. A
    document has at most as many sentinels as the vocabulary (100 in vocabularies trained here); any further
    spans stay.

    Guu et al. (2020, REALM) and Roberts et al. (2020) read single sentences of Wikipedia that have a span,
    and a tagger finds the names. Here the model reads all of the document that is in the row, and the names
    are those that the `shards` step found.
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
        """Raise ValueError if `types` is empty or `rate` is out of range."""
        if not self.types:
            raise ValueError(f"types: got none, allowed one or more of {', '.join(SPAN_TYPES)}")
        if self.rate is not None and not 0 < self.rate <= 1:
            raise ValueError(f"rate: got {self.rate}, allowed above 0 and at most 1, or null for one span")

    @property
    def span_types(self) -> tuple[str, ...]:
        return self.types

    @property
    def needs_sentences(self) -> bool:
        return self.unit == "sentences"

    def rendered(self, tokens: int, family: str) -> int:
        """Return the length of the longest possible target of a document of `tokens` tokens. The removed
        tokens and their sentinels take at most `tokens` + 1 positions, because at least one kept token lies
        between two runs of removed tokens; `<eos>` takes one more.
        """
        return tokens + 2

    def pairs(self, batch: Batch, context: Context) -> Pairs:
        documents = documents_of(batch, context)
        text, eos = documents.content, context.special("<eos>")
        removed = self._chosen(batch, documents, context)
        inputs, targets = replace_with_sentinels(text, removed, sentinel_ids(context))
        return documents.pairs(inputs.with_marks(None, eos), targets.with_marks(None, eos, targets.sizes > 0))

    def _chosen(self, batch: Batch, documents: Documents, context: Context) -> np.ndarray:
        """Return which tokens to remove, bool [tokens]."""
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
