"""Personal data: found by Presidio's pattern recognizers, replaced by typed placeholders, counted.

Presidio is the authority and is far too slow to read a corpus, so it sees only windows that can hold an entity (see
pipelines/stages/pii_windows.py). What it finds there equals what its recognizers find in the whole text, with two
exceptions in favour of finding: phonenumbers gives up on a text after 65,535 false starts, and Presidio on a pattern
after 60 seconds.

The reference configuration: each recognizer as Presidio ships it, by itself (`recognizer.analyze(text, [entity])`); no
NER, no NLP engine, no context words raising scores; phone numbers with the regions of the knob and phonenumbers'
leniency VALID; tldextract with the suffix list that it ships.
"""

import logging
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.contracts.config import near_match
from pipelines.contracts.edits import EDIT, EDITS
from pipelines.contracts.errors import UserError
from pipelines.contracts.stage import EDITS_COLUMN, PartStage, library_versions

if TYPE_CHECKING:
    import numpy as np

    from pipelines.kernels.pii_gate import Chains

# Presidio's recognizer of each entity, by class name in presidio_analyzer.predefined_recognizers.
RECOGNIZERS = {
    "EMAIL_ADDRESS": "EmailRecognizer",
    "PHONE_NUMBER": "PhoneRecognizer",
    "CREDIT_CARD": "CreditCardRecognizer",
    "IBAN_CODE": "IbanRecognizer",
    "US_SSN": "UsSsnRecognizer",
    "IP_ADDRESS": "IpRecognizer",
    "CRYPTO": "CryptoRecognizer",
    "MAC_ADDRESS": "MacAddressRecognizer",
}
_BATCH = 10_000  # characters per call of a recognizer
_REMEMBERED = 1 << 16  # windows per entity whose result a worker keeps
_REMEMBERED_LENGTH = 200  # longer ones hardly come again


class Detection(NamedTuple):
    """An entity in the UTF-8 bytes [start, end) of a text, with Presidio's score from 0 to 1."""

    start: int
    end: int
    entity: str
    score: float


@dataclass(frozen=True)
class Pii(PartStage):
    """`edits` that replace each entity by `<ENTITY>`, with the entity as rule, and `pii_<entity>` (int32), how many.

    Detections that overlap, directly or through others, become one edit over all they cover, so that nothing of any of
    them stays; its entity is that of the highest score, then the longest, then the first in `entities`. The counts are
    of edits: what is replaced once is counted once.
    """

    entities: tuple[str, ...] = ("EMAIL_ADDRESS", "PHONE_NUMBER", "CREDIT_CARD", "IBAN_CODE", "US_SSN", "IP_ADDRESS")
    """Also known: CRYPTO, MAC_ADDRESS."""
    score_threshold: float = 0.3
    """The least score. Without context words, 0.3 leaves out what Presidio itself calls very weak: any nine digits as
    an SSN (0.05) and a lone `::` as an IP address (0.1)."""
    phone_regions: tuple[str, ...] = ("US",)
    """Regions whose numbers count without a leading +, as ISO 3166 codes; each one costs time."""
    text: str = "text"
    """The text that is searched: `text`, `text@STEP` or `edited_text`."""

    def reads(self) -> tuple[str, ...]:
        """The text."""
        return (self.text,)

    def writes(self) -> pa.Schema:
        """`edits` and a count per entity."""
        return pa.schema([(EDITS_COLUMN, EDITS), *((count_column(entity), pa.int32()) for entity in self.entities)])

    def depends(self) -> dict[str, str]:
        """The libraries whose patterns, metadata and suffix list decide."""
        return library_versions("presidio-analyzer", "phonenumbers", "tldextract", "regex")

    def check(self) -> None:
        """ValueError for entities and regions that are not known, none at all, or a score outside 0 to 1."""
        for entity in self.entities:
            if entity not in RECOGNIZERS:
                raise ValueError(f"entities: got {entity!r}, no such entity{near_match(entity, list(RECOGNIZERS))}")
        if not self.entities or len(set(self.entities)) < len(self.entities):
            raise ValueError(f"entities: got {list(self.entities)}, expected at least one, each once")
        if not 0 <= self.score_threshold <= 1:
            raise ValueError(f"score_threshold: got {self.score_threshold}, allowed 0 to 1")
        if self.text not in ("text", "edited_text") and not self.text.startswith("text@"):
            raise ValueError(f"text: got {self.text!r}, allowed: text, text@STEP, edited_text")
        from phonenumbers import SUPPORTED_REGIONS

        for region in self.phone_regions:
            if region not in SUPPORTED_REGIONS:
                known = "an ISO 3166 code in capitals that phonenumbers knows, for example US or GB"
                raise ValueError(f"phone_regions: got {region!r}, expected {known}")
        if not self.phone_regions:
            raise ValueError("phone_regions: got none, expected at least one, for example [US]")

    def setup(self) -> None:
        """Import Presidio and build the recognizers, about 3 seconds."""
        _ = self.detector

    @cached_property
    def detector(self) -> "Detector":
        """The recognizers, built on first use."""
        return Detector(self.entities, self.phone_regions)

    def annotate(self, docs: pa.Table) -> pa.Table:
        """Edits and counts of each document."""
        import numpy as np

        found = self.detector.detect(docs[self.text], docs["id"])
        kept = sorted((row, *detection) for row, detection in found if detection.score >= self.score_threshold)
        edits = list(self._resolve(kept))
        rows = np.fromiter((row for row, *_ in edits), np.int64, len(edits))
        entities = pa.array([entity for *_, entity in edits], pa.string())
        columns = [
            pa.array([start for _, start, _, _ in edits], pa.int64()),
            pa.array([end for _, _, end, _ in edits], pa.int64()),
            pc.binary_join_element_wise("<", entities, ">", ""),
            entities,
        ]
        offsets: np.ndarray = np.searchsorted(rows, np.arange(docs.num_rows + 1)).astype(np.int32)
        column = pa.ListArray.from_arrays(pa.array(offsets), pa.StructArray.from_arrays(columns, fields=list(EDIT)))
        counts = [
            np.bincount(rows[pc.equal(entities, entity).to_numpy(zero_copy_only=False)], minlength=docs.num_rows)
            for entity in self.entities
        ]
        return pa.table([column, *(pa.array(count.astype(np.int32)) for count in counts)], schema=self.writes())

    def _resolve(self, detections: Sequence[tuple[int, int, int, str, float]]) -> Iterator[tuple[int, int, int, str]]:
        """(row, start, end, entity) of each group of detections that overlap; they come sorted by row, then start."""
        group: list[tuple[int, int, int, str, float]] = []
        reach = -1
        for detection in detections:
            if group and (detection[0] != group[0][0] or detection[1] >= reach):
                yield self._strongest(group, reach)
                group, reach = [], -1
            group.append(detection)
            reach = max(reach, detection[2])
        if group:
            yield self._strongest(group, reach)

    def _strongest(self, group: list[tuple[int, int, int, str, float]], reach: int) -> tuple[int, int, int, str]:
        row, start, _, entity, _ = group[0]
        if len(group) > 1:
            *_, entity, _ = max(group, key=lambda d: (d[4], d[2] - d[1], -self.entities.index(d[3])))
        return row, start, reach, entity


