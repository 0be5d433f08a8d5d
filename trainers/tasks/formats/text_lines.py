"""Readers of plain text: parallel files, lines matched against a pattern, bracketed trees, one file per
example.
"""

import re

from gristmill.errors import UserError
from gristmill.storage.location import Location
from trainers.tasks.formats.row_set import RowSet
from trainers.tasks.schema.task import Layout

_BRACKETS = re.compile(r"\((\d+) |\)")
_ESCAPES = {"-LRB-": "(", "-RRB-": ")"}


def split_lines(data: str) -> list[str]:
    """Split a text into lines at line feeds only. Carriage returns at the ends of lines are removed."""
    lines = data.split("\n")
    return [line.rstrip("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]


def read_parallel(texts: dict[str, str], paths: dict[str, str]) -> RowSet:
    """Read parallel files: one file per column, one example per line. Raises UserError unless all files have
    the same number of lines.
    """
    columns: dict[str | int, list[str]] = {column: split_lines(text) for column, text in texts.items()}
    counts = {paths[str(column)]: len(lines) for column, lines in columns.items()}
    if len(set(counts.values())) > 1:
        raise UserError(
            f"{', '.join(f'{path} has {count:,} lines' for path, count in counts.items())}; expected as many in each"
        )
    (count,) = set(counts.values())
    return RowSet(" and ".join(counts), columns, range(1, count + 1))


def read_pattern(data: str, layout: Layout, path: str) -> RowSet:
    """Match every line as a whole against the layout's `pattern`, whose named groups become the columns.
    Without a pattern, the whole line is the column `line`. Raises UserError if a line does not match.
    """
    lines = split_lines(data)
    if layout.pattern is None:
        return RowSet(path, {"line": list(lines)}, range(1, len(lines) + 1))
    pattern = re.compile(layout.pattern)
    matches = [pattern.fullmatch(line) for line in lines]
    if None in matches:
        raise UserError(f"{path}: line {matches.index(None) + 1}: does not match `pattern`; correct one of them")
    columns: dict[str | int, list[str]] = {
        name: [match[name] or "" for match in matches if match] for name in pattern.groupindex
    }
    return RowSet(path, columns, range(1, len(lines) + 1))


def read_trees(data: str, layout: Layout, path: str) -> RowSet:
    """Read trees such as `(3 (2 It) (4 (2 is) (3 good)))`, one per line, as in the Stanford Sentiment
    Treebank (Socher et al., 2013; trainDevTestTrees_PTB at https://nlp.stanford.edu/sentiment). The columns
    are `text` and `label`, the label of the root.
    """
    lines = split_lines(data)
    texts, labels = [], []
    for number, line in enumerate(lines, start=1):
        root = _BRACKETS.match(line)
        if root is None or root[1] is None or line.count("(") != line.count(")"):
            raise UserError(f"{path}: line {number}: not a tree; expected one such as (3 (2 It) (4 works))")
        words = _BRACKETS.sub(" ", line).split()
        texts.append(" ".join(_ESCAPES.get(word, word) for word in words))
        labels.append(root[1])
    return RowSet(path, {"text": texts, "label": labels}, range(1, len(lines) + 1))


def read_documents(texts: list[tuple[Location, str]]) -> RowSet:
    """Read one example per file: its `text`, `folder` (the name of its directory) and `name` (the file name
    up to its first dot).
    """
    columns: dict[str | int, list[str]] = {
        "text": [text for _, text in texts],
        "folder": [path.parent.name for path, _ in texts],
        "name": [path.name.partition(".")[0] for path, _ in texts],
    }
    return RowSet(str(texts[0][0].parent), columns, range(1, len(texts) + 1), "file")
