"""Span corruption and its alternatives (T5: Raffel et al., "Exploring the Limits of Transfer Learning with a
Unified Text-to-Text Transformer", JMLR 21, 2020, section 3.3 and table 3).

For "Thank you for inviting me to your party last week ." with sentinels X, Y, Z and the mask M:

    style       noise    input                                              target
    replace     spans    Thank you X to Y week .                            X for inviting me Y your party last
    replace     tokens   Thank you X me to your party Y week .              X for inviting Y last
    drop        tokens   Thank you me to your party week .                  for inviting last
    mass        tokens   Thank you M M me to your party M week .            the original
    bert        tokens   Thank you M M me to your party apple week .        the original
    deshuffle            party me for your to . last you inviting week Thank    the original

Input and target end with `<eos>`. The paper's figures close the target with one more sentinel (Z). Its code
does not, and its published lengths leave no room for a closing sentinel: 568 tokens of text give an input of
512 and a target of 114, which consists of 85 tokens of noise, 28 sentinels and `<eos>`. So there is no
closing sentinel unless `closing_sentinel` is true.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from gristmill.compilation import kernel
from gristmill.errors import ConfigError
from tokenizer.vocabulary.specials import MASK, SENTINELS
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.pairs import Documents, PairObjective, Pairs, documents_of
from trainers.objectives.shared.prompt_format import PromptFormat, fill_sentinels, replace_text
from trainers.objectives.shared.ragged import Ragged
from trainers.objectives.shared.sentinels import replace_with_sentinels, sentinel_ids
from trainers.rows.batch import Batch, Frame

_MASKED = 0.9  # share of the noise tokens that BERT-style noise masks; the rest become random tokens (section 3.3.1)


@dataclass(frozen=True)
class Corruption(PairObjective):
    """The base class of the objectives that corrupt documents. `SpanCorruption` documents the fields."""

    rate: float = 0.15
    mean_span: float = 3.0
    noise: Literal["spans", "tokens"] = "spans"
    style: Literal["replace", "drop", "mass", "bert", "deshuffle"] = "replace"
    closing_sentinel: bool = False
    bidirectional_prefix: bool = False
    loss_on_prefix: bool = False

    frame: ClassVar[Frame] = Frame(None, None)
    families: ClassVar[tuple[str, ...]] = ("encoder_decoder", "decoder")

    def check(self) -> None:
        """Raise ValueError if `rate` or `mean_span` is out of range or the options are incompatible."""
        if not 0 < self.rate < 1:
            raise ValueError(f"rate: got {self.rate}, allowed above 0 and below 1")
        if self.mean_span < 1:
            raise ValueError(f"mean_span: got {self.mean_span}, allowed 1 or more")
        if self.closing_sentinel and self.style != "replace":
            raise ValueError(f"closing_sentinel: got true, style {self.style} has no sentinels; set it to false")
        self.check_prefix()

    @property
    def prompt_format(self) -> PromptFormat:
        if self.style == "replace":
            return PromptFormat(SENTINELS, SENTINELS[0], closed=True, generated=SENTINELS, answer=fill_sentinels)
        names = (MASK,) if self.style in ("mass", "bert") else ()
        return PromptFormat(names=names, closed=True, answer=replace_text)

    def check_document(self, tokens: int) -> None:
        self._check_sentinels(tokens, len(SENTINELS))

    def rendered(self, tokens: int, family: str) -> int:
        """Return the number of positions to reserve for a document of `tokens` tokens: in a decoder, for
        input and target together; in an encoder-decoder, for the longer of the two.

        With `noise: tokens` in the styles `replace` and `drop`, the number of noise tokens is taken to be at
        most six standard deviations above its mean. Otherwise the result is an upper bound.
        """
        if self.style in ("replace", "drop"):
            amount, runs = (int(number) for number in amounts(tokens, self.rate, self.mean_span))
            text = tokens - amount
            if self.noise == "tokens":
                spread = 6 * math.sqrt(tokens * self.rate * (1 - self.rate))
                amount, text = min(tokens, math.ceil(tokens * self.rate + spread)), tokens
                runs = math.ceil(tokens * self.rate * (1 - self.rate) + self.rate + spread)
                runs = min(runs, (tokens + 1) // 2, len(SENTINELS))
            runs = 0 if self.style == "drop" else runs
            # Two runs are separated by at least one token that is kept.
            asked, both = (
                min(amount + runs, tokens + 1) + self.closing_sentinel,
                tokens + 2 * runs + self.closing_sentinel,
            )
            given = text + runs if self.noise == "spans" else text
        else:
            given, asked, both = tokens, tokens, 2 * tokens
        return both + 2 if family == "decoder" else max(given, asked) + 1

    def _check_sentinels(self, tokens: int, sentinels: int) -> None:
        """Raise ConfigError if a document of `tokens` tokens needs more than `sentinels` sentinels. With
        `noise: tokens`, the expected number of runs decides.
        """
        if self.style != "replace":
            return
        runs = int(amounts(tokens, self.rate, self.mean_span)[1]) + self.closing_sentinel
        if self.noise == "tokens":
            runs = round(tokens * self.rate * (1 - self.rate))
        if runs > sentinels:
            raise ConfigError(
                f"objective: a document of {tokens} tokens has {runs} runs of noise, there are {sentinels} sentinels; shorten "
                f"data.sequence_length, lower objective.rate or raise objective.mean_span"
            )

    @property
    def least_tokens(self) -> int:
        """The minimum number of tokens that a document needs to have a target."""
        return 1 if self.style in ("mass", "bert") or (self.noise == "tokens" and self.style != "deshuffle") else 2

    def pairs(self, batch: Batch, context: Context) -> Pairs:
        return self.corrupted(documents_of(batch, context), context)

    def corrupted(self, documents: Documents, context: Context) -> Pairs:
        """Return the inputs and targets of `documents`, corrupted at random in the objective's style."""
        if self.style == "deshuffle":
            return self.shuffle(documents, context)
        offsets = documents.content.offsets
        drawn = documents.per_token(context, "span_corruption/noise")
        if self.noise == "tokens":
            return self.corrupt(documents, drawn < self.rate, context)
        return self.corrupt(documents, noise_spans(offsets, drawn, self.rate, self.mean_span), context)

    def corrupt(self, documents: Documents, noise: np.ndarray, context: Context) -> Pairs:
        """Return the inputs and targets of `documents`. `noise`, bool [tokens of all documents], marks the
        noise tokens. The style must not be `deshuffle`.
        """
        content, eos = documents.content, context.special("<eos>")
        if self.style in ("mass", "bert"):
            tokens = np.where(noise, context.special(MASK), content.tokens)
            if self.style == "bert":
                chosen = np.flatnonzero(noise & (documents.per_token(context, "span_corruption/kind") >= _MASKED))
                tokens[chosen] = _random_tokens(context, documents.per_token(context, "span_corruption/other")[chosen])
            inputs = Ragged(tokens, content.offsets)
            return documents.pairs(inputs.with_marks(None, eos), content.with_marks(None, eos, content.sizes > 0))
        if self.style == "drop":
            inputs, targets = content.keep(~noise), content.keep(noise)
        else:
            inputs, targets = self._with_sentinels(content, noise, context)
        return documents.pairs(inputs.with_marks(None, eos), targets.with_marks(None, eos, targets.sizes > 0))

    def _with_sentinels(self, content: Ragged, noise: np.ndarray, context: Context) -> tuple[Ragged, Ragged]:
        sentinels = sentinel_ids(context)
        self._check_sentinels(int(content.sizes.max(initial=1)), len(sentinels))
        return replace_with_sentinels(content, noise, sentinels, self.closing_sentinel)

    def shuffle(self, documents: Documents, context: Context) -> Pairs:
        """Return pairs whose input is a document's tokens in random order, and whose target is the document."""
        content, eos = documents.content, context.special("<eos>")
        tokens = content.tokens.copy()
        _shuffle(tokens, content.offsets, documents.per_token(context, "span_corruption/order"))
        inputs = Ragged(tokens, content.offsets)
        return documents.pairs(inputs.with_marks(None, eos), content.with_marks(None, eos, content.sizes > 1))


