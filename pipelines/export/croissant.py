"""Croissant metadata for an export as Parquet or JSON lines, in version 1.0 of the format
(https://docs.mlcommons.org/croissant/docs/croissant-spec.html).

The publisher of a dataset must add `url`, `creator` and `datePublished`, which the specification requires,
and `license` if the corpus states no licence.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipelines.contracts.manifest import CorpusManifest
from pipelines.export.export_directory import ExportedFile
from pipelines.export.export_formats import TEXT_FORMATS

_TERMS = (
    "citeAs", "column", "equivalentProperty", "extract", "field", "fileObject", "fileProperty", "fileSet", "format",
    "includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField", "path", "recordSet", "references", "regex",
    "repeated", "replace", "samplingRate", "separator", "source", "subField", "transform",
)  # fmt: skip
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{term: f"cr:{term}" for term in _TERMS},
}
"""The context that the specification recommends."""

# Media types that Croissant names. Gzip is not one: mlcroissant recognises it by the bytes.
_ENCODINGS = {"parquet": "application/x-parquet", "jsonl": "application/jsonlines"}
_DOCUMENTS = "documents"
_TYPES = (
    (pa.types.is_boolean, "sc:Boolean"),
    (pa.types.is_integer, "sc:Integer"),
    (pa.types.is_floating, "sc:Float"),
    (pa.types.is_date, "sc:Date"),
    (pa.types.is_timestamp, "sc:Date"),
)
_MEANINGS = {
    "id": "The record that the document came from: source, path and number in its file.",
    "text": "The text of the document, as edited by the steps of the corpus.",
    "source": "The source of the document.",
    "url": "The URL of the document.",
    "meta": "The other fields of the record, as a JSON object.",
    "split": "The split that the source gives; null if it gives none.",
}


def croissant(
    manifest: CorpusManifest,
    schema: pa.Schema,
    sources: Mapping[str, Mapping[str, Any]],
    files: Sequence[ExportedFile],
    written_as: str,
) -> str:
    """Return the content of `croissant.json` for an export. `sources` maps each source to its facts, as in
    export.json. `written_as` is the format of the files, `parquet` or `jsonl`.
    """
    encoding, file_set = _ENCODINGS[written_as], f"{written_as}-files"
    licences = list(dict.fromkeys(f["licence"] for f in sources.values() if f["licence"] not in ("", "unknown")))
    description = "; ".join(
        f"{name}: {facts['documents']:,} documents, licence {facts['licence']}, origin {facts['origin'] or 'not stated'}"
        for name, facts in sources.items()
    )
    metadata: dict[str, Any] = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": manifest.corpus,
        "description": f"Texts of the corpus {manifest.corpus}, exported by gristmill. {description}.",
        "version": f"1.0.0+{manifest.fingerprint[:12]}",
        "isLiveDataset": False,
    }
    if licences:
        metadata["license"] = licences if len(licences) > 1 else licences[0]
    metadata["distribution"] = [*(_file(file, encoding) for file in files), _file_set(file_set, encoding, written_as)]
    metadata["recordSet"] = [
        {
            "@type": "cr:RecordSet",
            "@id": _DOCUMENTS,
            "name": _DOCUMENTS,
            "key": {"@id": f"{_DOCUMENTS}/id"},
            "field": [_field(field, file_set) for field in schema],
        }
    ]
    return json.dumps(metadata, indent=1, ensure_ascii=False) + "\n"


def _file(file: ExportedFile, encoding: str) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": file.path,
        "name": file.path.rpartition("/")[2],
        "description": f"{file.documents:,} documents of {file.source}, split {file.split}",
        "contentUrl": file.path,
        "contentSize": f"{file.bytes} B",
        "encodingFormat": encoding,
        "sha256": file.sha256,
    }


def _file_set(name: str, encoding: str, written_as: str) -> dict[str, Any]:
    return {
        "@type": "cr:FileSet",
        "@id": name,
        "name": name,
        "description": "All files with documents of the export.",
        "encodingFormat": encoding,
        "includes": f"data/*{TEXT_FORMATS[written_as].suffix}",
    }


def _field(field: pa.Field, file_set: str) -> dict[str, Any]:
    kind = next((name for is_kind, name in _TYPES if is_kind(field.type)), "sc:Text")
    return {
        "@type": "cr:Field",
        "@id": f"{_DOCUMENTS}/{field.name}",
        "name": field.name,
        "description": _MEANINGS.get(field.name, f"The column {field.name} that a step of the corpus wrote."),
        "dataType": kind,
        "source": {"fileSet": {"@id": file_set}, "extract": {"column": field.name}},
    }
