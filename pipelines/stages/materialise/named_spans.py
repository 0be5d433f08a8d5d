"""Dates and names in texts, found by the language model that `pii` also uses: the spans of salient span masking as in REALM
(Guu et al., 2020, section 3.4), which takes names from a tagger.
"""

from collections.abc import Collection, Iterable
from functools import lru_cache

import numpy as np
import pyarrow as pa

from pipelines.contracts.shard_set import SPAN_TYPES, SpanType
from pipelines.kernels.text.dates_and_names import FoundSpans
from pipelines.stages.pii.name_finders import Named, NameFinder

ENTITIES: dict[SpanType, tuple[str, ...]] = {
    "dates": ("DATE_TIME",),
    "names": ("PERSON", "LOCATION", "NRP", "ORGANIZATION"),
}
"""The entities of each type. A time that names no date, such as "next week", is none (`name_finders.is_relative`)."""


def entities_of(types: Iterable[SpanType]) -> tuple[str, ...]:
    """Return the entities of these types."""
    return tuple(entity for kind in types for entity in ENTITIES[kind])


_finder = lru_cache(1)(NameFinder)  # a process writes many shards with one model


def find_named_spans(text: pa.LargeStringArray, types: Collection[SpanType], model: str) -> FoundSpans:
    """Find the spans of these types in each text. Of finds that overlap, the one that begins first is taken, of those that
    begin together the longest. Raises UserError if the model cannot be loaded.
    """
    texts = text.to_pylist()
    numbers = {entity: SPAN_TYPES.index(kind) for kind in types for entity in ENTITIES[kind]}
    counts = np.zeros(len(texts) + 1, np.int64)
    found: list[np.ndarray] = [np.zeros((4, 0), np.int64)]
    for number, (document, names) in enumerate(zip(texts, _finder(model, entities_of(types)).find(texts), strict=True)):
        kept = _disjoint(names)
        counts[number + 1] = len(kept)
        if kept:
            data = np.frombuffer(document.encode(), np.uint8)
            bytes_of = np.append(np.flatnonzero((data & 0xC0) != 0x80), len(data)).astype(np.int64)
            starts = np.array([each.start for each in kept])
            ends = np.array([each.end for each in kept])
            kinds = np.array([numbers[each.entity] for each in kept])
            found.append(np.stack([bytes_of[starts], bytes_of[ends - 1], bytes_of[ends], kinds]))
    return FoundSpans(np.cumsum(counts), *np.concatenate(found, axis=1))


def _disjoint(names: Iterable[Named]) -> list[Named]:
    kept: list[Named] = []
    for each in sorted(names, key=lambda name: (name.start, -name.end)):
        if each.start < each.end and (not kept or kept[-1].end <= each.start):
            kept.append(each)
    return kept
