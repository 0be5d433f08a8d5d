"""The history of one document as values: where it comes from, what every step wrote, and what became of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipelines.contracts.columns import DROP, EDITS_COLUMN
from pipelines.contracts.lineage import Corpus, Quarantined, select_rows
from pipelines.contracts.parts import Annotation, Part
from pipelines.contracts.reads import EDITED_TEXT
from pipelines.stages.pii.display_redaction import redact_texts, without_personal_data


@dataclass(frozen=True)
class DocumentHistory:
    """A record of a source. `reason` is the rule that dropped it, or why it was quarantined when it was read; None if it is
    kept. `steps` has the columns that each step wrote, by step. `text` is the edited text with personal data redacted; None
    if it was quarantined.
    """

    id: str
    source: str
    path: str
    record: int
    reason: str | None
    steps: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    text: str | None = None


def document_history(corpus: Corpus, identifier: str) -> DocumentHistory:
    """Return the history of a document: `source/path#record`, or its id in hex. Raises UserError if there is none."""
    located = corpus.find(identifier)
    origin = (located.printed, located.source, located.path, located.record)
    if isinstance(located, Quarantined):
        return DocumentHistory(*origin, located.reason)
    part = without_personal_data(corpus, select_rows(located.part, [located.row]))
    steps = {annotation.step: written_values(corpus, part, annotation) for annotation in part.annotations}
    text = part.table((EDITED_TEXT,))[EDITED_TEXT.name][0].as_py()
    return DocumentHistory(*origin, part.drop()[0].as_py(), steps, text)


def written_values(corpus: Corpus, part: Part, annotation: Annotation, *, raw: bool = False) -> dict[str, Any]:
    """Return what a step wrote for the only document of a part, edits excepted. Unless `raw`, personal data in texts is
    redacted by the source's pii steps.
    """
    assert annotation.table is not None
    row = annotation.table.to_pylist()[0]
    row.pop(EDITS_COLUMN, None)
    texts = {name: value for name, value in row.items() if isinstance(value, str) and name != DROP and not raw}
    row.update(zip(texts, redact_texts(corpus, part, list(texts.values())), strict=True))
    return dict(row)
