"""The dataset card of an export: a README.md for people and for Hugging Face `load_dataset`."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipelines.contracts.given_split import SPLITS
from pipelines.contracts.manifest import CorpusManifest
from pipelines.export.export_directory import ExportedFile, markdown_cell
from pipelines.export.left_out import LeftOut

_NAMES = {"float": "float32", "double": "float64", "halffloat": "float16"}  # types that datasets names differently
_ALL = "default"  # the configuration that load_dataset opens if none is named


def dataset_card(
    manifest: CorpusManifest,
    schema: pa.Schema,
    sources: Mapping[str, Mapping[str, Any]],
    files: Sequence[ExportedFile],
    left_out: LeftOut,
    *,
    with_columns: bool = True,
) -> str:
    """Return the dataset card of an export. `sources` maps each source to its facts, as in export.json.
    Unless `with_columns` is False, the front matter lists the types of all columns, because a reader of JSON
    lines cannot infer the type of a column that is null throughout the first file.
    """
    configs, infos = [], []
    features = [f"  - name: {field.name}\n    dtype: {_dtype(field.type)}" for field in schema]
    for name, patterns in _configurations(files).items():
        configs += [f"- config_name: {json.dumps(name)}", "  data_files:"]
        configs += [f"  - split: {split}\n    path: {json.dumps(pattern)}" for split, pattern in patterns.items()]
        infos += [f"- config_name: {json.dumps(name)}", "  features:", *features] if with_columns else []
    rows = [
        f"| {name} | {facts['documents']:,} | {facts['text_bytes']:,} | "
        f"{markdown_cell(facts['licence'])} | {markdown_cell(facts['origin'])} |"
        for name, facts in sources.items()
    ]
    return "\n".join(
        [
            "---",
            f"pretty_name: {json.dumps(manifest.corpus)}",
            "configs:" if configs else "configs: []",
            *configs,
            "dataset_info:" if infos else "dataset_info: []",
            *infos,
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
            *left_out.markdown(),
        ]
    )


def _configurations(files: Sequence[ExportedFile]) -> dict[str, dict[str, str]]:
    """Return the glob pattern of each split's files, keyed by configuration and then by split. The
    configuration `default` covers all sources. If there are several sources, each of them also has a
    configuration of its own, unless it is named `default`.
    """
    found: dict[str, dict[str, str]] = {_ALL: {}}
    several = len({file.source for file in files}) > 1
    for file in sorted(files, key=lambda file: SPLITS.index(file.split)):
        ending = file.path[file.path.index(".") :]  # names of sources have no dots
        found[_ALL][file.split] = f"data/*{ending}"
        if several and file.source != _ALL:
            found.setdefault(file.source, {})[file.split] = f"data/?????-{file.source}{ending}"
    return found if files else {}


def _dtype(kind: pa.DataType) -> str:
    return _NAMES.get(str(kind), str(kind))
