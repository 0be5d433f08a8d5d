"""Find dates and names in texts with the named-entity models that `pii` also uses. Salient span masking masks
these spans, as in REALM (Guu et al., 2020, section 3.4).
"""

from collections.abc import Collection, Iterable

import pyarrow as pa

from pipelines.contracts.shard_set import SPAN_TYPES, SpanType
from pipelines.kernels.text.dates_and_names import FoundSpans, byte_offsets
from pipelines.stages.pii.name_finders import Named, NameFinder

ENTITIES: dict[SpanType, tuple[str, ...]] = {
    "dates": ("DATE_TIME",),
    "names": ("PERSON", "LOCATION", "NRP", "ORGANIZATION"),
}
"""The entities of each span type. A time that names no date, such as "next week", does not count
(`name_finders.is_relative`).
"""


def entities_of(types: Iterable[SpanType]) -> tuple[str, ...]:
    """Return the entities that belong to the given span types."""
    return tuple(entity for kind in types for entity in ENTITIES[kind])


def find_named_spans(text: pa.LargeStringArray, types: Collection[SpanType], finder: NameFinder) -> FoundSpans:
    """Find the spans of these types in each text. Of overlapping spans, the one that begins first is kept; if
    several begin together, the longest. Raises UserError if the model cannot be loaded.
    """
    texts = text.to_pylist()
    numbers = {entity: SPAN_TYPES.index(kind) for kind in types for entity in ENTITIES[kind]}
    return FoundSpans.of(
        (byte_offsets(document), [(each.start, each.end, numbers[each.entity]) for each in _disjoint(names)])
        for document, names in zip(texts, finder.find(texts), strict=True)
    )


def _disjoint(names: Iterable[Named]) -> list[Named]:
    kept: list[Named] = []
    for each in sorted(names, key=lambda name: (name.start, -name.end)):
        if each.start < each.end and (not kept or kept[-1].end <= each.start):
            kept.append(each)
    return kept
