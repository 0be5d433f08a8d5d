"""The base of the objectives that turn every document into a pair of an input and a target, and the functions
that write pairs to rows.

Each document of a packed row is processed separately and keeps its segment number, so pairs are isolated in
the same way as documents. How pairs are written to rows depends on the family of the model:

- encoder-decoder: the encoder's row contains the inputs, the decoder's row the targets. The decoder reads the
  targets shifted right, after the start token that `transformers` uses for the architecture (`<pad>` for
  T5, `<eos>` for BART).
- decoder: `<bos> input target`, where each token predicts the next one. The loss covers the target only, or
  the input as well. The positions up to the end of the input may be marked as a prefix, in which they see one
  another in both directions (Raffel et al., 2020, section 3.2.1).

Positions restart in every document. Packing reserves the positions that each document needs
(`PairObjective.room`), so that the pairs of a row fit in the sequence length. A batch is as wide as its
fullest row, rounded up to a multiple of 8.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gristmill.compilation import kernel
from gristmill.errors import ConfigError
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.ragged import Ragged
from trainers.objectives.shared.training_objective import TrainingObjective
from trainers.rows.batch import IGNORED, PADDING, Batch, Decoder, Room
from trainers.rows.random import uniforms

_MULTIPLE = 8


@dataclass(frozen=True)
class Pairs:
    """One input and one target per document. `rows` and `segments`, int64 [documents], locate each document
    in the batch. A document with an empty target adds nothing to the loss.
    """

    inputs: Ragged
    targets: Ragged
    rows: np.ndarray
    segments: np.ndarray


@dataclass(frozen=True)
class Documents:
    """The documents of a batch. `content` holds their tokens, without marks. `rows` and `segments`, int64
    [documents], locate each document in the batch. `text`, bool [rows, length], marks the positions of the
    documents' tokens. `following` [documents] is the target that the packer wrote at the last position of
    each document: `<eos>` at the end of the document, the next token if the row cuts the document off, or
    -100 if the packer writes no targets. `samples` [rows] are the global indices of the samples.
    """

    content: Ragged
    rows: np.ndarray
    segments: np.ndarray
    following: np.ndarray
    text: np.ndarray
    samples: np.ndarray

    def per_token(self, context: Context, stream: str, count: int = 1) -> np.ndarray:
        """Draw `count` uniform numbers per token from the random stream named `stream`, float64 [tokens *
        count]. The numbers of one token are adjacent.
        """
        rows, length = self.text.shape
        drawn = uniforms(context.seed, self.samples, length * count, stream)
        chosen: np.ndarray = drawn.reshape(rows, length, count)[self.text].ravel() if count > 1 else drawn[self.text]
        return chosen

    def per_document(self, context: Context, stream: str, count: int = 1) -> np.ndarray:
        """Draw `count` uniform numbers per document from the random stream named `stream`, float64
        [documents, count].
        """
        most = int(self.segments.max(initial=0)) + 1
        drawn = uniforms(context.seed, self.samples, most * count, stream)
        chosen: np.ndarray = drawn.reshape(-1, most, count)[self.rows, self.segments]
        return chosen

    def pairs(self, inputs: Ragged, targets: Ragged) -> Pairs:
        """Pair `inputs` with `targets`, each of which must contain one list per document."""
        return Pairs(inputs, targets, self.rows, self.segments)


def documents_of(batch: Batch, context: Context) -> Documents:
    """Return the documents of a batch, without the `<bos>` that the packer put before them. Raises
    ConfigError if the tokenizer uses `<unk>` as `<bos>`.
    """
    shape, bound = batch.inputs.shape, batch.inputs.size
    text = np.empty(shape, dtype=bool)
    tokens, offsets, rows, segments, following = (np.empty(bound + 1, dtype=np.int64) for _ in range(5))
    bos = context.specials.get("<bos>", -1)
    if bos >= 0 and bos == context.specials.get("<unk>"):
        raise ConfigError(
            "objective: the tokenizer begins documents with <unk>, which text may contain too; name the "
            "objective in `add_reserved` of the `shards` step and build the corpus again"
        )
    arrays = (text, tokens, offsets, rows, segments, following)
    count = _scan(batch.inputs, batch.targets, batch.segments, bos, *arrays)
    content = Ragged(tokens[: offsets[count]], offsets[: count + 1])
    return Documents(content, rows[:count], segments[:count], following[:count], text, batch.sample)


class PairObjective(TrainingObjective):
    """The base of the objectives that make an input and a target from each document.

    In a decoder, `bidirectional_prefix` lets the positions of the input see one another in both directions,
    and `loss_on_prefix` adds the tokens of the input to the loss.
    """

    bidirectional_prefix: bool = False
    loss_on_prefix: bool = False
    rewrites_rows: ClassVar[bool] = True

    @property
    def sees_prefix(self) -> bool:
        return self.bidirectional_prefix

    def pairs(self, batch: Batch, context: Context) -> Pairs:
        """Return an input and a target for every document."""
        raise NotImplementedError

    @property
    def spare(self) -> int:
        """The number of positions that packing leaves free in each row."""
        return 0

    def rendered(self, tokens: int, family: str) -> int:
        """Return the number of positions to reserve for a document of `tokens` tokens: in a decoder, for its
        input and target together; in an encoder-decoder, for the longer of the two.
        """
        raise NotImplementedError

    def room(self, sequence_length: int, family: str, lead: int = 0) -> Room:
        positions = sequence_length - self.spare
        needed: list[int] = []
        while (most := lead + self.rendered(len(needed), family)) <= positions:
            needed.append(most)
        return Room(np.maximum.accumulate(np.array(needed, dtype=np.int64)), positions)

    def check_family(self, family: str) -> None:
        """Raise ConfigError if `loss_on_prefix` is set for an encoder-decoder, whose decoder has no prefix."""
        if self.loss_on_prefix and family == "encoder_decoder":
            raise ConfigError(
                "objective.loss_on_prefix: got true, but an encoder-decoder does not predict its input; set false, or "
                "train a decoder"
            )

    def check_document(self, tokens: int) -> None:
        """Raise ConfigError if a document of `tokens` tokens is too long for the objective. The base class
        allows any length.
        """

    def stream_length(self, sequence_length: int, family: str) -> int:
        """Return the number of stream tokens that fit in a row. Raises ConfigError if this number or the
        family does not suit the objective.
        """
        self.check_family(family)
        length = self.room(sequence_length, family).length
        check_length(length, sequence_length)
        self.check_document(length)
        return length

    def apply(self, batch: Batch, context: Context, mode: int | None = None) -> Batch:
        """Return the batch with its documents rewritten as pairs, in rows for the context's family of models.
        The token `mode`, if given, precedes every input.
        """
        pairs = self.pairs(batch, context)
        if context.family == "encoder_decoder":
            return encoder_decoder_rows(pairs, batch, context, mode)
        return decoder_rows(pairs, batch, context, mode, self.bidirectional_prefix, self.loss_on_prefix)

    def check_prefix(self) -> None:
        """Raise ValueError if `bidirectional_prefix` and `loss_on_prefix` are both true, because positions of
        the prefix would then see the tokens that they predict.
        """
        if self.bidirectional_prefix and self.loss_on_prefix:
            raise ValueError(
                "loss_on_prefix: got true with bidirectional_prefix, where each position of the prefix sees the token it "
                "should predict; set one of them to false"
            )


def check_length(length: int, sequence_length: int) -> None:
    """Raise ConfigError if fewer than two stream tokens fit in a row of `sequence_length` positions; `length`
    is the number that fit.
    """
    if length < 2:
        raise ConfigError(f"data.sequence_length: got {sequence_length}, too short for the objective")


def encoder_decoder_rows(pairs: Pairs, batch: Batch, context: Context, mode: int | None) -> Batch:
    """Return the batch with the inputs of `pairs` in the encoder's rows and their targets in the decoder's
    rows, under the same segment numbers. The token `mode`, if given, precedes every input.
    """
    count, padding = len(batch.inputs), context.padding
    lead = _tokens(mode)
    wide = _blank(count, _width(pairs.inputs.sizes + len(lead), pairs.rows, count), padding)
    narrow = _blank(count, _width(pairs.targets.sizes, pairs.rows, count), padding)
    goals = np.full(narrow[0].shape, IGNORED, dtype=np.int64)
    assert context.decoder_start is not None
    start = context.special(context.decoder_start)
    texts = (pairs.inputs.tokens, pairs.inputs.offsets, pairs.targets.tokens, pairs.targets.offsets)
    _fill_both(*texts, pairs.rows, pairs.segments, lead, start, *wide, *narrow, goals)
    inputs, positions, segments = wide
    return _replace_rows(batch, inputs, goals, positions, segments, decoder=Decoder(*narrow))


def decoder_rows(
    pairs: Pairs, batch: Batch, context: Context, mode: int | None, bidirectional: bool, loss_on_prefix: bool
) -> Batch:
    """Return the batch with every pair written to a decoder's row as `<bos> input target`; the token `mode`,
    if given, follows `<bos>`. With `bidirectional`, the positions up to the end of each input are marked as a
    prefix. With `loss_on_prefix`, `mode` and the tokens of the input are targets too, unless the pair's
    target is empty.
    """
    count, lead = len(batch.inputs), _tokens(context.special("<bos>"), mode)
    sizes = len(lead) + pairs.inputs.sizes + pairs.targets.sizes - 1
    inputs, positions, segments = _blank(count, _width(sizes, pairs.rows, count), context.padding)
    goals = np.full(inputs.shape, IGNORED, dtype=np.int64)
    prefix = np.zeros(inputs.shape, dtype=bool)
    texts = (pairs.inputs.tokens, pairs.inputs.offsets, pairs.targets.tokens, pairs.targets.offsets)
    arrays = (inputs, positions, segments, goals, prefix)
    _fill_one(*texts, pairs.rows, pairs.segments, lead, loss_on_prefix, *arrays)
    return _replace_rows(batch, inputs, goals, positions, segments, prefix=prefix if bidirectional else None)


def _replace_rows(
    batch: Batch,
    inputs: np.ndarray,
    targets: np.ndarray,
    positions: np.ndarray,
    segments: np.ndarray,
    prefix: np.ndarray | None = None,
    decoder: Decoder | None = None,
) -> Batch:
    return replace(
        batch,
        inputs=inputs,
        targets=targets,
        positions=positions,
        segments=segments,
        prefix=prefix,
        decoder=decoder,
        sentence_starts=None,
        spans=None,
        in_target=None,
    )


def _tokens(*tokens: int | None) -> np.ndarray:
    return np.array([token for token in tokens if token is not None], dtype=np.int64)


def _width(sizes: np.ndarray, rows: np.ndarray, count: int) -> int:
    most = int(np.bincount(rows, sizes, minlength=count).max(initial=1))
    return -(-most // _MULTIPLE) * _MULTIPLE


def _blank(rows: int, width: int, padding: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the (inputs, positions, segments) of rows that contain only padding, each int64 [rows, width]."""
    shape = (rows, width)
    return np.full(shape, padding, np.int64), np.zeros(shape, np.int64), np.full(shape, PADDING, np.int64)


