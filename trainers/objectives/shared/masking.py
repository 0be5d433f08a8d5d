"""Choose tokens and replace them, for the objectives that mask tokens. The tokens are chosen singly (BERT:
Devlin et al., 2019, section 3.1), as whole words, as spans of words (SpanBERT: Joshi et al., 2020, section
3.1), or as salient spans (REALM: Guu et al., 2020, section 3.4).
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np

from pipelines.contracts.shard_set import SPAN_TYPES
from tokenizer.vocabulary.specials import CLS, MASK, SEP
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.masking_kernels import choose_tokens, choose_words, replace_chosen
from trainers.objectives.shared.prompt_format import PromptFormat
from trainers.objectives.shared.salient_choice import choose_spans
from trainers.objectives.shared.training_objective import TrainingObjective
from trainers.rows.batch import Batch, Frame
from trainers.rows.random import uniforms


@dataclass(frozen=True)
class Masking(TrainingObjective):
    """The base class of the masked objectives. `trainers.objectives.masked.Masked` documents the fields."""

    rate: float = 0.15
    mask_share: float = 0.8
    random_share: float = 0.1
    unit: Literal["tokens", "words", "spans", "salient"] = "tokens"
    span_p: float = 0.2
    span_words: int = 10
    copies: int | None = None

    families: ClassVar[tuple[str, ...]] = ("encoder",)
    masks_salient: ClassVar[bool] = False  # whether `unit` may be `salient`
    prompt_format: ClassVar[PromptFormat] = PromptFormat(names=(MASK,))

    def check(self) -> None:
        """Raise ValueError if a field has a value that is not allowed."""
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate: got {self.rate}, allowed above 0 and at most 1")
        if min(self.mask_share, self.random_share) < 0 or self.mask_share + self.random_share > 1 + 1e-9:
            raise ValueError(
                f"mask_share, random_share: got {self.mask_share} and {self.random_share}, allowed 0 or more, with a sum "
                f"of 1 or less"
            )
        if self.unit == "salient" and not self.masks_salient:
            raise ValueError("unit: got salient, which only the objective masked has; allowed tokens, words, spans")
        if not 0 < self.span_p < 1:
            raise ValueError(f"span_p: got {self.span_p}, allowed above 0 and below 1")
        if self.span_words < 2:
            raise ValueError(
                f"span_words: got {self.span_words}, allowed 2 or more; for single words set unit to words"
            )
        if self.copies is not None and not 1 <= self.copies <= 1000:
            raise ValueError(f"copies: got {self.copies}, allowed 1 to 1000, or null for a new mask in every epoch")

    @property
    def frame(self) -> Frame:
        return Frame(CLS, SEP)

    @property
    def needs_words(self) -> bool:
        return self.unit in ("words", "spans")

    @property
    def span_types(self) -> tuple[str, ...]:
        return SPAN_TYPES if self.unit == "salient" else ()

    def apply(self, batch: Batch, context: Context) -> Batch:
        return self.replaced(batch, context, self.choose(batch, context))

    def replaced(self, batch: Batch, context: Context, group: np.ndarray) -> Batch:
        """Return the batch with each chosen token masked, replaced with a random token or left unchanged, and
        with the original tokens as targets. `group` is the result of `choose`.
        """
        _, ordinary = _ids(tuple(context.specials.values()), context.vocab_size)
        masked, targets = np.empty_like(batch.inputs), np.empty_like(batch.inputs)
        kinds, others = (self._uniforms(batch, context, name) for name in ("kind", "other"))
        shares = (self.mask_share, self.random_share)
        replace_chosen(batch.inputs, group, context.special(MASK), *shares, ordinary, kinds, others, masked, targets)
        return replace(batch, inputs=masked, targets=targets, spans=None)

    def choose(self, batch: Batch, context: Context) -> np.ndarray:
        """Return which tokens to predict, int64 [rows, length]: -1 for a token that is not chosen, otherwise
        the first column of its group. The replacement of all tokens of a group is decided together.
        """
        if self.unit == "salient":
            return self._choose_salient(batch, context)
        special, _ = _ids(tuple(context.specials.values()), context.vocab_size)
        group: np.ndarray = np.empty(batch.inputs.shape, dtype=np.int64)
        documents = int(batch.segments.max(initial=0)) + 1
        rounding, draws = (
            self._uniforms(batch, context, "rounding", documents),
            self._uniforms(batch, context, "draw"),
        )
        row = (batch.inputs, batch.segments, special)
        if not self.needs_words:
            choose_tokens(*row, self.rate, rounding, draws, group)
            return group
        assert context.word_marks is not None
        longer = longer_spans(self.span_p, self.span_words) if self.unit == "spans" else np.empty(0)
        lengths = self._uniforms(batch, context, "length") if self.unit == "spans" else draws
        last = self._uniforms(batch, context, "last", documents)
        choose_words(*row, context.word_marks, self.rate, longer, rounding, last, draws, lengths, group)
        return group

    def _choose_salient(self, batch: Batch, context: Context) -> np.ndarray:
        assert batch.spans is not None
        length = batch.inputs.shape[1]
        opens: np.ndarray = np.ones(batch.inputs.shape, dtype=bool)
        opens[:, 1:] = batch.segments[:, 1:] != batch.segments[:, :-1]
        opens, draws = opens.ravel(), self._uniforms(batch, context, "draw").ravel()
        chosen, first = choose_spans(batch.spans.reshape(-1, 2), opens, opens, draws, SPAN_TYPES, self.rate)
        return np.where(chosen, first % length, -1).reshape(-1, length)

    def _uniforms(self, batch: Batch, context: Context, name: str, columns: int | None = None) -> np.ndarray:
        """Draw uniform numbers, float64 [rows, columns], by default with as many columns as the inputs. With
        `copies`, a sequence gets the same numbers again after `copies` epochs.
        """
        keys, masks = batch.sample, "masked"
        if self.copies is not None:
            # 44 bits are enough for the sequences of any source times 1,000 copies.
            keys, masks = batch.source << 44 | (batch.sequence * self.copies + batch.epoch % self.copies), "masked/copy"
        return uniforms(context.seed, keys, columns or batch.inputs.shape[1], f"{masks}/{name}")


def longer_spans(p: float, most: int) -> np.ndarray:
    """Return P(length <= n) for n from 1 to `most` - 1, float64. The length of a span in words is geometric
    with parameter `p`, truncated at `most`.
    """
    shares = p * (1 - p) ** np.arange(most)
    longer: np.ndarray = np.cumsum(shares / shares.sum())[:-1]
    return longer


@lru_cache(maxsize=8)
def _ids(specials: tuple[int, ...], vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (bool mask of the special ids, int64 array of the other ids)."""
    special = np.zeros(max(vocab_size, *specials) + 1, dtype=bool)
    special[list(specials)] = True
    return special, np.flatnonzero(~special[:vocab_size])
