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
    """Return the definition of a step's columns, taken from the step's identity. Its inputs are left out,
    because the same measurement of other documents has the same meaning.
    """
    return {name: identity[name] for name in ("stage", "version", "knobs", "depends")}


def winner_column(names: Iterable[str]) -> str | None:
    """Return which of a step's columns records the document that the step keeps instead of each duplicate:
    `*_winner`, or `*_cluster` if it keeps one document of each cluster. Return None if there is no such
    column.
    """
    written = list(names)
    return next((name for end in ("_winner", "_cluster") for name in written if name.endswith(end)), None)
