"""One split of a source: its memory-mapped shards, read as one stream of tokens that is cut into
sequences.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate

import numpy as np

from gristmill.errors import CorruptFileError
from gristmill.storage.location import Location
from pipelines.contracts.shard_set import Shard, ShardRecord, open_shard
from trainers.rows.batch import Batch, Frame, Room
from trainers.rows.packing import pack
from trainers.rows.sentence_pairs import PairPacking, pair_shard
from trainers.rows.sentences import mark_sentences
from trainers.rows.sequences import Packing, pack_shard
from trainers.rows.span_marks import mark_spans
from trainers.rows.target_marks import mark_targets

_PARALLEL_REQUESTS = 16  # concurrent requests to an object store


@dataclass(frozen=True)
class SourceStream:
    """One split of a source: its shards in the manifest's order, opened on first use. Without `packing`,
    sequences are cut from the stream one after another.
    """

    name: str
    directory: Location
    shards: tuple[ShardRecord, ...]
    frame: Frame
    packing: Packing | PairPacking | None = None

    @cached_property
    def starts(self) -> list[int]:
        """The stream position at which each shard begins, followed by the length of the stream."""
        marks = self.frame.marks
        return list(accumulate((shard.tokens + marks * shard.documents for shard in self.shards), initial=0))

    @property
    def tokens(self) -> int:
        """The number of tokens in the stream, including the special tokens around documents and the tokens
        that packing leaves out.
        """
        return self.starts[-1]

    @property
    def text_bytes(self) -> int:
        """The size of the text in UTF-8 bytes."""
        return sum(shard.text_bytes for shard in self.shards)

    def count(self, length: int) -> int:
        """Return the number of sequences of up to `length` tokens in an epoch. With `packing`, `length` is
        not used.
        """
        return len(self.packing.sizes) if self.packing is not None else -(-self.tokens // length)

    def longest(self, length: int) -> int:
        """Return the number of tokens in the longest of the sequences of up to `length` tokens. With
        `packing`, `length` is not used.
        """
        return int(self.packing.sizes.max()) if self.packing is not None else min(length, self.tokens)

    def sizes(self, length: int, sequences: np.ndarray) -> np.ndarray:
        """Return the number of tokens in each of the sequences at the indices `sequences`; both arrays are
        int64 [n]. With `packing`, `length` is not used.
        """
        if self.packing is not None:
            return self.packing.sizes[sequences]
        return np.minimum(length, self.tokens - sequences * length)

    @cached_property
    def _opened(self) -> dict[int, Shard]:
        return {}

    def shard(self, number: int) -> Shard:
        """Return the shard with index `number`, which is opened and verified on first use."""
        if number not in self._opened:
            self._opened[number] = open_shard(self.directory, self.shards[number].file)
        return self._opened[number]

    def check(self) -> None:
        """Raise CorruptFileError if a shard is missing or its size differs from the one in the manifest."""
        if not self._checked:
            with ThreadPoolExecutor(_PARALLEL_REQUESTS) as threads:
                self._checked.extend(list(threads.map(self._check, self.shards)))

    @cached_property
    def _checked(self) -> list[None]:
        return []

    def _check(self, record: ShardRecord) -> None:
        path = self.directory / record.path
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            size = None
        if size != record.bytes:
            problem = "is missing" if size is None else f"is {size} bytes"
            raise CorruptFileError(
                f"{path}: {problem}, the corpus's manifest records {record.bytes} bytes; build the corpus again"
            )

    def packed(self, packing: str, length: int, seed: int, room: Room | None = None) -> "SourceStream":
        """Return this source, cut into sequences of up to `length` tokens by `packing`, one of the packings
        of `trainers.rows.sequences`. `room` is the capacity of a row if the objective adds marks to each
        document.
        """
        shards = tuple(
            pack_shard(packing, partial(self.shard, number), record.xxh3_128, length, self.frame, seed, room)
            for number, record in enumerate(self.shards)
        )
        return replace(self, packing=Packing(shards))

    def paired(self, packing: str, length: int, exchanges: int, seed: int) -> "SourceStream":
        """Return this source with its documents cut into rows of up to `length` tokens, each a pair of
        sentences or segments. `packing` is one of `trainers.rows.sentence_pairs.PAIR_PACKINGS`. `exchanges`
        is the number of different ways of swapping second parts between pairs.
        """
        shards = tuple(
            pair_shard(packing, partial(self.shard, number), record.xxh3_128, length, self.frame, exchanges, seed)
            for number, record in enumerate(self.shards)
        )
        return replace(self, packing=PairPacking(shards, self.frame))

    def fill(
        self,
        sequences: np.ndarray,
        length: int,
        rows: np.ndarray,
        filled: np.ndarray,
        batch: Batch,
        marks: Mapping[str, int],
    ) -> None:
        """Write the sequences at the indices `sequences`, each of up to `length` tokens, into the rows `rows`
        of `batch`. `filled` must be 0 for these rows; it is set to the number of columns written in each.
        `marks` maps special tokens to their ids.
        """
        if self.packing is not None:
            numbers = np.searchsorted(self.packing.starts, sequences, side="right") - 1
            for number in np.unique(numbers):
                if isinstance(self.packing, PairPacking):
                    here = numbers == number
                    self.packing.fill(number, self.shard(number), sequences[here], rows[here], filled, batch, marks)
                    continue
                index, starts, counts = self.packing.pieces(number, sequences[numbers == number])
                self._copy(number, starts, counts, rows[numbers == number][index], filled, batch, marks)
            return
        starts = sequences * length
        numbers = np.searchsorted(self.starts, starts, side="right") - 1
        inside = starts - np.asarray(self.starts)[numbers]
        while len(rows):
            for number in np.unique(numbers):
                here = numbers == number
                counts = np.full(here.sum(), length)
                self._copy(number, inside[here], counts, rows[here], filled, batch, marks)
            # A row that reaches the end of a shard continues in the next shard.
            unfinished = (filled[rows] < length) & (numbers < len(self.shards) - 1)
            rows, numbers = rows[unfinished], numbers[unfinished] + 1
            inside = np.zeros(len(rows), dtype=np.int64)

    def _copy(
        self,
        number: int,
        starts: np.ndarray,
        counts: np.ndarray,
        rows: np.ndarray,
        filled: np.ndarray,
        batch: Batch,
        marks: Mapping[str, int],
    ) -> None:
        shard, frame = self.shard(number), self.frame
        before, after = (-1 if mark is None else marks[mark] for mark in (frame.before, frame.after))
        following = marks["<eos>"] if before >= 0 and after < 0 else -1
        if batch.sentence_starts is not None:
            assert shard.sentences is not None
            assert shard.sentence_offsets is not None
            sentences = (shard.offsets, shard.sentences, shard.sentence_offsets)
            mark_sentences(
                *sentences, starts, counts, rows, filled, int(before >= 0), frame.marks, batch.sentence_starts
            )
        if batch.spans is not None:
            assert shard.spans is not None
            assert shard.span_offsets is not None
            spans = (shard.offsets, shard.spans, shard.span_offsets)
            mark_spans(*spans, starts, counts, rows, filled, int(before >= 0), frame.marks, batch.spans)
        if batch.in_target is not None:
            assert shard.targets is not None
            pairs = (shard.offsets, shard.targets)
            mark_targets(*pairs, starts, counts, rows, filled, int(before >= 0), frame.marks, batch.in_target)
        arrays = (batch.inputs, batch.targets, batch.positions, batch.segments)
        pack(shard.tokens, shard.offsets, starts, counts, rows, filled, before, after, following, *arrays)
