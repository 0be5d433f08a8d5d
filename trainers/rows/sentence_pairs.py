"""Sentence pairs for BERT's next-sentence prediction (Devlin et al., 2019, section 3.1 and appendix A.2) and
ALBERT's sentence-order prediction (Lan et al., 2020): the two texts, A and B, of each row of a shard.

With packing `segment_pairs`, a row is filled with as many sentences of one document as fit, and divided at
random between two of them, as in BERT: A is before the division, B after it. With `sentence_pairs`, a row has
at most two sentences, A and B.

For next-sentence prediction, rows of different documents whose B's have nearly the same length are then
matched in pairs, and half of the matches swap their B's. As in BERT, the text after A is then from another
document. In every match, swapped or not, the longer B is cut to the length of the shorter one, so that
neither lengths nor cuts reveal the label. Epochs cycle through a fixed number of such sets of matches, called
exchanges. A row without a match, such as a row in a shard of a single document, keeps its B and has no label.

If only one whole sentence fits in a row, that sentence is A, the beginning of the next sentence is B, and the
remainder of the next sentence begins the next row. B's that are cut in this way are matched only with each
other. Such a B takes up at least an eighth of the row; if A leaves less room than that, the row has no B. Nor
is there a B if A is the last sentence of a document, or a piece of a sentence that is longer than a row. Rows
without a B have no label.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import ClassVar

import numpy as np
import xxhash

from gristmill.compilation import kernel
from gristmill.storage.store import digest
from pipelines.contracts.shard_set import Shard
from trainers.rows.batch import IGNORED, Batch, Frame
from trainers.rows.index_cache import load_or_make
from trainers.rows.random import uniforms

PAIR_PACKINGS = ("segment_pairs", "sentence_pairs")
MARKS = 3  # <cls> A <sep> B <sep>
_VERSION = 3
_MIN_SHARE = 8  # a B that ends within a sentence has at least 1/8 of a row
_WINDOW = 256  # rows searched for a match
_MAX_DIFFERENCE = 8  # the B's of a match differ by at most 1/8 of a row


@dataclass(frozen=True)
class SentencePairs:
    """The sentence pairs in the rows of a shard, as int64 arrays:

    - `starts` and `sizes` [2 * rows]: the first token of each text, counted from the shard's first token, and
      the number of its tokens. Entry 2 r is the A of row r, and entry 2 r + 1 is its own B.
    - `document` [rows]: the index of the document that each row belongs to.
    - `marks` [rows]: the number of stream marks that count towards each row.
    - `other` [exchanges, rows]: the row from which each row gets its B in an exchange. It may be the row itself.
    - `second` [exchanges, rows]: the number of tokens to which this B is cut; 0 if there is no B. The number is
      negated if the row has no label.
    """

    starts: np.ndarray
    sizes: np.ndarray
    document: np.ndarray
    marks: np.ndarray
    other: np.ndarray
    second: np.ndarray


@dataclass(frozen=True)
class PairPacking:
    """The sentence pairs of a source as sequences: the rows of all its shards, one shard after another."""

    shards: tuple[SentencePairs, ...]
    frame: Frame
    added_marks: ClassVar[int] = MARKS  # marks added to a row beyond those of the stream

    @cached_property
    def starts(self) -> np.ndarray:
        """The index of each shard's first sequence, followed by the total number of sequences."""
        return np.array(list(accumulate((len(pairs.document) for pairs in self.shards), initial=0)), dtype=np.int64)

    @cached_property
    def sizes(self) -> np.ndarray:
        """The number of stream positions that each sequence takes up, int64 [sequences]: the tokens of its A
        and its B, before any B's are swapped or cut, and its stream marks.
        """
        rows = (pairs.sizes[::2] + pairs.sizes[1::2] + pairs.marks for pairs in self.shards)
        return np.concatenate([np.empty(0, np.int64), *rows])

    def balance(self) -> dict[str, float]:
        """Return the number of sequences and, over all exchanges, the share of rows without a B
        (`without_second`), the share of rows with a B but no label (`without_label`), and the share of labels
        that are "not next" (`not_next`).
        """
        count, without_second, labelled, moved = 0, 0, 0, 0
        for pairs in self.shards:
            has_label = pairs.second > 0
            count, without_second = count + pairs.other.size, without_second + int((pairs.second == 0).sum())
            labelled += int(has_label.sum())
            moved += int((has_label & (pairs.other != np.arange(len(pairs.document)))).sum())
        shares = {
            "without_second": without_second / max(1, count),
            "without_label": (count - without_second - labelled) / max(1, count),
        }
        return {"sequences": len(self.sizes), **shares, "not_next": moved / max(1, labelled)}

    def locate(self, sequence: int, epoch: int) -> tuple[int, np.ndarray, np.ndarray]:
        """Return where a sequence of an epoch comes from: the index of its shard, the starts of its A and its
        B in the shard's stream, and their lengths in tokens. An empty A or B is left out.
        """
        number = int(np.searchsorted(self.starts, sequence, side="right")) - 1
        pairs, row = self.shards[number], sequence - int(self.starts[number])
        turn = epoch % len(pairs.other)
        other = int(pairs.other[turn, row])
        sizes = np.array([pairs.sizes[2 * row], abs(pairs.second[turn, row])])
        parts, documents = np.array([2 * row, 2 * other + 1]), pairs.document[[row, other]]
        starts = pairs.starts[parts] + int(self.frame.before is not None) + self.frame.marks * documents
        return number, starts[sizes > 0], sizes[sizes > 0]

    def fill(
        self,
        number: int,
        shard: Shard,
        sequences: np.ndarray,
        rows: np.ndarray,
        filled: np.ndarray,
        batch: Batch,
        specials: Mapping[str, int],
    ) -> None:
        """Write `sequences`, all from the shard with index `number`, into `rows` of a batch, and their
        lengths into `filled`. The label of a row is 0 if its B follows its A, 1 if the B comes from elsewhere
        (as in `transformers.BertForPreTraining`), and -100 if the row has no label.
        """
        assert batch.token_types is not None
        assert batch.labels is not None
        pairs, row = self.shards[number], sequences - self.starts[number]
        turn = batch.epoch[rows] % len(pairs.other)
        other, second = pairs.other[turn, row], pairs.second[turn, row]
        parts = np.stack([2 * row, 2 * other + 1], axis=1)
        batch.labels[rows] = np.where(second > 0, other != row, IGNORED)
        arrays = (batch.inputs, batch.targets, batch.positions, batch.segments, batch.token_types)
        sizes = np.stack([pairs.sizes[2 * row], np.abs(second)], axis=1)
        parts_of_rows = (pairs.starts[parts] + shard.offsets[0], sizes)
        write_pairs(shard.tokens, *parts_of_rows, rows, filled, specials["<cls>"], specials["<sep>"], *arrays)


