"""Readers of CoNLL and CoNLL-U, formats with one word per line and a blank line between sentences."""

from gristmill.errors import UserError
from trainers.tasks.formats.row_set import RowSet, used_columns
from trainers.tasks.schema.task import Layout

_UNIVERSAL = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_DOCUMENT_MARK = "-DOCSTART-"
DEEPEST = 8
"""The maximum of `depth`; words that are deeper in their tree get this value."""


def read_conll(data: str, layout: Layout, path: str) -> RowSet:
    """Read sentences in CoNLL's form: one word per line, with empty lines or `-DOCSTART-` lines between
    sentences. Columns are separated by a tab or, in a file without tabs, by white space. Each row of the
    result is a sentence. Its columns are numbered from 0, and its value in a column is a list with one entry
    per word.
    """
    separator = "\t" if "\t" in data else None
    sentences: list[tuple[int, list[list[str]]]] = []
    rows: list[list[str]] = []
    first = width = 0
    for number, line in enumerate([*data.split("\n"), ""], start=1):
        fields = line.rstrip("\r").split(separator)
        if not line.strip() or fields[0] == _DOCUMENT_MARK or not any(field.strip() for field in fields):
            if rows:
                sentences.append((first, rows))
            rows = []
            continue
        width = width or len(fields)
        if len(fields) != width:
            raise UserError(f"{path}: line {number}: {len(fields)} columns, expected {width} as in the lines before")
        first = first if rows else number
        rows.append(fields)
    if not sentences:
        raise UserError(f"{path}: holds no sentence")
    columns: dict[str | int, list] = {
        column: [[fields[column] for fields in rows] for _, rows in sentences] for column in range(width)
    }
    return RowSet(path, columns, [place for place, _ in sentences])


def read_conllu(data: str, layout: Layout, path: str) -> RowSet:
    """Read the columns of CoNLL-U by name (https://universaldependencies.org/format.html). `sent_id` is the
    id of the sentence, by default its index. `feats.NAME` is the value of a feature for each word, or `none`;
    `depth` is the number of arcs from a word to the root of its tree, capped at DEEPEST.

    Multiword tokens and empty nodes are skipped. In the result, columns that the task does not use may be
    empty or missing.
    """
    used_names = used_columns(layout)
    names = used_names | {"id"} | ({"head"} if "depth" in used_names else set())
    used = [index for index, name in enumerate(_UNIVERSAL) if name in names]
    sentences: list[tuple[int, str, list[list[str]]]] = []
    rows: list[list[str]] = []
    first, name = 0, ""
    for number, line in enumerate([*data.replace("\r\n", "\n").split("\n"), ""], start=1):
        if not line or line.isspace():
            if rows:
                sentences.append((first, name or str(len(sentences)), rows))
            rows, name = [], ""
        elif line.startswith("#"):
            key, _, value = line[1:].partition("=")
            name = value.strip() if key.strip() == "sent_id" else name
        else:
            if line.count("\t") != len(_UNIVERSAL) - 1:
                raise UserError(f"{path}: line {number}: {line.count(chr(9)) + 1} columns, expected the 10 of CoNLL-U")
            fields = line.split("\t", used[-1] + 1)
            if not fields[0].isdecimal():
                if not fields[0].replace("-", "", 1).replace(".", "", 1).isdecimal():
                    raise UserError(f"{path}: line {number}: id: expected a number such as 3, 3-4 or 5.1")
                continue
            if int(fields[0]) != len(rows) + 1:
                raise UserError(f"{path}: line {number}: id: got {fields[0]}, expected {len(rows) + 1}")
            first = first if rows else number
            rows.append(fields)
    if not sentences:
        raise UserError(f"{path}: holds no sentence")
    columns: dict[str | int, list] = {column: [] for column in _UNIVERSAL}
    for index in used:
        columns[_UNIVERSAL[index]] = [[fields[index] for fields in rows] for *_, rows in sentences]
    columns["sent_id"] = [name for _, name, _ in sentences]
    for feature in (str(name) for name in used_names if str(name).startswith("feats.")):
        columns[feature] = [[_feature(each, feature) for each in words] for words in columns["feats"]]
    if "depth" in used_names:
        heads = zip(sentences, columns["head"], strict=True)
        columns["depth"] = [_depths(its, f"{path}: line {place}") for (place, *_), its in heads]
    return RowSet(path, columns, [place for place, *_ in sentences])


def _feature(text: str, column: str) -> str:
    features = dict(part.partition("=")[::2] for part in text.split("|"))
    return features.get(column.removeprefix("feats."), "none")


def _depths(heads: list[str], where: str) -> list[str]:
    for head in heads:
        if not head.isdecimal() or int(head) > len(heads):
            raise UserError(f"{where}: head: got {head!r}, expected 0 to {len(heads)}")
    depths = []
    for word in range(1, len(heads) + 1):
        depth, above = 0, int(heads[word - 1])
        while above:
            depth, above = depth + 1, int(heads[above - 1])
            if depth > len(heads):
                raise UserError(f"{where}: head: word {word} is not below the root; correct the cycle")
        depths.append(str(min(depth, DEEPEST)))
    return depths