@kernel(nogil=True)
def _scan(
    inputs: np.ndarray,
    targets: np.ndarray,
    segments: np.ndarray,
    bos: int,
    text: np.ndarray,
    tokens: np.ndarray,
    offsets: np.ndarray,
    rows: np.ndarray,
    numbers: np.ndarray,
    following: np.ndarray,
) -> int:
    """Fill the arrays of `Documents`, and return the number of documents."""
    size = count = 0
    for row in range(inputs.shape[0]):
        before = -1
        for column in range(inputs.shape[1]):
            segment, token = segments[row, column], inputs[row, column]
            is_text = segment >= 0 and token != bos
            text[row, column] = is_text
            if segment >= 0 and segment != before:
                offsets[count], rows[count], numbers[count] = size, row, segment
                count += 1
                before = segment
            if segment >= 0:
                following[count - 1] = targets[row, column]
            if is_text:
                tokens[size] = token
                size += 1
    offsets[count] = size
    return count


@kernel(nogil=True)
def _fill_both(
    inputs: np.ndarray,
    input_offsets: np.ndarray,
    targets: np.ndarray,
    target_offsets: np.ndarray,
    rows: np.ndarray,
    segments: np.ndarray,
    lead: np.ndarray,
    start: int,
    encoder: np.ndarray,
    encoder_positions: np.ndarray,
    encoder_segments: np.ndarray,
    decoder: np.ndarray,
    decoder_positions: np.ndarray,
    decoder_segments: np.ndarray,
    goals: np.ndarray,
) -> None:
    row, column, other = -1, 0, 0
    for i in range(len(rows)):
        if rows[i] != row:
            row, column, other = rows[i], 0, 0
        first, count = input_offsets[i], len(lead) + input_offsets[i + 1] - input_offsets[i]
        for k in range(count):
            encoder[row, column + k] = lead[k] if k < len(lead) else inputs[first + k - len(lead)]
            encoder_positions[row, column + k] = k
            encoder_segments[row, column + k] = segments[i]
        column += count
        first, count = target_offsets[i], target_offsets[i + 1] - target_offsets[i]
        for k in range(count):
            decoder[row, other + k] = start if k == 0 else targets[first + k - 1]
            decoder_positions[row, other + k] = k
            decoder_segments[row, other + k] = segments[i]
            goals[row, other + k] = targets[first + k]
        other += count