def pair_shard(
    packing: str, shard: Callable[[], Shard], checksum: str, length: int, frame: Frame, exchanges: int, seed: int
) -> SentencePairs:
    """Return the pairs of a shard, from the cache if they are there and intact; otherwise open the shard with
    `shard` and compute them.
    """
    single, marks = packing == "sentence_pairs", frame.marks
    depends = {
        "packing": packing,
        "version": _VERSION,
        "shard": checksum,
        "length": length,
        "marks": marks,
        "seed": seed,
    }
    name = digest({**depends, "exchanges": exchanges})

    def make() -> tuple[np.ndarray, ...]:
        opened, key = shard(), xxhash.xxh3_64_intdigest(digest(depends).encode())
        assert opened.sentences is not None
        assert opened.sentence_offsets is not None
        sentences = (opened.offsets, opened.sentences, opened.sentence_offsets)
        pairs = pair_sentences(*sentences, length, marks, single, exchanges, key)
        return pairs.starts, pairs.sizes, pairs.document, pairs.marks, pairs.other.ravel(), pairs.second.ravel()

    *arrays, other, second = load_or_make(name, make)
    return SentencePairs(*arrays, *(array.reshape(max(1, exchanges), -1) for array in (other, second)))


def pair_sentences(
    offsets: np.ndarray,
    sentences: np.ndarray,
    sentence_offsets: np.ndarray,
    length: int,
    marks: int,
    single: bool,
    exchanges: int,
    seed: int,
) -> SentencePairs:
    """Return the sentence pairs of a shard, for rows of up to `length` tokens. Each document has `marks`
    special tokens around it in the stream. With `single`, A and B have at most one sentence each. `exchanges`
    is the number of exchanges to make; with 0, every row keeps its own B.
    """
    room = length - MARKS
    # An upper bound on the number of rows: every row takes a sentence or is full.
    bound = len(sentences) + (offsets[-1] - offsets[0]) // (room + 1) + len(offsets)
    divisions = uniforms(seed, np.arange(bound), 1, "pairs/division")[:, 0]
    starts, sizes, document = np.empty(2 * bound, np.int64), np.empty(2 * bound, np.int64), np.empty(bound, np.int64)
    rows = _cut(offsets, sentences, sentence_offsets, room, single, divisions, starts, sizes, document)
    starts, sizes, document = starts[: 2 * rows].copy(), sizes[: 2 * rows].copy(), document[:rows].copy()
    other = np.tile(np.arange(rows), (max(1, exchanges), 1))
    second = np.tile(sizes[1::2], (max(1, exchanges), 1))
    paired = np.flatnonzero(sizes[1::2] > 0)
    ends = starts[1::2] + sizes[1::2]
    # Cut B's are matched only with each other. Otherwise, a B that ends within a sentence would reveal the
    # label.
    cut = ~np.isin(ends, _sentence_boundaries(offsets, sentences, sentence_offsets))
    for number in range(exchanges):
        coins, ranks = (uniforms(seed, np.arange(rows), 1, f"pairs/{number}/{n}")[:, 0] for n in ("coins", "place"))
        order = paired[np.lexsort((ranks[paired], sizes[1::2][paired], cut[paired]))]
        _match(order, cut, sizes[1::2], document, coins, max(1, room // _MAX_DIFFERENCE), other[number], second[number])
    documents_begun = np.diff(document, prepend=-1)
    documents_begun[rows - 1 : rows] += len(offsets) - 2 - document[rows - 1 : rows]
    return SentencePairs(starts, sizes, document, marks * documents_begun, other, second)


def _sentence_boundaries(offsets: np.ndarray, sentences: np.ndarray, sentence_offsets: np.ndarray) -> np.ndarray:
    """Return the positions of sentence and document boundaries, counted from the shard's first token."""
    begins = np.repeat(offsets[:-1], np.diff(sentence_offsets)) - offsets[0]
    return np.concatenate([begins + sentences[sentence_offsets[0] : sentence_offsets[-1]], offsets - offsets[0]])


@kernel(nogil=True)
def _match(
    order: np.ndarray,
    cut: np.ndarray,
    sizes: np.ndarray,
    document: np.ndarray,
    coins: np.ndarray,
    apart: int,
    other: np.ndarray,
    second: np.ndarray,
) -> None:
    """Match rows of different documents in pairs, and let half of the pairs, chosen by the uniform numbers
    `coins` [rows], swap their B's. `order` contains the rows that have a B, sorted by `cut` [rows] (whether B
    ends within a sentence), then by the length of B (`sizes` [rows]). The B's of a match have the same `cut`
    and differ in length by at most `apart` tokens.

    The results are written to `other` and `second` [rows]: the row whose B is used, and the length of the
    shorter B of the match. Without a match, `second` is minus the length of the row's own B.
    """
    free = np.ones(len(order), dtype=np.bool_)
    exchanges, matches = False, 0
    for i in range(len(order)):
        if not free[i]:
            continue
        row, chosen = order[i], -1
        for j in range(i + 1, min(len(order), i + 1 + _WINDOW)):
            near = cut[order[j]] == cut[row] and sizes[order[j]] <= sizes[row] + apart
            if not near:
                break
            if free[j] and document[order[j]] != document[row]:
                chosen = j
                break
        if chosen < 0:
            second[row] = -sizes[row]
            continue
        partner = order[chosen]
        free[chosen] = False
        exchanges = coins[row] < 0.5 if matches % 2 == 0 else not exchanges
        matches += 1
        second[row] = second[partner] = min(sizes[row], sizes[partner])
        if exchanges:
            other[row], other[partner] = partner, row


@kernel(nogil=True)
def _cut(
    offsets: np.ndarray,
    sentences: np.ndarray,
    sentence_offsets: np.ndarray,
    room: int,
    single: bool,
    divisions: np.ndarray,
    starts: np.ndarray,
    sizes: np.ndarray,
    document: np.ndarray,
) -> int:
    """Divide the documents of a shard into rows of at most `room` tokens, or `room` + 1 in a row without a B.
    Write the rows to `starts`, `sizes` and `document` (see `SentencePairs`), and return their number. With
    `single`, a row contains at most two sentences. `divisions` are uniform numbers, one per row, that choose
    where the row is divided into A and B.
    """
    most = np.int64(0)
    for d in range(len(offsets) - 1):
        most = max(most, sentence_offsets[d + 1] - sentence_offsets[d])
    ends, rows = np.empty(most + 1, np.int64), 0
    for d in range(len(offsets) - 1):
        count = _sentence_ends(
            sentences[sentence_offsets[d] : sentence_offsets[d + 1]], offsets[d + 1] - offsets[d], ends
        )
        begin, s = np.int64(0), 0
        while s < count:
            until = s  # the row contains the sentences from s up to `until`
            while until < count and ends[until] - begin <= room and not (single and until == s + 2):
                until += 1
            end = middle = min(ends[s], begin + room + 1)
            if until > s + 1:
                end = ends[until - 1]
                middle = ends[s + min(until - s - 2, int(divisions[rows] * (until - s - 1)))]
            elif s + 1 < count and ends[s] - begin <= room - max(1, room // _MIN_SHARE):
                end = begin + room
            starts[2 * rows], sizes[2 * rows] = offsets[d] - offsets[0] + begin, middle - begin
            starts[2 * rows + 1], sizes[2 * rows + 1] = offsets[d] - offsets[0] + middle, end - middle
            document[rows] = d
            rows += 1
            begin, s = end, max(until, s + (end == ends[s]))
    return rows


@kernel(nogil=True)
def _sentence_ends(sentences: np.ndarray, size: int, ends: np.ndarray) -> int:
    """Write the ends of the non-empty sentences of a document of `size` tokens to `ends`, and return their
    number.
    """
    count = 0
    for start in sentences:
        if 0 < start < size and (count == 0 or ends[count - 1] < start):
            ends[count] = start
            count += 1
    if size > 0:
        ends[count] = size
        count += 1
    return count


@kernel(nogil=True)
def write_pairs(
    tokens: np.ndarray,
    starts: np.ndarray,
    sizes: np.ndarray,
    rows: np.ndarray,
    filled: np.ndarray,
    cls: int,
    sep: int,
    inputs: np.ndarray,
    targets: np.ndarray,
    positions: np.ndarray,
    segments: np.ndarray,
    token_types: np.ndarray,
) -> None:
    """Write `<cls> A <sep> B <sep>` (`<cls> A <sep>` if B is empty) into each of `rows` of the batch's
    arrays, and the length of the row into `filled`. The targets are -100; segments and token types are 0 for
    A and 1 for B.

    `starts` and `sizes`, both [rows, 2], say where A and B begin in `tokens`, and how many tokens they have.
    """
    for i in range(len(rows)):
        row, column = rows[i], 1
        inputs[row, 0] = cls
        for part in range(2):
            if part == 1 and sizes[i, 1] == 0:
                break
            first = column if part else 0
            for k in range(sizes[i, part]):
                inputs[row, column + k] = tokens[starts[i, part] + k]
            column += sizes[i, part] + 1
            inputs[row, column - 1] = sep
            for k in range(first, column):
                targets[row, k], positions[row, k] = IGNORED, k
                segments[row, k], token_types[row, k] = part, part
        filled[row] = column
