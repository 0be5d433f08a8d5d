"""Compute the log-likelihoods of texts under a trained language model, and write texts with it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.errors import UserError
from gristmill.host import lent
from gristmill.storage.disk import LocalPath
from tokenizer.encode import Encoder
from tokenizer.vocabulary.specials import UNK
from trainers.config.architecture import Model
from trainers.engine.forward import Forward
from trainers.engine.hardware.device import compute_device
from trainers.engine.hardware.mfu import Flops, flops_of
from trainers.evaluation.scoring.forms import Pseudo, ScoredForm, form_of
from trainers.evaluation.scoring.pieces import Piece, sum_pieces
from trainers.evaluation.scoring.token_choices import TokenChoice, choose_tokens
from trainers.evaluation.scoring.written_texts import TextWriter, WrittenText
from trainers.inference.model_export import Trained, load_trained
from trainers.models import language_model
from trainers.objectives.shared.training_objective import TrainingObjective
from trainers.rows.batch import IGNORED
from trainers.tasks.schema.task_prompt import Generation

POSITIONS = 4096  # of a batch
_PIECES = 1 << 15  # pieces in memory at once


@dataclass(frozen=True)
class Likelihoods:
    """The results of n requests: `log_likelihood` in nats and the number of scored `tokens`. `greedy` says
    whether every scored token was the model's most probable token. `cut` says whether the context was too
    long for the model and lost its beginning.
    """

    log_likelihood: np.ndarray
    tokens: np.ndarray
    greedy: np.ndarray
    cut: np.ndarray

    def __getitem__(self, part: slice) -> "Likelihoods":
        return Likelihoods(self.log_likelihood[part], self.tokens[part], self.greedy[part], self.cut[part])


@dataclass(frozen=True)
class EncodedRequest:
    """The token ids of a context and of its continuation, int64."""

    context: np.ndarray
    continuation: np.ndarray


class Scorer:
    """Computes likelihoods of texts under a model, and writes texts with it, in batches of up to about
    `batch_positions` positions.
    """

    def __init__(
        self, name: str, network: Any, model: Model, objective: TrainingObjective, encoder: Encoder,
        pseudo: Pseudo = "within_word", batch_positions: int = POSITIONS,
    ) -> None:  # fmt: skip
        self.name = name
        self.form: ScoredForm = form_of(name, objective, model, encoder, pseudo)
        self.forward = Forward(network.to(compute_device()), model.architecture)
        self._architecture, self._encoder, self._positions = model.architecture, encoder, batch_positions
        self._per_token, at_one = (flops_of(network, model, length) for length in (0, 1))
        self._per_pair = Flops(at_one.read - self._per_token.read, at_one.decoded - self._per_token.decoded, 0.0)
        self.flops = np.zeros(3)
        """The floating-point operations of the forward passes so far, float64 [3]: the terms read, decoded
        and predicted of `engine.hardware.mfu.Flops`.
        """

    @classmethod
    def open(cls, path: LocalPath, pseudo: Pseudo = "within_word") -> "Scorer":
        """Load the model of a run or an export, and return its scorer. Raises UserError if there is no model
        or if it gives no likelihoods.
        """
        return cls.of(str(path), load_trained(path), pseudo)

    @classmethod
    def of(cls, name: str, trained: Trained, pseudo: Pseudo = "within_word") -> "Scorer":
        """Return a scorer for a loaded model. Raises UserError if the model gives no likelihoods."""
        encoder = Encoder.load(lent(trained.tokenizer))
        config = trained.config
        network, sizes = language_model(trained.model, config.model)
        return cls(name, network, sizes, config.objective, encoder, pseudo)

    def score(self, contexts: Sequence[str], continuations: Sequence[str]) -> Likelihoods:
        """Return the log-likelihood of each continuation given its context.

        Contexts and continuations are joined as in lm-evaluation-harness 0.4: white space at the end of a
        context moves to its continuation, and the two are encoded as one text. If the context alone has n
        tokens, the tokens after the first n are the continuation. For an encoder-decoder, and where `<eos>`
        ends the context, the two are encoded separately. A context that is too long for the model loses its
        beginning.

        Raises UserError for a continuation that is empty or too long for the model, and if a likelihood is
        not finite.
        """
        return self.score_ids(encode_requests(self._encoder, contexts, continuations, not self.form.apart))

    def score_ids(self, requests: Sequence[EncodedRequest]) -> Likelihoods:
        """Return the log-likelihoods of encoded requests. Raises UserError if a continuation is too long for
        the model or a likelihood is not finite.
        """
        count = len(requests)
        total = Likelihoods(np.zeros(count), np.zeros(count, np.int64), np.zeros(count, bool), np.zeros(count, bool))
        # Requests of similar length share rows, which affects only rounding.
        by_length = np.argsort([-len(r.context) - len(r.continuation) for r in requests], kind="stable").tolist()
        waiting: list[Piece] = []
        best = np.zeros(count, np.int64)
        for place, number in enumerate(by_length):
            context, continuation = requests[number].context, requests[number].continuation
            room = self._room(len(continuation))
            total.cut[number] = len(context) > room
            waiting += self.form.pieces(number, context[max(0, len(context) - room) :], continuation)
            if len(waiting) >= _PIECES or place == count - 1:
                self._count(waiting)
                sums = sum_pieces(self.forward, self._architecture, waiting, count, self._positions)
                total.log_likelihood[:] += sums.log_likelihood
                total.tokens[:] += sums.tokens
                best += sums.best
                waiting = []
        total.greedy[:] = best == total.tokens
        if bad := int((~np.isfinite(total.log_likelihood)).sum()):
            raise UserError(
                f"{self.name}: {bad:,} of {count:,} likelihoods are not numbers; the model has diverged: evaluate an "
                f"earlier checkpoint"
            )
        return total

    def score_texts(self, texts: Sequence[str], window: int | None = None) -> tuple[Likelihoods, int]:
        """Return the log-likelihoods of whole texts, and the window that was used, in positions.

        A text is cut into chunks of half a window, and each chunk is scored given the preceding chunk.
        `window` defaults to the model's number of positions. No end-of-text token is scored. Raises UserError
        for a window that is too small, and if a likelihood is not finite.
        """
        window = min(window or self.form.positions, self.form.positions)
        requests, owner = self.windows(self._documents(texts), window)
        found, count = self.score_ids(requests), len(texts)
        tokens = np.bincount(owner, found.tokens, count).astype(np.int64)
        missed = np.bincount(owner, ~found.greedy, count)
        sums = np.bincount(owner, found.log_likelihood, count)
        return Likelihoods(sums, tokens, missed == 0, np.zeros(count, bool)), window

    def write(
        self, contexts: Sequence[str], how: Generation, generators: Sequence[np.random.Generator] = ()
    ) -> list[WrittenText]:
        """Return what the model writes after each context. Sampling needs `generators`, one for each context.
        A context that leaves no room for `how.tokens` tokens loses its beginning. Raises UserError for an
        encoder, if `how.tokens` leaves no room for any context, and if the model's logits are NaN.
        """
        if not self.form.ends:
            raise UserError(
                f"{self.name}: an encoder writes no text; evaluate it on tasks whose prompts have no `generation`"
            )
        if (room := self.form.room(how.tokens)) < 1:
            raise UserError(
                f"{self.name}: generation.tokens is {how.tokens:,}, the model has {self.form.positions:,} positions, so no "
                f"context is left; lower it"
            )
        writer = TextWriter(self.name, self.forward, self._encoder, self.form, how, self._positions)
        given = self._documents(contexts)
        written = writer.write([context[max(0, len(context) - room) :] for context in given], generators)
        self._count([piece for _, piece in written])
        return [replace(text, cut=len(context) > room) for (text, _), context in zip(written, given, strict=True)]

    def choose_tokens(self, text: str, top: int, most: int) -> list[TokenChoice]:
        """Return each token of a text with its rank, its surprisal and the `top` most probable tokens at its
        position. Raises UserError for a text of more than `most` tokens.
        """
        requests, _ = self.windows(self._documents([text]), self.form.positions)
        if (count := sum(len(each.continuation) for each in requests)) > most:
            raise UserError(f"text: got {count:,} tokens, allowed up to {most:,}; shorten it")
        pieces = [piece for each in requests for piece in self.form.pieces(0, each.context, each.continuation)]
        found = choose_tokens(self.forward, self._architecture, pieces, self._positions, top)
        return [
            TokenChoice(
                self._shown(token),
                rank,
                bits,
                [(self._shown(each), share) for each, share in zip(ids, shares, strict=True)],
            )
            for token, rank, bits, ids, shares in found
        ]

    def _shown(self, token: int) -> str:
        return self._encoder.decode([token]) if token < self._encoder.vocab_size else f"[{token}]"

    def windows(self, documents: Sequence[np.ndarray], window: int) -> tuple[list[EncodedRequest], list[int]]:
        """Cut documents, given as token ids, into chunks of half a window, not counting special tokens.
        Return a list of requests, one per chunk with the preceding chunk as its context, and a list of the
        indices of the chunks' documents. Raises UserError if the window is too small.
        """
        half = (window - self.form.marks) // 2
        if half < 1:
            raise UserError(f"window: got {window}, allowed {self.form.marks + 2} or more for {self.name}")
        requests, owner = [], []
        for number, ids in enumerate(documents):
            for start in range(0, len(ids), half):
                requests.append(EncodedRequest(ids[max(0, start - half) : start], ids[start : start + half]))
                owner.append(number)
        return requests, owner

    def _documents(self, texts: Sequence[str]) -> list[np.ndarray]:
        ids, offsets = self._encoder.encode(pa.array(texts, pa.large_string()))
        return [ids[offsets[number] : offsets[number + 1]].astype(np.int64) for number in range(len(texts))]

    def count_unknown(self, texts: Sequence[str]) -> np.ndarray:
        """Return how many tokens of each text are the tokenizer's unknown token, int64 [n]."""
        unknown = self._encoder.specials.get(UNK)
        if unknown is None:
            return np.zeros(len(texts), np.int64)
        ids, offsets = self._encoder.encode(pa.array(texts, pa.large_string()))
        before = np.concatenate([[0], np.cumsum(ids == unknown)])
        return (before[offsets[1:]] - before[offsets[:-1]]).astype(np.int64)

    def _count(self, pieces: Sequence[Piece]) -> None:
        """Add to `flops` the operations that scoring `pieces` takes: a third of the cost of training on them,
        because there is no backward pass.
        """
        read = np.array([len(piece.inputs) for piece in pieces], np.float64)
        decoded = np.array([0 if piece.decoder is None else len(piece.decoder) for piece in pieces], np.float64)
        targets = sum(int((piece.targets != IGNORED).sum()) for piece in pieces)
        own = self._per_token.terms(read.sum(), decoded.sum(), targets)
        self.flops += (own + self._per_pair.terms((read**2).sum(), (decoded**2).sum(), 0)) / 3

    def _room(self, continuation: int) -> int:
        room = self.form.room(continuation)
        if room < 0:
            raise UserError(
                f"{self.name}: a continuation has {continuation:,} tokens, but the model has "
                f"{self.form.positions:,} positions; shorten it, or score it as a text (text=FILE)"
            )
        return room


