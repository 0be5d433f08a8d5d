"""Encode texts, and compute the optional columns of shards as token positions: `sentences`, `spans` and
`target`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.contracts.document import BORDER, TARGET_MARK
from pipelines.contracts.shard_set import SpanType

if TYPE_CHECKING:
    from pipelines.stages.pii.name_finders import NameFinder
    from tokenizer.encode import Encoder


class TokenColumns(NamedTuple):
    """The tokens of documents and the optional columns, in the form of `pipelines.contracts.shard_set.Shard`.
    `sentences` and `spans` are pairs (values, offsets), and `targets` holds one token position per document.
    A column that was not requested is None.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    sentences: tuple[np.ndarray, np.ndarray] | None
    spans: tuple[np.ndarray, np.ndarray] | None
    targets: np.ndarray | None = None


def without_borders(text: pa.LargeStringArray) -> pa.LargeStringArray:
    """Return texts without TARGET_MARK, which separates the source from the target of a pair. The line feed
    before it remains.
    """
    if not pc.any(pc.match_substring(text, TARGET_MARK)).as_py():
        return text
    return pc.replace_substring(text, TARGET_MARK, "")


def sides_of(text: pa.LargeStringArray) -> pa.LargeStringArray:
    """Return the source and the target of each text as two consecutive texts, without the BORDER between
    them. A text with no border or with several borders becomes a source with an empty target.
    """
    sides: list[str] = []
    for each in text.to_pylist():
        source, mark, target = each.partition(TARGET_MARK)
        if mark and TARGET_MARK not in target:
            sides += (source.removesuffix(BORDER.removesuffix(TARGET_MARK)), target)
        else:
            sides += (each.replace(TARGET_MARK, ""), "")
    return pa.array(sides, pa.large_string())


def encode_pairs(
    encoder: "Encoder",
    sides: pa.LargeStringArray,
    sentences: bool,
    span_types: Sequence[SpanType],
    finder: "NameFinder | None" = None,
) -> TokenColumns:
    """Encode the two sides of each pair (see `sides_of`) separately, and join their tokens into one document.
    In the result, `targets` holds, for each document, the position of the first token of its target, or -1 if
    a side has no tokens.
    """
    made = encode_with_columns(encoder, sides, sentences, span_types, finder)
    sizes = np.diff(made.offsets).reshape(-1, 2)
    targets = np.where(sizes.all(axis=1), sizes[:, 0], -1).astype(np.int32)

    def joined(column: tuple[np.ndarray, np.ndarray] | None) -> tuple[np.ndarray, np.ndarray] | None:
        if column is None:
            return None
        values, offsets = column
        number = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        moved = values.copy()
        shift = np.where(number % 2 == 1, sizes[number // 2, 0], 0).astype(values.dtype)
        if values.ndim == 1:
            moved += shift
        else:
            moved[:, :2] += shift[:, None]  # the type of a span stays
        return moved, offsets[::2]

    return TokenColumns(made.tokens, made.offsets[::2], joined(made.sentences), joined(made.spans), targets)


def encode_with_columns(
    encoder: "Encoder",
    text: pa.LargeStringArray,
    sentences: bool,
    span_types: Sequence[SpanType],
    finder: "NameFinder | None" = None,
) -> TokenColumns:
    """Encode texts. Also find the tokens at which sentences begin if `sentences` is set, and the tokens of
    spans of `span_types`. Spans are found by `finder`, or by patterns if `finder` is None.
    """
    if not sentences and not span_types:
        return TokenColumns(*encoder.encode(text), None, None)
    from pipelines.kernels.text.segment import sentence_starts

    start_offsets, starts = sentence_starts(text)
    lists: list[tuple[np.ndarray, np.ndarray]] = []  # byte positions and their offsets by document
    if sentences:
        lists.append((starts, start_offsets))
    if span_types:
        if finder is not None:
            from pipelines.stages.materialise.named_spans import find_named_spans

            found = find_named_spans(text, span_types, finder)
        else:
            from pipelines.kernels.text.dates_and_names import find_dates_and_names

            found = find_dates_and_names(text, span_types, (start_offsets, starts))
        lists.extend((places, found.offsets) for places in (found.begins, found.lasts, found.ends))
    # The encoder takes one list of positions a document, so the lists are joined and divided again.
    documents = np.concatenate([np.repeat(np.arange(len(text)), np.diff(offsets)) for _, offsets in lists])
    order = np.argsort(documents, kind="stable")
    positions = np.concatenate([places for places, _ in lists])[order]
    tokens, offsets, holders = encoder.encode_with_positions(
        text, positions, np.concatenate([[0], np.cumsum(np.bincount(documents, minlength=len(text)))])
    )
    joined = np.empty_like(holders)
    joined[order] = holders
    columns = np.split(joined, np.cumsum([len(places) for places, _ in lists])[:-1])
    sizes = np.diff(offsets)
    starts_found = _token_starts(columns.pop(0), start_offsets, sizes) if sentences else None
    spans_found = None
    if span_types:
        first, last, following = columns
        spans_found = _token_spans(first, last, following, found.types, found.offsets)
    return TokenColumns(tokens, offsets, starts_found, spans_found)


def _token_starts(begins: np.ndarray, offsets: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the token positions at which sentences begin, and their offsets by document. A sentence without
    a token of its own is left out.
    """
    document = np.repeat(np.arange(len(sizes)), np.diff(offsets))
    again = np.zeros(len(begins), bool)
    again[1:] = (begins[1:] == begins[:-1]) & (document[1:] == document[:-1])
    kept = ~again & (begins < sizes[document])
    return begins[kept], np.concatenate([[0], np.cumsum(np.bincount(document[kept], minlength=len(sizes)))])


def _token_spans(
    first: np.ndarray, last: np.ndarray, following: np.ndarray, types: np.ndarray, offsets: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the spans as token ranges, int32 [spans, 3] (first token, end, type), and their offsets by
    document. For each span, `first`, `last` and `following` are the indices of the tokens that contain its
    first character, its last character, and the character after it.

    A span that overlaps the previous kept span is left out.
    """
    # A token may hold the last character and the one after it. A space that is a token of its own holds the first character
    # of its word, which may be the last one too, so `following` is needed to find the end of a span of one letter.
    end = np.maximum(following, last + 1)
    document = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    kept = np.ones(len(first), bool)
    before, until = -1, 0
    for number, (owner, begin, stop) in enumerate(zip(document.tolist(), first.tolist(), end.tolist(), strict=True)):
        until = until if owner == before else 0
        kept[number] = until <= begin < stop
        before, until = owner, stop if kept[number] else until
    spans = np.stack([first, end, types], axis=1)[kept].astype(np.int32)
    return spans, np.concatenate([[0], np.cumsum(np.bincount(document[kept], minlength=len(offsets) - 1))])
