"""Columns with a reserved meaning."""

DROP = "drop"
"""Null, or the name of the rule that drops the document."""
EDITS_COLUMN = "edits"
"""Edits of the text: a list of {start, end, replacement, rule}, see pipelines.contracts.edits."""
EMPTY = "empty"
"""Suffix of the rule that drops documents without visible characters after a step's edits, as in
`c4_lines.empty`.
"""
