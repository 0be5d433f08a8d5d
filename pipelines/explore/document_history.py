"""The history of one document as Python values: where it came from, what each step wrote about it, and why it
was dropped or quarantined, if it was.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipelines.contracts.columns import EDITS_COLUMN
from pipelines.contracts.lineage import Corpus, Quarantined, select_rows
from pipelines.contracts.parts import Annotation, Part
from pipelines.contracts.reads import EDITED_TEXT
from pipelines.stages.pii.display_redaction import redact_row, without_personal_data


@dataclass(frozen=True)
class DocumentHistory:
    """The history of one record of a source. `id` is its printed id, `source/path#record`. `reason` is the
    rule that dropped the record, or the reason why it was quarantined; None if it is kept. `steps` maps the
    name of each step to the columns that it wrote, with their values, but without edits. `text` is the edited
    text, or None if the record was quarantined. In `text` and in the strings of columns, also those in lists,
    structs and maps, personal data that the source's pii steps find is redacted.
    """

    id: str
    source: str
    path: str
    record: int
    reason: str | None
    steps: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    text: str | None = None


def document_history(corpus: Corpus, identifier: str) -> DocumentHistory:
    """Return the history of the document or quarantined record that `identifier` names, either as
    `source/path#record` or by its id in hex. Raises UserError if the corpus has no such document.
    """
    located = corpus.find(identifier)
    origin = (located.printed, located.source, located.path, located.record)
    if isinstance(located, Quarantined):
        return DocumentHistory(*origin, located.reason)
    part = without_personal_data(corpus, select_rows(located.part, [located.row]))
    steps = {annotation.step: written_values(corpus, part, annotation) for annotation in part.annotations}
    text = part.table((EDITED_TEXT,))[EDITED_TEXT.name][0].as_py()
    return DocumentHistory(*origin, part.drop()[0].as_py(), steps, text)


def written_values(corpus: Corpus, part: Part, annotation: Annotation, *, raw: bool = False) -> dict[str, Any]:
    """Return the values that a step wrote for one document, by column and without edits. `part` must contain
    only this document, and the table of `annotation` must be in memory. Unless `raw`, personal data in the
    strings of columns other than `drop` is redacted.
    """
    assert annotation.table is not None
    row = annotation.table.to_pylist()[0]
    row.pop(EDITS_COLUMN, None)
    return dict(row) if raw else redact_row(corpus, part, row)
