"""Redaction of texts for display. Everything that the corpus's `pii` steps find is replaced, including what a
step only annotates.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.config import parse
from pipelines.contracts.columns import DROP, EDITS_COLUMN
from pipelines.contracts.lineage import Corpus, PublishedStep, select_rows
from pipelines.contracts.parts import Part
from pipelines.contracts.reads import TEXT
from pipelines.stages.pii.personal_fields import replace_texts, texts_in
from pipelines.stages.pii.pii import Pii
from pipelines.stages.pii.recognizers import LEVELS, PATTERN_ENTITIES


def redact_texts(corpus: Corpus, part: Part, values: list[str], *, names: bool = True) -> list[str]:
    """Return `values`, short texts from the source of `part`, with placeholders in place of everything that
    the part's pii steps find. If `names` is False, the steps use no NER model. Lone surrogates become
    backslash escapes.
    """
    values = [value.encode("utf-8", "backslashreplace").decode() for value in values]  # a lone surrogate is no text
    for _, step in pii_steps(corpus, part) if values else ():
        stage = _with_placeholders(step, names)
        if stage is not None:
            values = [value for value, _ in stage.search_values(values, [b"\0" * 16] * len(values))]
    return values


def redact_values(corpus: Corpus, part: Part, values: list[Any], *, numbers: bool = False) -> list[Any]:
    """Return `values` with all strings in them redacted by `redact_texts`, also those in lists, tuples and
    dictionaries, the keys included. With `numbers`, integers of six or more digits are redacted too.
    """
    texts = list(dict.fromkeys(texts_in(values, numbers)))
    redacted = dict(zip(texts, redact_texts(corpus, part, texts), strict=True))
    if all(text == other for text, other in redacted.items()):
        return values
    replaced: list[Any] = replace_texts(values, redacted, numbers)
    return replaced


def redact_row(corpus: Corpus, part: Part, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return `row`, which maps columns of one document of `part` to their values, with the values redacted by
    `redact_values`. The column DROP, which names the rule that dropped the document, is not redacted.
    """
    names = [name for name in row if name != DROP]
    shown = redact_values(corpus, part, [row[name] for name in names])
    return {**row, **dict(zip(names, shown, strict=True))}


def pii_steps(corpus: Corpus, part: Part) -> list[tuple[int, PublishedStep]]:
    """Return the `pii` steps of a part, each preceded by its index in `part.annotations`."""
    by_directory = {step.directory: step for step in corpus.steps if step.stage == "pii"}
    positions = [(i, by_directory.get(annotation.directory)) for i, annotation in enumerate(part.annotations)]
    return [(i, step) for i, step in positions if step is not None]


def _only_annotates(step: PublishedStep) -> bool:
    """Return whether any action of a `pii` step is `annotate`, which leaves what the step finds in the text."""
    knobs = step.manifest.identity["knobs"]
    return "annotate" in (knobs.get("action"), *knobs.get("actions", {}).values())


def _with_placeholders(step: PublishedStep, names: bool = True) -> Pii | None:
    """Return the stage of a pii step, changed to put placeholders in place of all that it finds. With
    `names` false, the stage uses no NER model; None if nothing is left to find.
    """
    knobs = step.manifest.identity["knobs"] | {"action": "placeholder", "actions": {}, "fields": []}
    if not names and knobs.get("ner_model"):
        searched = LEVELS.get(knobs.get("level", ""), knobs["entities"])
        entities = [each for each in searched if each in PATTERN_ENTITIES]
        scores = {each: score for each, score in knobs.get("score_thresholds", {}).items() if each in entities}
        knobs |= {"ner_model": "", "level": "", "entities": entities, "score_thresholds": scores}
        if not entities:
            return None
    return parse(Pii, knobs, step.label)


def _detect(step: PublishedStep, part: Part) -> pa.Array:
    """Return edits of the stored text of `part`, one value per row, that put placeholders in place of
    everything that the pii step `step` finds. The part must have only the annotations that precede the step.
    """
    stage = _with_placeholders(step)
    assert stage is not None
    text = stage.input_text if part.annotations else TEXT
    table = stage.annotate(part.table(("id", text)).rename_columns(["id", stage.text]))
    edits = table[EDITS_COLUMN].combine_chunks()
    edits = edits.chunk(0) if isinstance(edits, pa.ChunkedArray) else edits
    return part.in_stored_text(edits, text)


def without_personal_data(corpus: Corpus, part: Part) -> Part:
    """Return a part with edits that redact everything that its pii steps find, even where a step only
    annotates or its `where` excludes the row. The part must be in memory.
    """
    for position, step in pii_steps(corpus, part):
        annotation = part.annotations[position]
        assert annotation.table is not None
        edits = annotation.table[EDITS_COLUMN].combine_chunks()
        hidden = np.asarray(pc.is_null(edits), bool) | _only_annotates(step)
        if hidden.any():
            before = replace(part, annotations=part.annotations[:position])
            redactions = _detect(step, select_rows(before, np.flatnonzero(hidden).tolist()))
            places = np.where(hidden, len(edits) + hidden.cumsum() - 1, np.arange(len(edits)))
            column = pa.concat_arrays([edits, redactions.cast(edits.type)]).take(pa.array(places))
            table = annotation.table.set_column(
                annotation.table.schema.get_field_index(EDITS_COLUMN), EDITS_COLUMN, column
            )
            annotations = list(part.annotations)
            annotations[position] = replace(annotation, table=table)
            part = replace(part, annotations=tuple(annotations))
    return part
