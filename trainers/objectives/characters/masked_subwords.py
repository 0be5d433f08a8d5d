"""Masked language modelling of subwords for models that read characters (CANINE-S: Clark et al., 2022,
section 3.2).

tokens      the   quick    brown        fox
characters  t h e _ q u i c k _ b r o w n _ f o x
masked      t h e _ q u i c k M M M M M M _ f o x     one mask for each character of the token
predicted                           brown             at one of these characters, chosen at random
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from tokenizer.vocabulary.specials import MASK
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.masking import Masking
from trainers.rows.batch import IGNORED, Batch


@dataclass(frozen=True)
class MaskedSubwords(Masking):
    """Predict masked tokens from the characters around them.

    In each document, a share `rate` of the tokens is chosen. Of the chosen tokens, a share `mask_share` is
    replaced with masks, one per character. A share `random_share` is replaced with random tokens that have
    the same number of characters, and the rest stay unchanged. Each chosen token is predicted from the state
    of one of its characters, drawn at random. A space before a word belongs to the word's first token, as in
    the vocabulary. Chosen tokens in which no character begins are left out. `copies` works as in `masked`.
    Requires architecture canine.
    """

    unit: Literal["tokens"] = "tokens"
    kind: Literal["masked_subwords"] = "masked_subwords"

    needs_character_counts: ClassVar[bool] = True

    def apply(self, batch: Batch, context: Context) -> Batch:
        """Return the batch with some tokens masked or replaced, and with the original tokens as targets. In
        the result, `covered` is the number of characters of each masked token. `read` is the index, within a
        token to predict, of the character whose state predicts it.
        """
        assert context.character_counts is not None
        counts = context.character_counts[batch.inputs]
        chosen = (self.choose(batch, context) >= 0) & (counts > 0)
        kinds, others, places = (self._uniforms(batch, context, name) for name in ("kind", "other", "place"))
        masked = chosen & (kinds < self.mask_share)
        replaced = chosen & ~masked & (kinds < self.mask_share + self.random_share)
        inputs = np.where(masked, context.special(MASK), batch.inputs)
        inputs[replaced] = _same_length(context, counts[replaced], others[replaced])
        return replace(
            batch,
            inputs=inputs,
            targets=np.where(chosen, batch.inputs, IGNORED),
            covered=np.where(masked, counts, 0),
            read=np.where(chosen, (places * counts).astype(np.int64), 0),
        )


def _same_length(context: Context, counts: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return, for each of `counts`, int64 [n], a random token that has this number of characters and is not
    special. `draws`, float64 [n], are uniform numbers.
    """
    assert context.character_counts is not None
    ordinary = np.ones(context.vocab_size, dtype=bool)
    ordinary[[number for number in context.specials.values() if number < context.vocab_size]] = False
    ids = np.flatnonzero(ordinary)
    ids = ids[np.argsort(context.character_counts[ids], kind="stable")]
    lengths = context.character_counts[ids]
    first, end = np.searchsorted(lengths, counts), np.searchsorted(lengths, counts, side="right")
    found: np.ndarray = ids[first + (draws * (end - first)).astype(np.int64)]
    return found
