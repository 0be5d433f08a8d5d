"""Inspect a published corpus: show the full history of one document, or samples of the documents and records
that a rule dropped or set aside in quarantine. All output is escaped, so that no document can control the
terminal.
"""

import difflib
import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow.compute as pc
import xxhash

from gristmill.config import parse
from gristmill.console import Page
from gristmill.errors import ConfigError, UserError
from gristmill.storage.location import Location
from gristmill.storage.parsing import parse_location
from gristmill.terminal import printable
from pipelines.contracts.columns import DROP, EDITS_COLUMN, winner_column
from pipelines.contracts.document import NOT_SAMPLED, is_empty
from pipelines.contracts.lineage import Corpus, Located, Origin, PublishedStep, Quarantined, open_corpus, select_rows
from pipelines.contracts.parts import Part
from pipelines.explore.document_history import written_values
from pipelines.stages.decide.rules import Bound
from pipelines.stages.pii.display_redaction import (
    pii_steps,
    redact_row,
    redact_texts,
    redact_values,
    without_personal_data,
)

_DOCUMENT = (4000, 80)  # characters and lines shown of a document
_EXCERPT = (600, 10)  # characters and lines shown of a sample
_EDITS = 20  # edits shown per step
_WINNERS = ("_cluster", "_winner", "_winners")  # how columns with ids of documents end


def show_document(corpus: Location, identifier: str, *, raw: bool) -> None:
    """Print the history of a document, or the origin of a record that was set aside. `identifier` is
    `source/path#record` or 32 hex digits. With `raw`, the text is printed as stored, and nothing is redacted.
    Raises UserError if the corpus has no such document.
    """
    opened = open_corpus(corpus)
    located = opened.find(identifier)
    page = Page()
    page.line(printable(located.printed), "bold")
    if isinstance(located, Quarantined):
        page.line(f"set aside when it was read: {_reason(located.reason)}", "bold red")
        _show_origin(page, opened, located, [])
        page.field("size", "unknown" if located.bytes is None else f"{located.bytes:,} bytes")
        page.line("  its text is not stored; see this record in the source's file")
        return
    part = without_personal_data(opened, select_rows(located.part, [located.row]))
    rule = part.drop()[0].as_py()
    page.line("kept" if rule is None else f"dropped by {printable(rule)}", "bold green" if rule is None else "bold red")
    _show_origin(page, opened, located, _origin_fields(opened, part, raw))
    page.field("part", f"{part.name}, row {located.row:,}: {part.directory.name}/{part.documents.path}")
    _show_steps(page, opened, located, part, raw)
    _show_shards(page, opened, located)
    documents = part.table(("text", "edited_text"))
    stored, edited = documents["text"][0].as_py(), documents["edited_text"][0].as_py()
    sizes = f"{len(stored.encode()):,} bytes stored, {len(edited.encode()):,} edited"
    page.heading(f"text ({'as stored' if raw else _view_name(opened, part)}; {sizes})")
    _show_text(page, opened, part, raw, _DOCUMENT)


def show_rule(corpus: Location, rule: str, samples: int, *, raw: bool) -> None:
    """Print up to `samples` documents that `rule` dropped, and the ids and sizes of up to `samples` records
    that were set aside for the reason `rule`. With `raw`, texts are printed as stored, not as edited. Raises
    UserError if there are no such documents or records, or if `samples` is less than 1.
    """
    if samples < 1:
        raise UserError(f"--samples: got {samples}, expected 1 or more")
    opened = open_corpus(corpus)
    dropped, aside = _count_by_rule(opened, "dropped"), _count_by_rule(opened, "quarantined")
    if rule not in dropped and rule not in aside:
        raise UserError(f"--rule {rule!r}: {_describe_unknown_rule(rule, dropped, aside)}")
    page = Page()
    if rule in dropped:
        _title(page, rule, dropped[rule], "documents dropped", samples)
        _note_unverified(page, opened, rule)
        _show_dropped(page, opened, rule, samples, list(dropped[rule]), raw)
    if rule in aside:
        _title(page, _reason(rule), aside[rule], "records set aside", samples)
        records = (record for source in aside[rule] for record in opened.quarantined(source))
        chosen = heapq.nsmallest(samples, ((_rank(r.id), r.printed, r.bytes) for r in records if r.reason == rule))
        for _, printed, size in chosen:
            page.field(f"{'?' if size is None else format(size, ',')} bytes", printed)