def encode_requests(
    encoder: Encoder, contexts: Sequence[str], continuations: Sequence[str], jointly: bool
) -> list[EncodedRequest]:
    """Encode the context and the continuation of each request. White space at the end of a context moves to
    its continuation. Raises UserError for a continuation without tokens of its own.

    If `jointly` is set, context and continuation are encoded as one text. The continuation is then what
    follows its first n tokens, where n is the number of tokens of the context alone.
    """
    moved = []
    for context, continuation in zip(contexts, continuations, strict=True):
        kept = context.rstrip()
        moved.append((kept, context[len(kept) :] + continuation))
    firsts, first_offsets = encoder.encode(pa.array([context for context, _ in moved], pa.large_string()))
    seconds = [context + continuation if jointly else continuation for context, continuation in moved]
    ids, offsets = encoder.encode(pa.array(seconds, pa.large_string()))
    requests = []
    for number in range(len(moved)):
        first = firsts[first_offsets[number] : first_offsets[number + 1]].astype(np.int64)
        rest = ids[offsets[number] + (len(first) if jointly else 0) : offsets[number + 1]].astype(np.int64)
        if not len(rest):
            raise UserError(
                f"continuation {number + 1:,} of {len(moved):,}: has no token of its own after its context; give it text"
            )
        requests.append(EncodedRequest(first, rest))
    return requests