@dataclass(frozen=True)
class SpanCorruption(Corruption):
    """Corrupt documents and restore them. A share `rate` of the tokens is noise: with `noise: spans`, spans
    of `mean_span` tokens on average; with `noise: tokens`, each token independently with probability `rate`.
    `style` determines the input and the target:

    - `replace`: each run of noise becomes a different sentinel. The target is these sentinels, each followed by its
      run. With `closing_sentinel`, one more sentinel ends the target.
    - `drop`: the noise is removed. The target is the noise.
    - `mass`: noise tokens become masks. The target is the original.
    - `bert`: as `mass`, but 10 % of the noise tokens become random tokens.
    - `deshuffle`: the whole document is shuffled, without noise. The target is the original.

    In a decoder, `bidirectional_prefix` lets the positions of the input see one another in both directions,
    and `loss_on_prefix` adds the tokens of the input to the loss.

    With `noise: spans`, as in T5's code, a document of n tokens has m = min(max(round(rate n), 1), n - 1)
    tokens of noise in max(round(m / mean_span), 1) spans, but never more spans than the n - m tokens that are
    not noise. Every way to divide noise and text into this number of parts is equally likely, and a document
    begins with text.

    In the styles `replace` and `drop`, a document without noise has no target: with `spans`, a document of a
    single token; with `tokens`, one in which no token was chosen. With `deshuffle`, a document of a single
    token has no target.
    """

    kind: Literal["span_corruption"] = "span_corruption"


