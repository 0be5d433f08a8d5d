"""Croissant metadata against the required properties of the specification and against the files that it describes."""

import gzip
import hashlib
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.export.text_export import export_corpus
from pipelines.planning.corpus import CorpusConfig, StepConfig
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.reading.sources.source import Source
from pipelines.stages.measure.quality_signals import QualitySignals

REQUIRED = {
    "sc:Dataset": {"@context", "@type", "conformsTo", "name", "description", "license", "version"},
    "cr:FileObject": {"@type", "@id", "name", "contentUrl", "encodingFormat", "sha256"},
    "cr:FileSet": {"@type", "@id", "name", "includes", "encodingFormat"},
    "cr:RecordSet": {"@type", "@id", "name", "field"},
    "cr:Field": {"@type", "@id", "name", "dataType", "source"},
}
"""Properties of each class that the specification requires; of a dataset, those that a corpus knows."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("croissant")
    for name in ("web", "books"):
        rows = [{"text": f"{name} {number} of several", "url": f"u{number}"} for number in range(5)]
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = (
        Source("web", str(root / "web.jsonl"), "jsonl", licence="CC0-1.0"),
        Source("books", str(root / "books.jsonl"), "jsonl", licence="MIT", origin='"a" <shelf>'),
    )
    steps = (StepConfig("quality_signals", QualitySignals(), "quality_signals", ("web",)),)
    config = CorpusConfig("crossed", str(root / "out"), sources, steps)
    build(make_plan(config, take_inventory(sources, root / "out")), LocalCluster(), lambda line: None)
    return root / "out"


def nodes(value):
    if isinstance(value, list):
        return [node for entry in value for node in nodes(entry)]
    if not isinstance(value, dict):
        return []
    return [value] * ("@type" in value) + [n for key, each in value.items() if key != "@context" for n in nodes(each)]


def test_required_properties_are_there_and_references_resolve(corpus: Path, tmp_path: Path) -> None:
    export_corpus(corpus, tmp_path / "e", "parquet", None, ["word_count", "alpha_word_ratio"])
    metadata = json.loads((tmp_path / "e" / "croissant.json").read_text())
    found = nodes(metadata)
    assert {node["@type"] for node in found} == REQUIRED.keys()
    for node in found:
        assert REQUIRED[node["@type"]] <= node.keys()
    identifiers = [node["@id"] for node in found if "@id" in node]
    assert len(set(identifiers)) == len(identifiers)
    for field in metadata["recordSet"][0]["field"]:
        assert field["source"]["fileSet"]["@id"] in identifiers
    assert metadata["recordSet"][0]["key"]["@id"] in identifiers
    assert (metadata["name"], metadata["license"]) == ("crossed", ["CC0-1.0", "MIT"])
    assert 'origin "a" <shelf>' in metadata["description"]


@pytest.mark.parametrize("written_as", ["parquet", "jsonl"])
def test_files_and_fields_are_those_of_the_export(corpus: Path, tmp_path: Path, written_as: str) -> None:
    export_corpus(corpus, tmp_path / "e", written_as, None, ["word_count", "alpha_word_ratio"])
    metadata = json.loads((tmp_path / "e" / "croissant.json").read_text())
    files = {entry["contentUrl"]: entry for entry in metadata["distribution"] if entry["@type"] == "cr:FileObject"}
    assert files.keys() == {f"data/{path.name}" for path in (tmp_path / "e" / "data").iterdir()}
    for name, entry in files.items():
        content = (tmp_path / "e" / name).read_bytes()
        assert entry["sha256"] == hashlib.sha256(content).hexdigest()
        assert entry["contentSize"] == f"{len(content)} B"
    includes = next(entry["includes"] for entry in metadata["distribution"] if entry["@type"] == "cr:FileSet")
    assert {f"data/{path.name}" for path in (tmp_path / "e").glob(includes)} == files.keys()
    encodings = {entry["encodingFormat"] for entry in metadata["distribution"]}
    assert encodings == {"application/x-parquet" if written_as == "parquet" else "application/jsonlines"}
    types = {pa.int32(): "sc:Integer", pa.int64(): "sc:Integer", pa.float32(): "sc:Float", pa.float64(): "sc:Float"}
    fields = {f["source"]["extract"]["column"]: f["dataType"] for f in metadata["recordSet"][0]["field"]}
    first = tmp_path / "e" / next(iter(files))
    if written_as == "parquet":
        assert fields == {field.name: types.get(field.type, "sc:Text") for field in pq.read_schema(first)}
    else:
        assert list(fields) == list(json.loads(gzip.decompress(first.read_bytes()).partition(b"\n")[0]))
    assert {"sc:Integer", "sc:Float"} <= set(fields.values())


def test_licences_that_are_not_stated_are_not_claimed(corpus: Path, tmp_path: Path) -> None:
    export_corpus(corpus, tmp_path / "one", "parquet", ["web"])
    assert json.loads((tmp_path / "one" / "croissant.json").read_text())["license"] == "CC0-1.0"


@pytest.mark.parametrize("written_as", ["parquet", "jsonl"])
def test_its_own_library_reads_the_documents(corpus: Path, tmp_path: Path, written_as: str) -> None:
    library = pytest.importorskip("mlcroissant", reason="mlcroissant is not among the dependencies")
    export_corpus(corpus, tmp_path / "e", written_as, None)
    dataset = library.Dataset(str(tmp_path / "e" / "croissant.json"))
    assert not dataset.metadata.ctx.issues.errors
    records = list(dataset.records("documents"))
    assert sorted(record["documents/text"].decode() for record in records) == sorted(
        f"{name} {number} of several" for name in ("web", "books") for number in range(5)
    )