def count_column(entity: str) -> str:
    """The column that counts an entity: `pii_email_address`."""
    return f"pii_{entity.lower()}"


class Detector:
    """Presidio's recognizers behind the gate. Results of short windows are remembered, which only saves time."""

    def __init__(self, entities: tuple[str, ...], phone_regions: tuple[str, ...]) -> None:
        self.entities = entities
        self.phone_regions = phone_regions
        self.recognizers = load_recognizers(entities, phone_regions)
        self._remembered: dict[str, dict[str, tuple[_Found, ...]]] = {entity: {} for entity in entities}

    def detect(self, texts: pa.ChunkedArray, ids: pa.ChunkedArray) -> Iterator[tuple[int, Detection]]:
        """(row, detection) for every detection of any score, entity by entity.

        UserError with the document's id and the entity where a recognizer fails.
        """
        from pipelines.kernels.buffers import text_buffers

        offsets, data = text_buffers(texts)
        chains = self._chains(offsets, data)
        for entity in self.entities:
            candidates = []
            for row, spans in self._hits(entity, offsets, data, chains):
                document = data[offsets[row] : offsets[row + 1]].tobytes()
                candidates += [_Candidate(row, *candidate) for candidate in self._cut(entity, document, spans)]
            known = self._analyze(entity, candidates, ids)
            for candidate in candidates:
                for found in known[candidate.window]:
                    if candidate.low < found.last <= candidate.high:
                        start, end = candidate.shift + found.start, candidate.shift + found.end
                        yield candidate.row, Detection(start, end, entity, found.score)

    def _chains(self, offsets: "np.ndarray", data: "np.ndarray") -> "Chains | None":
        """The chains of digits for all entities that are made of them."""
        from pipelines.kernels.pii_gate import find_chains
        from pipelines.stages.pii_windows import GATES

        needed = [digits(self.phone_regions) for entity in self.entities if (digits := GATES[entity].digits)]
        return find_chains(offsets, data, min(needed)) if needed else None

    def _hits(
        self, entity: str, offsets: "np.ndarray", data: "np.ndarray", chains: "Chains | None"
    ) -> Iterator[tuple[int, list[tuple[int, int, int]]]]:
        """(row, its hits in order as (row, start, end) in bytes) for every document that can hold the entity."""
        import numpy as np

        from pipelines.kernels.pii_gate import find_hits
        from pipelines.stages.pii_windows import GATES

        gate = GATES[entity]
        if gate.digits:
            assert chains is not None
            enough = chains.digits >= gate.digits(self.phone_regions)
            rows, starts, ends = chains.rows[enough], chains.starts[enough], chains.ends[enough]
        else:
            hits = [find_hits(kind, offsets, data) for kind in gate.kinds]
            rows, starts = np.concatenate([hit[0] for hit in hits]), np.concatenate([hit[1] for hit in hits])
            order = np.lexsort((starts, rows))
            rows, starts = rows[order], starts[order]
            ends = starts + 1
        spans = zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True)
        for row, group in groupby(spans, key=itemgetter(0)):
            yield row, list(group)

    def _cut(
        self, entity: str, document: bytes, spans: list[tuple[int, int, int]]
    ) -> Iterator[tuple[str, int, int, int]]:
        """(window, its byte offset, low, high) around the hits of a document; see _Candidate."""
        from pipelines.stages.pii_windows import GATES

        cut = GATES[entity].cut
        text = document.decode()
        plain = len(text) == len(document)
        done, at, seen = 0, 0, 0  # the first `at` characters are the first `seen` bytes
        for _, start, end in spans:
            at, seen = (start if plain else at + len(document[seen:start].decode())), start
            if at < done:
                continue
            length = end - start if plain else len(document[start:end].decode())
            window = cut(text, at, at + length, self.phone_regions)
            if window is None:
                continue
            done = window.high
            shift = window.start
            if not plain:
                shift = start - len(text[shift:at].encode()) if shift <= at else start + len(text[at:shift].encode())
            yield text[window.start : window.end], shift, window.low - window.start, window.high - window.start

    def _analyze(
        self, entity: str, candidates: list["_Candidate"], ids: pa.ChunkedArray
    ) -> dict[str, tuple["_Found", ...]]:
        """What Presidio finds in each window."""
        remembered = self._remembered[entity]
        result = {}
        new: dict[str, int] = {}
        for candidate in candidates:
            if (known := remembered.get(candidate.window)) is not None:
                result[candidate.window] = known
            else:
                new.setdefault(candidate.window, candidate.row)
        for batch in _batches(list(new)):
            try:
                found = self._together(entity, batch)
            except Exception:
                found = [self._alone(entity, window, ids[new[window]]) for window in batch]
            result.update(zip(batch, found, strict=True))
        if len(remembered) + len(new) > _REMEMBERED:
            remembered.clear()
        remembered.update((window, result[window]) for window in new if len(window) <= _REMEMBERED_LENGTH)
        return result

    def _together(self, entity: str, windows: list[str]) -> list[tuple["_Found", ...]]:
        """One call for many windows, a line each: no pattern crosses or looks at a line end other than as an edge."""
        starts = [0, *accumulate(len(window) + 1 for window in windows)]
        found: list[list[_Found]] = [[] for _ in windows]
        for result in self.recognizers[entity].analyze("\n".join(windows), [entity]):
            number = bisect_right(starts, result.start) - 1
            window, start, end = windows[number], result.start - starts[number], result.end - starts[number]
            span = (len(window[:start].encode()), len(window[:end].encode()))
            found[number].append(_Found(end, *span, float(result.score)))
        return [tuple(sorted(entry)) for entry in found]

    def _alone(self, entity: str, window: str, identifier: pa.Scalar) -> tuple["_Found", ...]:
        try:
            return self._together(entity, [window])[0]
        except Exception as error:  # its message may quote the document: only its type may be told
            raise UserError(
                f"pii: Presidio's recognizer of {entity} failed on document {identifier.as_py().hex()} with "
                f"{type(error).__name__}; take {entity} out of `entities`, or exclude the document"
            ) from None


