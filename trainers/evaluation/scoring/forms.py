"""The forms in which models of each family score a continuation, given its context. An encoder reads one copy
of the text for each token of the continuation, with that token masked; with `within_word`, the later tokens
of its word are masked too. For an encoder-decoder, the encoder reads what is left of the arrow, and the
decoder what is right of it.

    decoder             <bos> context continuation
      multitask         <bos> context <eos> continuation
    encoder             <cls> context continuation <sep>
    encoder-decoder     context <eos> -> continuation
      span corruption   context <extra_id_0> <eos> -> <extra_id_0> continuation
      denoising         <bos> context <mask> <eos> -> <bos> context continuation
      gap sentences     context <mask> <eos> -> continuation
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np

from gristmill.errors import UserError
from tokenizer.encode import Encoder
from tokenizer.vocabulary.specials import MASK, SENTINELS, add_fallback_marks
from trainers.config.architecture import Model
from trainers.evaluation.scoring.pieces import Piece
from trainers.objectives.shared.masking_kernels import BEGINS, ENDS
from trainers.objectives.shared.training_objective import TrainingObjective
from trainers.objectives.shared.whole_words import word_marks
from trainers.rows.batch import IGNORED

Pseudo = Literal["within_word", "token"]
"""The tokens that are masked when an encoder scores a token: the token and those after it in the same word
(Kauf and Ivanova, 2023), or the token alone (Salazar et al., 2020).
"""


class ScoredForm(Protocol):
    """How a model is given a context and a continuation in order to score the continuation.

    - `described`: the name of the form.
    - `positions`: the number of positions of the model.
    - `marks`: the number of these positions that special tokens take.
    - `apart`: whether context and continuation are encoded separately instead of as one text.
    - `ends`: the ids at which generation stops; empty if the model writes no text.
    """

    @property
    def described(self) -> str: ...

    @property
    def positions(self) -> int: ...

    @property
    def marks(self) -> int: ...

    @property
    def apart(self) -> bool: ...

    @property
    def ends(self) -> tuple[int, ...]: ...

    def pieces(self, owner: int, context: np.ndarray, continuation: np.ndarray) -> list[Piece]:
        """Return the pieces that score a continuation given its context (both int64 ids) for the request
        `owner`. The context must not be longer than `room` allows.
        """
        ...

    def room(self, continuation: int) -> int:
        """Return how many tokens of context the model can read with a continuation of `continuation` tokens;
        negative if the continuation alone does not fit.
        """
        ...


@dataclass(frozen=True)
class LeftToRight:
    """The form of a decoder, which reads `head`, the context, `after` and the continuation. With
    `sees_prefix`, attention is bidirectional within everything before the continuation.
    """

    head: tuple[int, ...]
    positions: int
    ends: tuple[int, ...]
    sees_prefix: bool = False
    after: tuple[int, ...] = ()

    @property
    def described(self) -> str:
        """The name of the form."""
        form = "left to right, after the end of the context" if self.after else "left to right"
        return f"{form}, context seen from both sides" if self.sees_prefix else form

    @property
    def apart(self) -> bool:
        """Whether context and continuation are encoded separately, as they are if `after` lies between them."""
        return bool(self.after)

    @property
    def marks(self) -> int:
        """The number of special ids, minus one because the model does not read the last token of a
        continuation.
        """
        return len(self.head) + len(self.after) - 1

    def room(self, continuation: int) -> int:
        """Return how many tokens of context the model can read with a continuation of `continuation` tokens."""
        return self.positions - self.marks - continuation

    def pieces(self, owner: int, context: np.ndarray, continuation: np.ndarray) -> list[Piece]:
        """Return the one piece that scores a continuation."""
        given = np.concatenate([self.head, context, self.after]).astype(np.int64)
        inputs = np.concatenate([given, continuation[:-1]])
        targets = np.full(len(inputs), IGNORED, np.int64)
        targets[len(given) - 1 :] = continuation
        return [Piece(owner, inputs, targets, prefix=len(given) if self.sees_prefix else 0, shared=len(given))]


@dataclass(frozen=True)
class Masks:
    """The form of an encoder, which reads the text once for each token of the continuation, with this token
    masked. If `words` is given, the tokens that follow in the same word are masked too; `words`, uint8
    [vocabulary], holds the flags BEGINS and ENDS of each token. `before` and `after` are the ids around the
    text.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    mask: int
    positions: int
    words: np.ndarray | None
    apart: ClassVar[bool] = False

    @property
    def described(self) -> str:
        """The name of the form."""
        return "pseudo-log-likelihood by token" if self.words is None else "pseudo-log-likelihood within words"

    @property
    def marks(self) -> int:
        """The number of special ids around a text."""
        return len(self.before) + len(self.after)

    @property
    def ends(self) -> tuple[int, ...]:
        """The ids at which generation stops: none, since an encoder writes no text."""
        return ()

    def room(self, continuation: int) -> int:
        """Return how many tokens of context the model can read with a continuation of `continuation` tokens."""
        return self.positions - self.marks - continuation

    def pieces(self, owner: int, context: np.ndarray, continuation: np.ndarray) -> list[Piece]:
        """Return one piece for each token of the continuation."""
        text = np.concatenate([self.before, context, continuation, self.after]).astype(np.int64)
        first = len(self.before) + len(context)
        made = []
        for number, until in enumerate(self._hidden_until(continuation)):
            inputs, targets = text.copy(), np.full(len(text), IGNORED, np.int64)
            inputs[first + number : first + until] = self.mask
            targets[first + number] = continuation[number]
            made.append(Piece(owner, inputs, targets))
        return made

    def _hidden_until(self, continuation: np.ndarray) -> list[int]:
        """Return, for each token of `continuation`, the exclusive end of the range that is masked when the
        token is scored: the end of its word, or of the token itself if `words` is None.
        """
        count = len(continuation)
        ends = list(range(1, count + 1))
        if self.words is not None:
            marks = self.words[continuation]
            for number in range(count - 2, -1, -1):
                if not (marks[number] & ENDS or marks[number + 1] & BEGINS):
                    ends[number] = ends[number + 1]
        return ends