def _note_unverified(page: Page, corpus: Corpus, rule: str) -> None:
    steps = {row["step"] for row in corpus.manifest.funnel if rule in row["dropped"]}
    for step in (step for step in corpus.steps if step.stage == "dedup_minhash" and step.label in steps):
        if step.manifest.identity["knobs"].get("verify") == "none":
            page.line(
                "  verify: none drops whole clusters: a document is in one if it shares a band with any member, so its "
                "similarity to the kept document may be low; `verify: signature` with a `threshold` keeps such documents"
            )


def _reason(reason: str) -> str:
    from pipelines.reading.entries.reasons import REASONS

    return f"{reason}: {REASONS[reason]}" if reason in REASONS else reason


def _show_origin(page: Page, corpus: Corpus, found: Origin, fields: Sequence[tuple[str, str]]) -> None:
    facts = corpus.manifest.sources[found.source]
    page.heading("origin")
    page.field("source", found.source)
    # Names may hold exclamation marks too: a repository is one that has a commit.
    known = [name for name in facts.get("commits", {}) if found.path.startswith(f"{name}!")]
    archive = max(known, key=len, default=found.path.partition("!")[0])
    bang, member = found.path[len(archive) :][:1], found.path[len(archive) + 1 :]
    page.field("file", archive)
    if archive in facts.get("commits", {}):
        page.field("commit", facts["commits"][archive])
    if bang:
        page.field("member", member)
    page.field("record", f"{found.record:,}")
    page.field("id", found.id.hex())
    page.field("licence", facts["licence"])
    if facts["origin"]:
        page.field("from", facts["origin"])
    for name, value in fields:
        page.field(name, value)


def _origin_fields(corpus: Corpus, part: Part, raw: bool) -> list[tuple[str, str]]:
    row = part.table(("url", "meta")).to_pylist()[0]
    values = [row["url"], json.loads(row["meta"] or "{}")]
    url, meta = values if raw else redact_values(corpus, part, values, numbers=True)
    fields = [] if url is None else [("url", url)]
    for name, value in meta.items():
        fields.append((f"meta.{name}", value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)))
    return fields


def _view_name(corpus: Corpus, part: Part) -> str:
    return "edited view" if pii_steps(corpus, part) else "edited view; no step looked for personal data in this source"


def _show_steps(page: Page, corpus: Corpus, found: Located, part: Part, raw: bool) -> None:
    """Print each step's verdict, columns and edits for one document, the only one in `part`."""
    page.heading("steps")
    steps = {step.directory: step for step in corpus.steps}
    alive = True
    for annotation in part.annotations:
        assert annotation.table is not None
        row = written_values(corpus, part, annotation, raw=raw)
        page.field(annotation.step, annotation.directory.name)
        if DROP in row:
            del row[DROP]
            rule = annotation.table[DROP][0].as_py()
            verdict = "keeps"
            if rule is not None:
                verdict = f"drops: {rule}{_explain_drop(corpus, steps[annotation.directory], rule, part, raw)}"
            elif found.id in (value for name, value in row.items() if name.endswith("_cluster")):
                verdict = "keeps: it is the one kept of its cluster"
            page.field("verdict", verdict if alive else f"none: dropped before ({verdict})", 4)
            alive = alive and rule is None
        page.fields({name: _format_value(corpus, name, row[name]) for name in sorted(row)}, 4)
        if EDITS_COLUMN in annotation.schema:
            _show_edits(page, part, annotation.table[EDITS_COLUMN][0].as_py(), raw)
    if not part.annotations:
        page.line("  no step of this corpus annotates documents of this source")


def _show_edits(page: Page, part: Part, edits: list[dict[str, Any]] | None, raw: bool) -> None:
    edits = edits or []
    page.field("edits", f"{len(edits)}", 4)
    stored = part.table(("text",))["text"][0].as_py().encode() if raw else b""
    for edit in edits[:_EDITS]:
        start, end = edit["start"], edit["end"]
        replaced = f"{stored[start:end].decode()!r} -> " if raw else ""
        page.field(edit["rule"], f"bytes {start:,} to {end:,}: {replaced}{edit['replacement']!r}", 6)
    if len(edits) > _EDITS:
        page.line(f"      {len(edits) - _EDITS:,} more not shown")


