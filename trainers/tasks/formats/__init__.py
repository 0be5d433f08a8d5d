"""Readers of task files, by format.

To add a text format, add its reader to TEXT_FORMATS and its name to `Format` in `trainers.tasks.schema.task`.
"""

from collections.abc import Callable

from trainers.tasks.formats import delimited, json_rows, tagged_words, text_lines
from trainers.tasks.formats.row_set import RowSet
from trainers.tasks.schema.task import Layout

TEXT_FORMATS: dict[str, Callable[[str, Layout, str], RowSet]] = {
    "jsonl": json_rows.read_json_lines,
    "json": json_rows.read_json_list,
    "squad": json_rows.read_squad,
    "multirc": json_rows.read_multirc,
    "record": json_rows.read_record,
    "dialogues": json_rows.read_dialogues,
    "webquestions": json_rows.read_webquestions,
    "tsv": delimited.read_tsv,
    "csv": delimited.read_csv,
    "conll": tagged_words.read_conll,
    "conllu": tagged_words.read_conllu,
    "lines": text_lines.read_pattern,
    "trees": text_lines.read_trees,
}
"""Readers of text by format. Parquet, parallel files, documents and generated rows have separate readers."""