@kernel(nogil=True)
def _fill_one(
    inputs: np.ndarray,
    input_offsets: np.ndarray,
    targets: np.ndarray,
    target_offsets: np.ndarray,
    rows: np.ndarray,
    segments: np.ndarray,
    lead: np.ndarray,
    loss_on_prefix: bool,
    tokens: np.ndarray,
    positions: np.ndarray,
    numbers: np.ndarray,
    goals: np.ndarray,
    prefix: np.ndarray,
) -> None:
    row, column = -1, 0
    for i in range(len(rows)):
        if rows[i] != row:
            row, column = rows[i], 0
        first, given = input_offsets[i], len(lead) + input_offsets[i + 1] - input_offsets[i]
        second, asked = target_offsets[i], target_offsets[i + 1] - target_offsets[i]
        for k in range(given + asked - 1):
            if k >= given:
                token = targets[second + k - given]
            else:
                token = lead[k] if k < len(lead) else inputs[first + k - len(lead)]
            tokens[row, column + k] = token
            positions[row, column + k] = k
            numbers[row, column + k] = segments[i]
            prefix[row, column + k] = k < given
            if asked > 0 and loss_on_prefix and k > 0:
                goals[row, column + k - 1] = token
            if k >= given - 1 and asked > 0:
                goals[row, column + k] = targets[second + k - given + 1]
        column += given + asked - 1