def _format_value(corpus: Corpus | None, name: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bytes):
        return winner_name(corpus, value) if corpus is not None and name.endswith(_WINNERS) else value.hex()
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.4g}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,.0f}"
    if isinstance(value, list):
        shown = [_format_value(corpus, name, entry) if isinstance(entry, bytes) else str(entry) for entry in value[:5]]
        return f"{len(value):,} values: {', '.join(shown)}{', ...' if len(value) > 5 else ''}"
    if isinstance(value, Mapping):
        if not all(isinstance(entry, int | float) for entry in value.values()):
            return ", ".join(f"{key}: {_format_value(corpus, key, entry)}" for key, entry in value.items())
        ordered = sorted(value.items(), key=lambda entry: -abs(entry[1]))  # contributions, the largest first
        return ", ".join(f"{key} {number:+.3g}" for key, number in ordered)
    return str(value)


def winner_name(corpus: Corpus, identifier: bytes) -> str:
    """Return the printed id of a document that a deduplication step preferred. If the document is in another
    corpus that a step compared against, add the directory of that corpus. If no corpus contains it, return
    its id in hex with a note.
    """
    try:
        return corpus.printed_id(identifier)
    except UserError:
        for directory in _reference_corpora(corpus):
            try:
                return f"{open_corpus(parse_location(directory)).printed_id(identifier)} of the corpus in {directory}"
            except UserError:
                continue
        return f"{identifier.hex()} of another corpus"


def _reference_corpora(corpus: Corpus) -> list[str]:
    knobs = [value for entry in corpus.manifest.config["steps"] for value in entry.values() if isinstance(value, dict)]
    return list(dict.fromkeys(directory for knob in knobs for directory in knob.get("against", ())))


def _explain_drop(corpus: Corpus, step: PublishedStep, rule: str, part: Part, raw: bool) -> str:
    test = _tests(step).get(rule)
    if test is not None:
        columns, allowed = test
        row = _row(corpus, part, columns, raw)
        values = ", ".join(f"{name} is {_format_value(corpus, name, row[name])}" for name in columns)
        return f": {values}, kept is {allowed}"
    column = winner_column(step.manifest.schema)
    if column is None:
        return ""
    return f", in favour of {_format_value(corpus, column, part.table((column,))[column][0].as_py())}"


def _row(corpus: Corpus, part: Part, columns: Sequence[str], raw: bool) -> dict[str, Any]:
    row = {name: part.table((name,))[name][0].as_py() for name in columns}
    return row if raw else redact_row(corpus, part, row)


def _tests(step: PublishedStep) -> dict[str, tuple[tuple[str, ...], str]]:
    """Return, for each rule of a filter step, the columns that it reads and a description of the values that
    it keeps. The result is empty if the step is not a filter, or if its knobs are no longer valid.
    """
    from pipelines.stages.decide.filter import Filter

    if step.stage != "filter":
        return {}
    try:
        entries = parse(Filter, step.manifest.identity["knobs"], step.label).rules
    except ConfigError:
        return {}
    tests = {}
    for rule in (rule for entry in entries for rule in entry.expand()):
        sides = (("at least", rule.at_least), ("at most", rule.at_most))
        kept = [f"{side} {_format_bound(bound, rule.per)}" for side, bound in sides if bound is not None]
        kept += [f"one of {', '.join(map(str, rule.one_of))}"] if rule.one_of else []
        kept += [f"none of {', '.join(map(str, rule.none_of))}"] if rule.none_of else []
        for request in rule.quantiles():
            among = f" of its {request.per}" if request.per else ""
            kept.append(f"{request.side.replace('_', ' ')} the quantile {request.q:g}{among}")
        kept += [f"judged only where {name} is {' or '.join(map(str, values))}" for name, values in rule.when.items()]
        assert rule.signal is not None
        tests[rule.reason()] = ((rule.signal, *([rule.per] if rule.per else [])), " and ".join(kept))
    return tests


def _format_bound(bound: Bound, per: str) -> str:
    if not isinstance(bound, Mapping):
        return _format_value(None, "", bound)
    bounds = [
        f"{'none' if value is None else _format_value(None, '', value)} for {key}" for key, value in bound.items()
    ]
    return f"({', '.join(bounds)}; by {per})"


def _show_shards(page: Page, corpus: Corpus, found: Located) -> None:
    page.heading("shard rows")
    rows = corpus.shard_rows(found.id)
    for row in rows:
        page.field(row.shard_set, f"{row.split}: {row.path}, row {row.row:,}, {row.tokens:,} tokens")
    if not rows:
        page.line("  none" if corpus.manifest.shard_sets else "  none: the corpus has no shards step")


