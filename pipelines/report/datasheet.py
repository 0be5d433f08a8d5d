"""The datasheet of a published corpus, in Markdown, with the sections of Gebru et al. 2021, "Datasheets for
Datasets" (Communications of the ACM 64(12)). Figures are those of report.json; what a corpus cannot know comes
from notes.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from gristmill.config import plain
from gristmill.errors import CorruptFileError, UserError
from gristmill.storage.location import Location
from gristmill.storage.store import digest, read_json
from pipelines.contracts.manifest import load_corpus
from pipelines.report.numbers import FORMAT

_REPORT = "report.json"
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~$-])|^(\d+)([.)])")
_LANGUAGES = 20  # languages listed per source


@dataclass(frozen=True)
class DatasheetNotes:
    """What the people behind a corpus state about it; every field is optional."""

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


def load_report(root: Location) -> dict[str, Any]:
    """Load the report of the corpus in a directory. Raises UserError if there is no corpus, or if the report
    is missing or belongs to another build.
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


def datasheet(report: Mapping[str, Any], notes: DatasheetNotes) -> str:
    """Return the datasheet as Markdown. Text of the corpus file and of the notes is escaped."""
    stated = {field.name: _stated(field.name, getattr(notes, field.name)) for field in fields(notes)}
    sections = {
        "Motivation": [stated["motivation"]],
        "Composition": [_identity(report), _sources(report), _languages(report), _shards(report),
            "Known gaps:", stated["known_gaps"]],
        "Collection process": [stated["collection"], _origins(report)],
        "Preprocessing and cleaning": [_funnel(report), _duplicates(report), _personal_data(report)],
        "Uses": [stated["uses"]],
        "Distribution": [stated["licence"], "The licences of the sources are listed under Composition."],
        "Maintenance": [stated["maintenance"], "Contacts:", stated["contacts"]],
    }  # fmt: skip
    body = [f"## {title}\n\n" + "\n\n".join(parts) for title, parts in sections.items()]
    return "\n\n".join([f"# Datasheet of {_text(report['corpus'])}", *body]) + "\n"


def _text(value: object) -> str:
    """Escape a text so that Markdown shows it as it is, on one line."""
    line = " ".join(str(value).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(lambda found: f"\\{found[1]}" if found[1] else f"{found[2]}\\{found[3]}", line)


def _stated(key: str, value: str | Sequence[str]) -> str:
    if not value:
        return f"Not stated (key `{key}` of the notes)."
    if isinstance(value, str):
        return "\n\n".join(_text(paragraph) for paragraph in re.split(r"\n\s*\n", value.strip()))
    return "\n".join(f"- {_text(entry)}" for entry in value)


def _table(heading: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table: whole numbers with separators, None as `n/a`, texts escaped."""
    cells = [[f"{c:,}" if isinstance(c, int) else "n/a" if c is None else _text(c) for c in row] for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [heading, ["---"] * len(heading), *cells])


def _identity(report: Mapping[str, Any]) -> str:
    totals = report["totals"]
    return (
        f"Fingerprint `{report['fingerprint']}`. {totals['documents_kept']:,} of {totals['documents']:,} documents were "
        f"kept, {totals['text_bytes_kept']:,} of {totals['text_bytes']:,} bytes of text."
    )


def _sources(report: Mapping[str, Any]) -> str:
    names = ("source", "format", "licence", "documents", "documents_kept", "text_bytes", "text_bytes_kept")
    heading = ("source", "format", "licence", "documents read", "kept", "bytes read", "kept")
    return _table(heading, [[source[name] or "not stated" if name == "licence" else source[name] for name in names]
        for source in report["sources"]])  # fmt: skip


def _languages(report: Mapping[str, Any]) -> str:
    rows = [
        (source, value if value is not None else "none", documents, kept)
        for source, columns in report["values"].items()
        for value, documents, kept in (columns.get("language") or [])[:_LANGUAGES]
    ]
    if not rows:
        return "Languages were not identified."
    return _table(("source", "language", "documents", "kept"), rows)


def _shards(report: Mapping[str, Any]) -> str:
    if not report["shard_sets"]:
        return "The corpus has no shards, so its tokens are not counted."
    parts = []
    for shards in report["shard_sets"]:
        tokenizer = shards["tokenizer"]
        rows = [[row[name] for name in ("source", "split", "documents", "tokens")] for row in shards["tokens"]]
        parts.append(
            f"Shards {_text(shards['name'])}: tokenizer {_text(tokenizer['kind'])} with {tokenizer['vocab_size']:,} "
            f"entries, checksum `{tokenizer['xxh3_128']}`; token ids are {_text(shards['dtype'])}."
        )
        parts.append(_table(("source", "split", "documents", "tokens"), rows))
    return "\n\n".join(parts)


def _origins(report: Mapping[str, Any]) -> str:
    heading = ("source", "origin", "files", "records", "quarantined")
    rows = [
        (s["source"], s["origin"] or "not stated", s["files"], s["records"], sum(s["quarantined"].values()))
        for s in report["sources"]
    ]
    return _table(heading, rows)


def _funnel(report: Mapping[str, Any]) -> str:
    if not report["funnel"]:
        return "No step dropped or changed documents."
    names = ("source", "step", "documents_in", "documents_out", "bytes_in", "bytes_out")
    names += ("tokens_in_estimated", "tokens_out_estimated")
    heading = ("source", "step", "documents in", "out", "bytes in", "out", "tokens in", "out", "dropped by")
    rows = [
        [*(row[name] for name in names), ", ".join(f"{rule} {n:,}" for rule, n in row["dropped"].items())]
        for row in report["funnel"]
    ]
    note = "Tokens are estimated from each source's bytes per token in its shards."
    return _table(heading, rows) + "\n\n" + note


def _duplicates(report: Mapping[str, Any]) -> str:
    if not report["duplicates"]:
        return "No step reports clusters of duplicates."
    rows = [(entry["step"], entry["clusters"], entry["dropped"]) for entry in report["duplicates"]]
    return _table(("deduplication", "clusters", "documents dropped"), rows)


def _personal_data(report: Mapping[str, Any]) -> str:
    steps = [step["pii"] for step in report["config"]["steps"] if "pii" in step]
    if not steps:
        return "No step looked for personal data."
    lines = [f"- {_text(', '.join(f'{name}: {value}' for name, value in step.items()))}" for step in steps]
    return "Personal data was looked for with these settings:\n\n" + "\n".join(lines)