class _Candidate(NamedTuple):
    """A window of document `row` from byte `shift` on; matches that end in (low, high] of its characters count."""

    row: int
    window: str
    shift: int
    low: int
    high: int


class _Found(NamedTuple):
    """A match in a window: its end in characters, start and end in bytes, score."""

    last: int
    start: int
    end: int
    score: float


def _batches(windows: list[str]) -> Iterator[list[str]]:
    """Runs of windows of some _BATCH characters: phonenumbers gives up on a text after 65,535 false starts."""
    batch: list[str] = []
    size = 0
    for window in windows:
        if batch and size + len(window) > _BATCH:
            yield batch
            batch, size = [], 0
        batch.append(window)
        size += len(window) + 1
    if batch:
        yield batch


def load_recognizers(entities: tuple[str, ...], phone_regions: tuple[str, ...]) -> dict[str, Any]:
    """Presidio's recognizers in the reference configuration, by entity.

    For the whole process this silences Presidio's logger, which quotes text, and gives tldextract an extractor that
    neither downloads a suffix list nor writes a cache.
    """
    logging.getLogger("presidio-analyzer").disabled = True
    import tldextract.tldextract

    tldextract.tldextract.TLD_EXTRACTOR = tldextract.TLDExtract(cache_dir=None, suffix_list_urls=())
    with _without("torch", "transformers"):
        from presidio_analyzer import predefined_recognizers
    recognizers = {}
    for entity in entities:
        knobs = {"supported_regions": phone_regions} if entity == "PHONE_NUMBER" else {}
        recognizers[entity] = getattr(predefined_recognizers, RECOGNIZERS[entity])(**knobs)
    return recognizers


@contextmanager
def _without(*modules: str) -> Iterator[None]:
    """Optional imports of these modules fail inside, unless they are loaded already.

    Importing Presidio costs 13 seconds and 430 MB with them and 2.3 seconds and 110 MB without; patterns need neither.
    """
    hidden = [name for name in modules if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