def _count_by_rule(corpus: Corpus, kind: str) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    rows = (
        corpus.manifest.funnel
        if kind == "dropped"
        else [{"source": s, **f} for s, f in corpus.manifest.sources.items()]
    )
    for row in rows:
        for rule, number in row[kind].items():
            if rule == NOT_SAMPLED:
                continue  # records that were never read; `Corpus.quarantined` does not yield them either
            sources = counts.setdefault(rule, {})
            sources[row["source"]] = sources.get(row["source"], 0) + number
    return counts


def _describe_unknown_rule(rule: str, dropped: dict[str, dict[str, int]], aside: dict[str, dict[str, int]]) -> str:
    totals = {name: sum(sources.values()) for counts in (dropped, aside) for name, sources in counts.items()}
    if not totals:
        return "this corpus dropped no document and set no record aside"
    near = difflib.get_close_matches(rule, list(totals), n=1, cutoff=0.6)
    listed = ", ".join(f"{name} ({number:,})" for name, number in sorted(totals.items(), key=lambda item: -item[1]))
    return f"it dropped nothing{f'; did you mean {near[0]!r}?' if near else ''}; there are: {listed}"


def _title(page: Page, rule: str, sources: dict[str, int], what: str, samples: int) -> None:
    total = sum(sources.values())
    by_source = ", ".join(f"{source} {number:,}" for source, number in sources.items())
    page.line(printable(rule), "bold")
    page.line(f"{total:,} {what} ({by_source}), {min(total, samples):,} of them here")


def _rank(identifier: bytes) -> int:
    return int(xxhash.xxh3_64_intdigest(identifier))


def _show_dropped(page: Page, corpus: Corpus, rule: str, samples: int, sources: Sequence[str], raw: bool) -> None:
    chosen = heapq.nsmallest(
        samples, (entry for source in sources for entry in _dropped_documents(corpus, rule, source))
    )
    places: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for number, (_, _, source, index, row) in enumerate(chosen):
        places.setdefault((source, index), []).append((number, row))
    found: dict[int, tuple[str, Part]] = {}
    for source, index in places:
        part = next(part for part in corpus.parts(source) if part.index == index)
        numbers, rows = zip(*places[source, index], strict=True)
        selected = without_personal_data(corpus, select_rows(part, rows))
        found.update({n: (source, select_rows(selected, [at])) for at, n in enumerate(numbers)})
    for number, (_, identifier, *_) in enumerate(chosen):
        page.heading(corpus.printed_id(identifier))
        _show_sample(page, corpus, rule, found[number][1], raw)


def _dropped_documents(corpus: Corpus, rule: str, source: str) -> Iterator[tuple[int, bytes, str, int, int]]:
    for part in corpus.parts(source):
        rows = pc.indices_nonzero(pc.fill_null(pc.equal(part.drop(), rule), False))
        if len(rows):
            ids = part.table(("id",))["id"].take(rows).to_pylist()
            for identifier, row in zip(ids, rows.to_pylist(), strict=True):
                yield _rank(identifier), identifier, source, part.index, row


def _show_sample(page: Page, corpus: Corpus, rule: str, part: Part, raw: bool) -> None:
    steps = {step.directory: step for step in corpus.steps}
    for annotation in part.annotations:
        if DROP in annotation.schema and annotation.column(DROP)[0].as_py() == rule:
            step = steps[annotation.directory]
            test = _tests(step).get(rule)
            columns = (
                test[0] if test is not None else [n for n in step.manifest.schema if n not in (DROP, EDITS_COLUMN)]
            )
            for name, value in _row(corpus, part, columns, raw).items():
                page.field(name, _format_value(corpus, name, value))
            if test is not None:
                page.field("kept is", test[1])
            break
    _show_text(page, corpus, part, raw, _EXCERPT)


def _show_text(page: Page, corpus: Corpus, part: Part, raw: bool, limits: tuple[int, int]) -> None:
    """Print the beginning of the text of the only document in `part`, up to `limits` (characters, lines): the
    stored text with `raw`, otherwise the edited text. If edits have emptied the text, print it as it was
    before the step that emptied it.
    """
    name = "text" if raw else "edited_text"
    text = part.table((name,))[name][0].as_py()
    if not raw and is_empty(text):
        for position, annotation in enumerate(part.annotations):
            if EDITS_COLUMN in annotation.schema:
                after = replace(part, annotations=part.annotations[: position + 1])
                if is_empty(after.table((name,))[name][0].as_py()):
                    before = replace(part, annotations=part.annotations[:position]).table((name,))[name][0].as_py()
                    size = len(before.encode())
                    page.line(f"  (nothing left after {annotation.step}; {size:,} bytes before it:)")
                    [text] = redact_texts(corpus, part, [before])
                    break
    page.text(text, limits)
