"""Columns with a reserved meaning."""

DROP = "drop"
"""Null, or the name of the rule that drops the document."""
EDITS_COLUMN = "edits"
"""Edits of the text: a list of {start, end, replacement, rule}, see pipelines.contracts.edits."""
EMPTY = "empty"
"""Suffix of the rule that drops documents that a step's edits leave without anything visible:
`c4_lines.empty`.
"""
