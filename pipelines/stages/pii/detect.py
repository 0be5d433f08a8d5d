"""Detect personal data in texts with Presidio's recognizers and, if configured, a named-entity model. Most
recognizers are behind a gate, so that they read only windows of the text that can contain an entity.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from gristmill.errors import UserError
from pipelines.stages.pii.name_finders import Named, NameFinder
from pipelines.stages.pii.recognizers import NER_ENTITIES, load_recognizers

if TYPE_CHECKING:
    import numpy as np

    from pipelines.kernels.search.pii_gate import Chains

_BATCH = 10_000  # characters per call of a recognizer
# separates the windows of a call: no pattern crosses it, and patterns treat it as the edge of a text
_GLUE = "\n\0\n"
_CACHED_WINDOWS = 1 << 16  # windows per entity whose results a worker caches
_MAX_CACHED_LENGTH = 200  # longer windows hardly recur


class Detection(NamedTuple):
    """An entity found in a text: its UTF-8 bytes [start, end), its type, and a score from 0 to 1."""

    start: int
    end: int
    entity: str
    score: float


class Detector:
    """Finds entities in texts with pattern recognizers and, if `ner_model` is given, a named-entity model."""

    def __init__(self, entities: tuple[str, ...], phone_regions: tuple[str, ...], ner_model: str = "") -> None:
        self.entities = tuple(entity for entity in entities if entity not in NER_ENTITIES)
        self.phone_regions = phone_regions
        self.recognizers = load_recognizers(self.entities, phone_regions)
        self._names = NameFinder(ner_model, entities) if ner_model else None
        self._remembered: dict[str, dict[str, tuple[_Match, ...]]] = {entity: {} for entity in self.entities}

    def detect(
        self, texts: pa.ChunkedArray, ids: pa.ChunkedArray, entities: Sequence[str] | None = None
    ) -> Iterator[tuple[int, Detection]]:
        """Yield (row, detection) for every detection, however low its score. If `entities` are given, only
        these are searched for; they must be pattern entities of this detector. Raises UserError if a
        recognizer or the named-entity model fails.
        """
        from pipelines.kernels.text.buffers import text_buffers
        from pipelines.stages.pii.windows import GATES

        offsets, data = text_buffers(texts)
        if self._names and entities is None:
            yield from _find_names(self._names, texts, ids)
        chains = {codes: self._chains(offsets, data, codes) for codes in (False, True)}
        for entity in self.entities if entities is None else entities:
            candidates = []
            for row, spans in self._hits(entity, offsets, data, chains[GATES[entity].codes]):
                document = data[offsets[row] : offsets[row + 1]].tobytes()
                candidates += [_Candidate(row, *candidate) for candidate in self._cut(entity, document, spans)]
            known = self._analyze(entity, candidates, ids)
            for candidate in candidates:
                for match in known[candidate.window]:
                    if candidate.low < match.last <= candidate.high:
                        start, end = candidate.shift + match.start, candidate.shift + match.end
                        yield candidate.row, Detection(start, end, entity, match.score)

    def _chains(self, offsets: "np.ndarray", data: "np.ndarray", codes: bool) -> "Chains | None":
        from pipelines.kernels.search.pii_gate import find_chains
        from pipelines.stages.pii.windows import GATES

        gates = [GATES[entity] for entity in self.entities if GATES[entity].codes == codes]
        needed = [gate.digits(self.phone_regions) for gate in gates if gate.digits]
        return find_chains(offsets, data, min(needed), codes) if needed else None

    def _hits(
        self, entity: str, offsets: "np.ndarray", data: "np.ndarray", chains: "Chains | None"
    ) -> Iterator[tuple[int, list[tuple[int, int, int]]]]:
        """Yield (row, hits) for every document that may contain the entity. A hit is (row, start, end), with
        offsets in bytes of the document; the entity can occur only near a hit. The hits of a document are in
        text order. For an entity without a gate, every document that is not empty has the single hit (row, 0,
        0).
        """
        import numpy as np

        from pipelines.kernels.search.pii_gate import find_hits
        from pipelines.stages.pii.windows import GATES

        gate = GATES[entity]
        if not gate.kinds and not gate.digits:
            yield from ((row, [(row, 0, 0)]) for row in np.flatnonzero(np.diff(offsets)).tolist())
            return
        if gate.digits:
            assert chains is not None
            enough = chains.digits >= gate.digits(self.phone_regions)
            rows, starts, ends = chains.rows[enough], chains.starts[enough], chains.ends[enough]
        else:
            hits = [find_hits(kind, offsets, data) for kind in gate.kinds]
            rows, starts = np.concatenate([hit[0] for hit in hits]), np.concatenate([hit[1] for hit in hits])
            order = np.lexsort((starts, rows))
            rows, starts = rows[order], starts[order]
            ends = starts
        spans = zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True)
        for row, group in groupby(spans, key=itemgetter(0)):
            yield row, list(group)

    def _cut(
        self, entity: str, document: bytes, spans: list[tuple[int, int, int]]
    ) -> Iterator[tuple[str, int, int, int]]:
        """Yield the fields of `_Candidate` after `row`, for windows around the hits of a document."""
        from pipelines.stages.pii.windows import GATES

        cut = GATES[entity].cut
        text = document.decode()
        plain = len(text) == len(document)
        done, at, seen = 0, 0, 0  # the first `at` characters of the text have `seen` bytes
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
    ) -> dict[str, tuple["_Match", ...]]:
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
                matches = self._together(entity, batch)
            except Exception:
                matches = [self._alone(entity, window, ids[new[window]]) for window in batch]
            result.update(zip(batch, matches, strict=True))
        if len(remembered) + len(new) > _CACHED_WINDOWS:
            remembered.clear()
        remembered.update((window, result[window]) for window in new if len(window) <= _MAX_CACHED_LENGTH)
        return result

    def _together(self, entity: str, windows: list[str]) -> list[tuple["_Match", ...]]:
        starts = [0, *accumulate(len(window) + len(_GLUE) for window in windows)]
        matches: list[list[_Match]] = [[] for _ in windows]
        for result in self.recognizers[entity].analyze(_GLUE.join(windows), [entity]):
            number = bisect_right(starts, result.start) - 1
            window, start, end = windows[number], result.start - starts[number], result.end - starts[number]
            span = (len(window[:start].encode()), len(window[:end].encode()))
            matches[number].append(_Match(end, *span, float(result.score)))
        return [tuple(sorted(entry)) for entry in matches]

    def _alone(self, entity: str, window: str, identifier: pa.Scalar) -> tuple["_Match", ...]:
        try:
            return self._together(entity, [window])[0]
        except Exception as error:  # the message may quote the document: report only the type
            raise _failure(f"Presidio's recognizer of {entity}", entity, error, identifier) from None


class _Candidate(NamedTuple):
    """A window of document `row` that begins at byte `shift`. A match counts only if its end, in characters
    of the window, lies in (low, high].
    """

    row: int
    window: str
    shift: int
    low: int
    high: int


class _Match(NamedTuple):
    """A match in a window: its end in characters (`last`), its start and end in bytes, and its score."""

    last: int
    start: int
    end: int
    score: float


def _batches(windows: list[str]) -> Iterator[list[str]]:
    """Yield lists of consecutive windows with at most _BATCH characters in total; a longer window is a list
    of its own. Larger batches are avoided because phonenumbers gives up on a text after 65,535 false starts.
    """
    batch: list[str] = []
    size = 0
    for window in windows:
        if batch and size + len(window) > _BATCH:
            yield batch
            batch, size = [], 0
        batch.append(window)
        size += len(window) + len(_GLUE)
    if batch:
        yield batch


def _find_names(names: NameFinder, texts: pa.ChunkedArray, ids: pa.ChunkedArray) -> Iterator[tuple[int, Detection]]:
    values = texts.to_pylist()
    try:
        found = list(names.find(values))
    except UserError:
        raise
    except Exception:
        found = [_names_alone(names, text, ids[row]) for row, text in enumerate(values)]
    for row, (text, detections) in enumerate(zip(values, found, strict=True)):
        for start, end, entity, score in detections:
            low = len(text[:start].encode())
            yield row, Detection(low, low + len(text[start:end].encode()), entity, score)


def _names_alone(names: NameFinder, text: str, identifier: pa.Scalar) -> list[Named]:
    try:
        return next(names.find([text]))
    except UserError:
        raise
    except Exception as error:  # as above
        some = ", ".join(names.entities)
        raise _failure(f"the NER model {names.model}", some, error, identifier) from None


def _failure(what: str, entities: str, error: Exception, identifier: pa.Scalar) -> UserError:
    """Return a UserError that leaves out the original message, which may quote the document."""
    return UserError(
        f"pii: {what} failed on document {identifier.as_py().hex()} with {type(error).__name__}; remove {entities} from "
        "`entities`, or exclude the document"
    )
