"""Let a model continue contexts in batches, greedily or by sampling."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gristmill.errors import UserError
from tokenizer.encode import Encoder
from trainers.engine.forward import Forward
from trainers.evaluation.scoring.forms import ScoredForm
from trainers.evaluation.scoring.pieces import Piece
from trainers.inference.batch_decoding import Sampler, choose_likeliest, decode_batch
from trainers.inference.write_answers import writable_ids
from trainers.rows.batch import IGNORED, Batch, Decoder
from trainers.rows.padded_rows import pad_rows
from trainers.tasks.schema.task_prompt import Generation


@dataclass(frozen=True)
class WrittenText:
    """A text that a model wrote, up to the first stop sequence. `truncated` says whether it reached the limit
    on tokens, and `cut` whether the context lost its beginning.
    """

    text: str
    tokens: int
    truncated: bool
    cut: bool = False


class TextWriter:
    """Writes texts with a model, in batches of up to about `positions` positions. `name` is used in messages."""

    def __init__(
        self, name: str, forward: Forward, encoder: Encoder, form: ScoredForm, how: Generation, positions: int
    ) -> None:  # fmt: skip
        self._name = name
        self._forward, self._encoder, self._form, self._how, self._positions = forward, encoder, form, how, positions
        rows = int(forward.model.config.vocab_size)
        self._allowed = writable_ids(encoder.specials, encoder.vocab_size, rows, form.ends[0])
        self._allowed[list(form.ends)] = True

    def write(
        self, contexts: Sequence[np.ndarray], generators: Sequence[np.random.Generator]
    ) -> list[tuple[WrittenText, Piece]]:
        """Return, for each context (int64 ids), the text that the model writes after it and the piece that
        the model reads to write it. Each context must leave room for `how.tokens` tokens. `generators` holds
        one generator for each context; at temperature 0, it is not used. Raises UserError if the model's
        logits are NaN.
        """
        self._forward.eval()
        made: dict[int, tuple[WrittenText, Piece]] = {}
        by_length = np.argsort([-len(context) for context in contexts], kind="stable").tolist()
        first = 0
        while first < len(by_length):
            longest = len(contexts[by_length[first]]) + self._how.tokens + self._form.marks
            numbers = by_length[first : first + max(1, self._positions // longest)]
            first += len(numbers)
            chosen = [contexts[number] for number in numbers]
            drawing = [generators[number] for number in numbers] if self._how.temperature else []
            for number, context, (ids, ended) in zip(numbers, chosen, self._decode(chosen, drawing), strict=True):
                piece = self._form.pieces(number, context, np.append(ids, 0))[0]
                made[number] = (WrittenText(self._until(ids), len(ids), not ended), piece)
        return [made[number] for number in range(len(contexts))]

    def _decode(
        self, contexts: Sequence[np.ndarray], generators: Sequence[np.random.Generator]
    ) -> list[tuple[np.ndarray, bool]]:
        how, form = self._how, self._form

        def rows(numbers: np.ndarray, written: np.ndarray) -> Batch:
            texts = zip(numbers.tolist(), written, strict=True)
            return _batch([form.pieces(n, contexts[n], np.append(ids, 0))[0] for n, ids in texts])

        rooms = np.full(len(contexts), how.tokens, np.int64)
        pick = Sampler(generators, how.temperature, how.top_k, how.top_p) if how.temperature else choose_likeliest

        def choose(numbers: np.ndarray, logits: torch.Tensor) -> np.ndarray:
            if bool(logits.isnan().any()):
                raise UserError(
                    f"{self._name}: its likelihoods are not numbers; the model has diverged: evaluate an earlier checkpoint"
                )
            return pick(numbers, logits)

        stops = self._stops if how.until else lambda written: False
        written, ended = decode_batch(
            self._forward, rows, rooms, how.tokens, self._allowed, form.ends, choose, stops
        )  # fmt: skip
        return list(zip(written, ended.tolist(), strict=True))

    def _stops(self, ids: np.ndarray) -> bool:
        text = self._encoder.decode(ids)
        return any(stop in text for stop in self._how.until)

    def _until(self, ids: np.ndarray) -> str:
        text = self._encoder.decode(ids)
        places = [text.find(stop) for stop in self._how.until if stop in text]
        return text[: min(places)] if places else text


def _batch(pieces: Sequence[Piece]) -> Batch:
    inputs, positions, segments = pad_rows([piece.inputs for piece in pieces])
    targets = pad_rows([piece.targets for piece in pieces], IGNORED)[0]
    prefix = np.zeros(inputs.shape, bool)
    for number, piece in enumerate(pieces):
        prefix[number, : piece.prefix] = True
    none = np.zeros(len(pieces), np.int64)
    decoders = [piece.decoder for piece in pieces if piece.decoder is not None]
    return Batch(
        inputs, targets, positions, segments, none, none, none, none,
        prefix=prefix if prefix.any() else None,
        decoder=Decoder(*pad_rows(decoders)) if decoders else None,
    )  # fmt: skip