def _random_tokens(context: Context, drawn: np.ndarray) -> np.ndarray:
    """Return, for each uniform number in `drawn`, a token that is not special."""
    specials = np.unique([number for number in context.specials.values() if number < context.vocab_size])
    numbers = (drawn * (context.vocab_size - len(specials))).astype(np.int64)
    chosen: np.ndarray = numbers + np.searchsorted(specials - np.arange(len(specials)), numbers, side="right")
    return chosen


@kernel(nogil=True)
def amounts(tokens: int, rate: float, mean_span: float) -> tuple[int, int]:
    """Return (number of noise tokens, number of spans) for a document of `tokens` tokens."""
    if tokens < 2:
        return 0, 0
    noise = min(max(int(np.rint(tokens * rate)), 1), tokens - 1)
    spans = max(int(np.rint(noise / mean_span)), 1)
    return noise, min(spans, noise, tokens - noise)


@kernel(nogil=True)
def noise_spans(offsets: np.ndarray, drawn: np.ndarray, rate: float, mean_span: float) -> np.ndarray:
    """Return which tokens are noise, bool [tokens]. Document i consists of the tokens from `offsets[i]` up to
    `offsets[i + 1]`. `drawn` contains a uniform number for each token. `amounts` determines the numbers of
    noise tokens and spans of a document.

    Text and noise alternate, beginning with text. Both are cut at positions chosen by selection sampling
    (Knuth, The Art of Computer Programming 2, 3.4.2, algorithm S), so that every way to cut is equally
    likely.
    """
    noise = np.zeros(len(drawn), dtype=np.bool_)
    for document in range(len(offsets) - 1):
        place, end = offsets[document], offsets[document + 1]
        amount, spans = amounts(end - place, rate, mean_span)
        text, text_cuts, noise_cuts = end - place - amount, spans - 1, spans - 1
        for _ in range(spans):
            while True:
                text -= 1
                chance = drawn[place]
                place += 1
                if text == 0:
                    break
                if chance * text < text_cuts:
                    text_cuts -= 1
                    break
            while True:
                noise[place] = True
                amount -= 1
                chance = drawn[place]
                place += 1
                if amount == 0:
                    break
                if chance * amount < noise_cuts:
                    noise_cuts -= 1
                    break
    return noise


@kernel(nogil=True)
def _shuffle(tokens: np.ndarray, offsets: np.ndarray, drawn: np.ndarray) -> None:
    for document in range(len(offsets) - 1):
        first = offsets[document]
        for last in range(offsets[document + 1] - first - 1, 0, -1):
            other = first + int(drawn[first + last] * (last + 1))
            tokens[first + last], tokens[other] = tokens[other], tokens[first + last]
