"""Cut sequences at the ends of sentences (RoBERTa: Liu et al., 2019, section 4.2), and mark where sentences
begin in rows.

A sentence is cut only if it does not fit in a sequence. With packing `full_sentences`, a sequence continues
from one document into the next; with `doc_sentences`, it contains sentences of one document only. Special
tokens before a document belong to its first sentence, and those after a document to its last.
"""

import numpy as np

from gristmill.compilation import kernel
from trainers.rows.packing import document_at


@kernel(nogil=True)
def cut_at_sentences(
    offsets: np.ndarray,
    sentences: np.ndarray,
    sentence_offsets: np.ndarray,
    lead: int,
    marks: int,
    length: int,
    across: bool,
    needed: np.ndarray,
    positions: int,
) -> np.ndarray:
    """Cut a shard's stream into sequences of at most `length` tokens, at the ends of sentences. A sentence is
    cut only if it does not fit in a sequence. Return the stream positions at which the sequences begin,
    followed by the end of the stream: int64 [sequences + 1].

    Each document has `marks` special tokens around it, `lead` of them before it. With `across`, a sequence
    may contain sentences of several documents. `needed` and `positions` are those of a
    `trainers.rows.batch.Room`; `needed` is empty if the objective adds no marks to the documents.
    """
    total = offsets[-1] - offsets[0] + marks * (len(offsets) - 1)
    # An upper bound: two neighbouring sequences together have more than `length` tokens. The end of a
    # document and documents that need extra room are exceptions.
    cuts = np.empty(total // max(1, length // 2) + len(offsets) + 2 + len(needed[:1]) * len(sentences), np.int64)
    cuts[0], count = 0, 1
    # The sequence being filled: its first position, the latest end it may have, and the room its earlier
    # documents need.
    start = last = spent = np.int64(0)
    for d in range(len(offsets) - 1):
        begin = offsets[d] - offsets[0] + marks * d
        end = offsets[d + 1] - offsets[0] + marks * (d + 1)
        for k in range(sentence_offsets[d], sentence_offsets[d + 1] + 1):
            position = end
            if k < sentence_offsets[d + 1] and sentences[k] < offsets[d + 1] - offsets[d]:
                position = begin + lead + sentences[k] if sentences[k] > 0 else begin
            while position - start > length or (
                len(needed) > 0 and spent + _needed(max(start, begin), position, begin + lead, needed) > positions
            ):
                start = last if last > start else start + length
                last, spent = start, np.int64(0)
                cuts[count] = start
                count += 1
            last = position
        if len(needed) > 0:
            spent += _needed(max(start, begin), end, begin + lead, needed)
        if not across and end > start:
            start, spent = end, np.int64(0)
            cuts[count] = start
            count += 1
    if last > start:
        cuts[count] = last
        count += 1
    return cuts[:count].copy()


@kernel(nogil=True)
def _needed(start: int, end: int, text: int, needed: np.ndarray) -> int:
    """Return the largest number of row positions that the stream positions `start` to `end` (exclusive) of a
    document can take. `text` is the stream position of the document's first token after the mark, and
    `needed` is the array of a `trainers.rows.batch.Room`.
    """
    return needed[max(0, end - max(start, text))] if end > start else 0


@kernel(nogil=True)
def mark_sentences(
    offsets: np.ndarray,
    sentences: np.ndarray,
    sentence_offsets: np.ndarray,
    starts: np.ndarray,
    counts: np.ndarray,
    rows: np.ndarray,
    filled: np.ndarray,
    lead: int,
    marks: int,
    begins: np.ndarray,
) -> None:
    """Mark in `begins`, bool [all rows, length], the positions where sentences begin, and the first position
    of every document or part of a document. A mark before a document counts as the start of its first
    sentence, in place of the first token.

    `starts`, `counts`, `rows` and `filled` are the arguments of `packing.pack`; call this before `pack`,
    which changes `filled`. Each document has `marks` special tokens around it, `lead` of them before it.
    """
    length, columns = begins.shape[1], filled.copy()
    for i in range(len(rows)):
        row, column = rows[i], columns[rows[i]]
        d = document_at(offsets, starts[i], marks)
        inside = starts[i] - (offsets[d] - offsets[0] + marks * d)
        until = min(length, column + counts[i])
        while column < until and d < len(offsets) - 1:
            size = offsets[d + 1] - offsets[d]
            count = min(size + marks - inside, until - column)
            if count > 0:
                begins[row, column] = True
            for k in range(sentence_offsets[d], sentence_offsets[d + 1]):
                position = lead + sentences[k] - inside
                if sentences[k] > 0 and sentences[k] < size and 0 <= position < count:
                    begins[row, column + position] = True
            column, d, inside = column + count, d + 1, 0
        columns[row] = column
