"""The dataset card of an export, README.md, for readers and for Hugging Face `load_dataset`."""

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from pipelines.contracts.manifest import CorpusManifest

_NAMES = {"float": "float32", "double": "float64", "halffloat": "float16"}  # types that datasets names differently


def dataset_card(
    manifest: CorpusManifest, schema: pa.Schema, sources: Mapping[str, Mapping[str, Any]], suffix: str
) -> str:
    """Return the card of an export of `sources` (their facts, as in export.json) with the columns of
    `schema`.

    The front matter lists the data files and the types of all columns. A reader of JSON lines could not
    otherwise know the type of a column that is null in the first file.
    """
    features = [f"  - name: {field.name}\n    dtype: {_dtype(field.type)}" for field in schema]
    rows = [
        f"| {name} | {facts['documents']:,} | {facts['text_bytes']:,} | {_cell(facts['licence'])} | {_cell(facts['origin'])} |"
        for name, facts in sources.items()
    ]
    return "\n".join(
        [
            "---",
            f"pretty_name: {json.dumps(manifest.corpus)}",
            "configs:",
            "- config_name: default",
            "  data_files:",
            "  - split: train",
            f"    path: data/*{suffix}",
            "dataset_info:",
            "  features:",
            *features,
            "---",
            "",
            f"# {manifest.corpus}",
            "",
            f"Exported by gristmill from the corpus `{manifest.corpus}`, fingerprint `{manifest.fingerprint}`.",
            "`export.json` lists all files with their checksums. `id` names the record that a document came from;",
            "`meta` holds the other fields of that record as a JSON string.",
            "",
            "| source | documents | bytes of text | licence | origin |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _dtype(kind: pa.DataType) -> str:
    return _NAMES.get(str(kind), str(kind))


def _cell(value: str) -> str:
    """Escape a text of the corpus file for a Markdown table."""
    for old, new in (("&", "&amp;"), ("<", "&lt;"), ("|", "&#124;"), ("\r", " "), ("\n", " ")):
        value = value.replace(old, new)
    return value