@dataclass(frozen=True)
class EncoderDecoderForm:
    """The form of an encoder-decoder. The encoder reads `before`, the context and `after`. The decoder reads
    `given` and, with `repeats`, the context, and is then scored on the continuation.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    given: tuple[int, ...]
    positions: int
    ends: tuple[int, ...]
    described: str
    repeats: bool = False
    apart: ClassVar[bool] = True

    @property
    def marks(self) -> int:
        """The larger of two numbers: the special ids in the encoder, and those in the decoder minus one,
        because the decoder does not read its last token.
        """
        return max(len(self.before) + len(self.after), len(self.given) - 1)

    def room(self, continuation: int) -> int:
        """Return how many tokens of context the model can read with a continuation of `continuation` tokens."""
        encoder = self.positions - len(self.before) - len(self.after)
        decoder = self.positions - len(self.given) - continuation + 1
        return min(encoder, decoder) if self.repeats or decoder < 0 else encoder

    def pieces(self, owner: int, context: np.ndarray, continuation: np.ndarray) -> list[Piece]:
        """Return the one piece that scores a continuation."""
        source = np.concatenate([self.before, context, self.after]).astype(np.int64)
        given = np.concatenate([self.given, context if self.repeats else ()]).astype(np.int64)
        decoder = np.concatenate([given, continuation[:-1]])
        targets = np.full(len(decoder), IGNORED, np.int64)
        targets[len(given) - 1 :] = continuation
        return [Piece(owner, source, targets, decoder)]


def form_of(where: str, objective: TrainingObjective, model: Model, encoder: Encoder, pseudo: Pseudo) -> ScoredForm:
    """Return the form in which a model trained with `objective` scores texts. For a mixture of objectives,
    this is the form of the first member that learns likelihoods or, if none does, of the first member. Raises
    UserError, whose message begins with `where`, if the model cannot score texts.
    """
    members = objective.members()
    member, lead = next((each for each in members if each[0].gives_likelihood), members[0])
    specials = add_fallback_marks(encoder.specials)
    frame, form = member.text_frame(model.family), member.prompt_format
    before, after = (tuple(specials[mark] for mark in (name,) if mark) for name in (frame.before, frame.after))
    leads = (specials[lead],) if lead else ()
    ends: tuple[int, ...] = (specials["<eos>"],)
    if member.contrast is not None or member.predicts_characters:
        raise UserError(
            f"{where}: was trained with {member.kind}, which predicts no masks and scores no texts; give another model"
        )
    if model.family == "encoder":
        return _masks(where, before, after, model, encoder, pseudo)
    if model.family == "decoder" and not form.closed:
        return LeftToRight((*before, *leads), model.positions, ends, member.sees_prefix)
    if model.family == "decoder" and form.plain_text:
        return LeftToRight((specials["<bos>"], *leads), model.positions, ends, member.sees_prefix, after=ends)
    if model.family == "encoder_decoder":
        start = (specials[model.traits.decoder_start],) if model.traits.decoder_start else ()
        if not form.closed or form.plain_text:
            described = "decoder after the context"
            return EncoderDecoderForm((*leads, *before), after, start, model.positions, ends, described)
        if form.gap in SENTINELS:
            sentinel = (specials[SENTINELS[0]],)
            after, given = (*sentinel, *after), (*start, *sentinel)
            ends += (specials[SENTINELS[1]],) if SENTINELS[1] in specials else ()
            described = "T5 sentinel after the context"
            return EncoderDecoderForm((*leads, *before), after, given, model.positions, ends, described)
        if form.gap == MASK and form.gaps_alone:
            described = "decoder writes what belongs at a mask after the context"
            return EncoderDecoderForm(
                (*leads, *before), (specials[MASK], *after), start, model.positions, ends, described
            )
        if form.gap == MASK:
            after, given = (specials[MASK], *after), (*start, *before)
            described = "decoder rewrites the context, which ends in a mask"
            return EncoderDecoderForm((*leads, *before), after, given, model.positions, ends, described, repeats=True)
    raise UserError(
        f"{where}: a {model.family} trained on {member.kind} in this form does not continue texts, so it gives no likelihood; "
        f"evaluate a model of another objective"
    )


def _masks(
    where: str, before: tuple[int, ...], after: tuple[int, ...], model: Model, encoder: Encoder, pseudo: Pseudo
) -> Masks:
    if model.traits.predicts_no_masks:
        raise UserError(
            f"{where}: holds {model.architecture}, which predicts no masks and scores no texts; give another model"
        )
    if MASK not in encoder.specials:
        raise UserError(f"{where}: its tokenizer has no {MASK}, so no token can be hidden from the encoder")
    words = None
    if pseudo == "within_word":
        try:
            words = word_marks(encoder.definition)
        except ValueError:
            raise UserError(
                f"{where}: the tokens of its vocabulary do not say where words begin; use pseudo=token"
            ) from None
    return Masks(before, after, encoder.specials[MASK], model.positions, words)
