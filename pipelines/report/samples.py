"""Read the sample documents of the report. Their texts are edited, clipped and escaped, and personal data
that the pii steps find is replaced.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.terminal import printable
from pipelines.contracts.columns import DROP, EDITS_COLUMN, winner_column
from pipelines.contracts.document import FILE_INDEX, format_id, split_id
from pipelines.contracts.lineage import Corpus, select_rows
from pipelines.contracts.manifest import read_table, schema_facts
from pipelines.contracts.parts import Part
from pipelines.stages.pii.display_redaction import without_personal_data

CLIP_CHARACTERS = 480
"""Maximum number of code points shown of a sample."""


def read_samples(corpus: Corpus, sampled: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the sampled documents for the report, in the given order. `sampled` lists them in the form of
    the funnel's fact `samples`.

    In each result, `step` and `rule` say what dropped the sample, and are null if it was kept. `text_bytes`
    is the size of the whole edited text. `kept_instead` is the printed id of the document in whose favour the
    sample was dropped, or null if none is recorded.
    """
    texts: dict[str, tuple[str, int]] = {}
    winners: dict[str, bytes] = {}
    wanted: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for entry in sampled:
        wanted.setdefault((entry["source"], entry["part"]), []).append(entry)
    for part in corpus.parts():
        if (part.source, part.index) in wanted:
            _read_part(corpus, part, wanted[part.source, part.index], texts, winners)
    names = _printed_ids(corpus, {*map(bytes.fromhex, texts), *winners.values()})
    return [_sample(entry, texts[entry["id"]], winners.get(entry["id"]), names) for entry in sampled]


def _sample(
    entry: Mapping[str, Any], text: tuple[str, int], winner: bytes | None, names: Mapping[bytes, str]
) -> dict[str, Any]:
    return {
        "source": entry["source"],
        "step": entry["step"],
        "rule": entry["rule"],
        "id": printable(names[bytes.fromhex(entry["id"])]),
        "text": printable(text[0][:CLIP_CHARACTERS], lines=True),
        "text_bytes": text[1],
        "clipped": len(text[0]) > CLIP_CHARACTERS,
        "kept_instead": printable(names[winner]) if winner is not None else None,
    }


def _read_part(
    corpus: Corpus,
    part: Part,
    entries: Sequence[Mapping[str, Any]],
    texts: dict[str, tuple[str, int]],
    winners: dict[str, bytes],
) -> None:
    winning = {annotation.step: winner_column(annotation.schema) for annotation in part.annotations}
    columns = {"id", "text", DROP, EDITS_COLUMN, *filter(None, winning.values())}
    part = without_personal_data(corpus, select_rows(part, [entry["row"] for entry in entries], columns))
    edited = part.table(("edited_text",))["edited_text"]
    for entry, text in zip(entries, edited, strict=True):
        data = text.as_buffer()
        # A whole document may be 64 MB. A code point has at most 4 bytes, so this prefix is enough.
        head = bytes(data[: 4 * CLIP_CHARACTERS + 4]).decode("utf-8", "ignore")
        texts[entry["id"]] = (head, len(data))
    for position, entry in enumerate(entries):
        for annotation in part.annotations:
            column = winning[annotation.step]
            if annotation.step == entry["step"] and column is not None:
                winners[entry["id"]] = annotation.column(column)[position].as_py()


def _printed_ids(corpus: Corpus, identifiers: set[bytes]) -> dict[bytes, str]:
    keys = pa.array(sorted({split_id(identifier)[0] for identifier in identifiers}), pa.uint64())
    paths: dict[int, tuple[str, str]] = {}
    for source in corpus.manifest.sources:
        read = corpus.read_step(source)
        for record in read.manifest.files:
            if record.path.startswith("files/"):
                index = read_table(read.directory, record, ("key", "path"), schema_facts(FILE_INDEX))
                for row in index.filter(pc.is_in(index["key"], value_set=keys)).to_pylist():
                    paths[row["key"]] = (source, row["path"])
    keyed = ((raw, *split_id(raw)) for raw in identifiers)
    return {raw: format_id(*paths[key], record) if key in paths else raw.hex() for raw, key, record in keyed}
