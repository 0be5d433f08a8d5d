"""Bits per byte of whole documents: a metric for comparing different runs on the same corpus.

The validation loss of a run is measured on rows that depend on the run's packing, length and objective, so it
cannot be compared between runs that differ in these. For this metric, all runs predict the text of the same
documents:

- From the validation split of each source, the documents with the smallest ids (which are hashes) are taken,
  until their text reaches BUDGET_BYTES. Documents of more than MAX_DOCUMENT_BYTES are skipped.
- Each document is cut into chunks of half a window. A chunk is predicted from the previous chunk, and the first
  chunk from no text. A window is WINDOW positions, or fewer if the model has fewer. If the objective is part of
  a mixture and marked by a token, this token takes one position.
- Bits per byte = nats of all tokens / (ln 2 x UTF-8 bytes of the documents). `<eos>` is not a target.

The metric needs the likelihood of text given the text before it. Causal models (fill-in-the-middle included)
and prefix LMs on a decoder or an encoder-decoder learn this likelihood. So does a mixture that contains one
of these objectives; the first such part of the mixture is measured. Other objectives, such as masking, span
corruption and denoising, do not learn it; runs with them lack the metric.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainers.config.pretraining import Pretraining
from trainers.data.packed_corpus import TrainingCorpus
from trainers.data.stream import SourceStream
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.pairs import Pairs, decoder_rows, encoder_decoder_rows
from trainers.objectives.shared.ragged import Ragged
from trainers.rows.batch import IGNORED, PADDING, Batch

BUDGET_BYTES, MAX_DOCUMENT_BYTES = 1 << 17, 1 << 20  # bytes
WINDOW = 256  # positions
FIELD = "document_bits_per_byte"


@dataclass(frozen=True)
class DocumentData:
    """The documents on which bits per byte are measured, cut into chunks. `targets[i]` holds the tokens of
    chunk i. They are predicted from `inputs[i]`, the previous chunk, which is empty for the first chunk of a
    document. `source[i]` is the index of the chunk's source in `sources`, and `text_bytes` [sources] is the
    number of UTF-8 bytes of text in each source's documents.

    `bidirectional` says whether a decoder attends to the input in both directions. `mode` is the id of the
    token that precedes every input, or None.
    """

    sources: tuple[SourceStream, ...]
    text_bytes: np.ndarray
    inputs: Sequence[np.ndarray]
    targets: Sequence[np.ndarray]
    source: np.ndarray
    context: Context
    bidirectional: bool
    mode: int | None

    def batches(self, size: int, rank: int, world: int) -> Iterator[Batch]:
        """Yield rank `rank`'s share of the chunks, in batches of `size` rows. Every rank gets the same number
        of batches.
        """
        lengths = np.array([len(one) + len(other) for one, other in zip(self.inputs, self.targets, strict=True)])
        by_length = np.argsort(-lengths, kind="stable")
        for start in range(rank * size, -(-len(lengths) // (size * world)) * size * world, size * world):
            yield self._batch(by_length[start : start + size], size)

    def _batch(self, chosen: np.ndarray, size: int) -> Batch:
        inputs, targets = (_ragged([lists[i] for i in chosen]) for lists in (self.inputs, self.targets))
        source, sample = np.zeros(size, dtype=np.int64), np.full(size, -1, dtype=np.int64)
        source[: len(chosen)], sample[: len(chosen)] = self.source[chosen], chosen
        blank = np.full((size, 1), PADDING, dtype=np.int64)
        rows = Batch(blank, np.full_like(blank, IGNORED), blank, blank, source, sample, sample, np.zeros_like(source))
        if self.context.family == "encoder_decoder":
            inputs = inputs.with_marks(None, self.context.special("<eos>"))
        pairs = Pairs(inputs, targets, np.arange(len(chosen)), np.zeros(len(chosen), dtype=np.int64))
        if self.context.family == "encoder_decoder":
            return encoder_decoder_rows(pairs, rows, self.context, self.mode)
        return decoder_rows(pairs, rows, self.context, self.mode, self.bidirectional, False)

    def fields(self, sums: np.ndarray) -> dict[str, Any]:
        """Return the fields to log: the bits per byte of all documents, the window in positions, and the bits
        per byte of each source. The rows of `sums`, float64 [2, sources], hold the nats and the number of
        targets of each source, summed over all batches and ranks.
        """
        bits = sums[0] / math.log(2)
        each = {s.name: {FIELD: float(b / n)} for s, b, n in zip(self.sources, bits, self.text_bytes, strict=True)}
        return {FIELD: float(bits.sum() / self.text_bytes.sum()), "document_window": window(self), "sources": each}


def add_document_fields(losses: Mapping[str, Any], documents: Mapping[str, Any]) -> dict[str, Any]:
    """Return `losses`, the fields of a validation, merged with `documents`, which is the result of
    `DocumentData.fields` or empty.
    """
    more = documents.get("sources", {})
    sources = {name: {**entry, **more.get(name, {})} for name, entry in losses["sources"].items()}
    return {**losses, **documents, "sources": sources}


def window(data: DocumentData) -> int:
    """Return the number of positions per window."""
    return min(WINDOW, data.context.sequence_length)


def document_data(corpus: TrainingCorpus, config: Pretraining) -> DocumentData | None:
    """Return the documents on which a run is measured. None if the run's objective does not learn the
    likelihood of text, or if there is no document to measure.
    """
    members = [(one, token) for one, token in config.objective.members() if one.gives_likelihood]
    if not members:
        return None
    objective, token = members[0]
    specials = corpus.tokenizer.specials
    context = Context(
        0, specials, corpus.tokenizer.vocab_size, config.model.family, config.model.positions,
        decoder_start=config.model.traits.decoder_start,
    )  # fmt: skip
    mode = None if token is None else context.special(token)
    half = (min(WINDOW, config.model.positions) - (mode is not None)) // 2
    sources: list[SourceStream] = []
    inputs: list[np.ndarray] = []
    targets: list[np.ndarray] = []
    sizes, numbers = [], []
    for name in sorted(corpus.validation):
        texts, size = _documents(corpus.validation[name])
        if not size:
            continue
        for text in texts:
            for start in range(0, len(text), half):
                inputs.append(text[max(0, start - half) : start])
                targets.append(text[start : start + half])
                numbers.append(len(sources))
        sources.append(corpus.validation[name])
        sizes.append(size)
    if not sources:
        return None
    counts = (np.array(sizes, dtype=np.int64), inputs, targets, np.array(numbers, dtype=np.int64))
    return DocumentData(tuple(sources), *counts, context, objective.sees_prefix, mode)


def _documents(source: SourceStream) -> tuple[list[np.ndarray], int]:
    """Return the tokens of each measured document of a source, and the total number of bytes of their text."""
    shards = [source.shard(number) for number in range(len(source.shards))]
    ids = np.concatenate([_id_prefixes(shard.doc_ids) for shard in shards])
    sizes = np.concatenate([shard.n_bytes for shard in shards])
    eligible = np.flatnonzero((sizes > 0) & (sizes <= MAX_DOCUMENT_BYTES))
    order = eligible[np.argsort(ids[eligible], kind="stable")]
    order = order[: int(np.searchsorted(np.cumsum(sizes[order]), BUDGET_BYTES)) + 1]
    firsts = np.cumsum([0, *(len(shard.n_bytes) for shard in shards)])
    texts = []
    for document in order:
        number = int(np.searchsorted(firsts, document, side="right")) - 1
        shard, inside = shards[number], document - firsts[number]
        texts.append(shard.tokens[shard.offsets[inside] : shard.offsets[inside + 1]].astype(np.int64))
    return texts, int(sizes[order].sum())


def _id_prefixes(ids: Any) -> np.ndarray:
    """Return the first 8 bytes of each 16-byte id, read as a big-endian number, uint64."""
    whole = np.frombuffer(ids.buffers()[1], dtype=">u8")[2 * ids.offset :: 2]
    return whole[: len(ids)].astype(np.uint64)


def _ragged(lists: Sequence[np.ndarray]) -> Ragged:
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in lists], dtype=np.int64)]).astype(np.int64)
    return Ragged(np.concatenate([np.empty(0, np.int64), *lists]), offsets)
