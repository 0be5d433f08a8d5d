"""Names of columns that all steps share, the definition of a step's other columns (`definition_of`), and the
column that names the document kept instead of a duplicate (`winner_column`).
"""

from collections.abc import Iterable, Mapping
from typing import Any

DROP = "drop"
"""The column holds null, or the name of the rule that drops the document."""
EDITS_COLUMN = "edits"
"""The column holds the edits of the text: a list of {start, end, replacement, rule}, see pipelines.contracts.edits."""
EMPTY = "empty"
"""Suffix of the rule that drops documents without visible characters after a step's edits, as in
`c4_lines.empty`.
"""


def definition_of(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definition of a step's columns: the step's identity without its inputs, because a
    measurement means the same for other documents.
    """
    return {name: identity[name] for name in ("stage", "version", "knobs", "depends")}


def winner_column(names: Iterable[str]) -> str | None:
    """Return the name of the column that records, for each duplicate, the document kept instead: `*_winner`
    or, in a step that keeps one document of each cluster, `*_cluster`. Return None if `names` contains
    neither.
    """
    written = list(names)
    return next((name for end in ("_winner", "_cluster") for name in written if name.endswith(end)), None)
