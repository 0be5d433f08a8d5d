"""Shards for MosaicML Streaming, read by their documented layout, against the same corpus exported as
Parquet.
"""

import hashlib
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import pipelines
from gristmill.errors import UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import read_json
from pipelines.export import mds_shards
from pipelines.export.text_export import export_corpus

CORPUS = """
name: samples
output: {root}/out
sources:
  - name: web
    root: {root}/web.jsonl
    format: jsonl
    part_bytes: 3000
    split: {{kind: field, field: subset, validation: [dev]}}
  - {{name: code, root: {root}/code, format: text}}
steps:
  - quality_signals: {{}}
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    root = tmp_path_factory.mktemp("samples")
    rows = [
        {"text": f"Zeile {n} ש \U0001f468 {'words ' * (n % 7)}", "subset": "dev" if n % 5 == 0 else "a", "url": None}
        for n in range(90)
    ]
    (root / "web.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (root / "code").mkdir()
    (root / "code" / "a.py").write_text("x = 1\n")
    (root / "corpus.yaml").write_text(CORPUS.format(root=root))
    return pipelines.build(root / "corpus.yaml", in_process=True).corpus.directory


def read_mds(directory):
    """Yield the samples of a directory, read from the layout in the library's README as its `MDSReader` does."""
    index = json.loads((directory / "index.json").read_bytes())
    assert index["version"] == 2
    for shard in index["shards"]:
        path = directory / shard["raw_data"]["basename"]
        data = path.read_bytes()
        assert (shard["version"], shard["format"], shard["zip_data"]) == (2, "mds", None)
        assert len(data) == shard["raw_data"]["bytes"]
        assert shard["raw_data"]["hashes"] == {"sha256": hashlib.sha256(data).hexdigest()}
        assert np.frombuffer(data, np.uint32, 1) == [shard["samples"]]
        offsets = np.frombuffer(data, np.uint32, shard["samples"] + 1, 4)
        config = json.loads(data[4 + 4 * len(offsets) : offsets[0]])
        assert config == {name: shard[name] for name in config}
        assert offsets[-1] == len(data)
        for begin, end in pairwise(offsets.tolist()):
            yield decoded(data[begin:end], shard)


def decoded(sample, shard):
    sizes, at = [], 0
    for size in shard["column_sizes"]:
        if not size:
            size, at = int(np.frombuffer(sample, np.uint32, 1, at)[0]), at + 4
        sizes.append(size)
    values = {}
    for name, encoding, size in zip(shard["column_names"], shard["column_encodings"], sizes, strict=True):
        value, at = sample[at : at + size], at + size
        values[name] = value.decode() if encoding == "str" else json.loads(value)
    assert at == len(sample)
    return values


def test_samples_are_the_documents(corpus, tmp_path):
    export_corpus(corpus, LocalPath(tmp_path / "rows"), "parquet", None, ["word_count"])
    files = export_corpus(corpus, LocalPath(tmp_path / "mds"), "mds", None, ["word_count"])
    assert {path.name for path in (tmp_path / "mds").iterdir()} == {"README.md", "export.json", "train", "validation"}
    rows = {"train": [], "validation": []}
    for path in sorted((tmp_path / "rows" / "data").iterdir()):
        rows["validation" if ".validation." in path.name else "train"] += pq.read_table(path).to_pylist()
    for split, documents in rows.items():
        found = list(read_mds(tmp_path / "mds" / split))
        key = lambda row: row["id"]  # noqa: E731
        assert sorted(found, key=key) == sorted(documents, key=key)
    assert len(rows["validation"]) == 18
    assert [file.path for file in files][-1].startswith("train/0000")
    record = read_json(LocalPath(tmp_path / "mds" / "export.json"))
    assert {file["path"] for file in record["files"]} == {
        str(path.relative_to(tmp_path / "mds")) for path in (tmp_path / "mds").rglob("*.mds")
    }


def test_columns_that_are_never_null_are_str(corpus, tmp_path):
    export_corpus(corpus, LocalPath(tmp_path / "e"), "mds", ["code"], ["word_count"])
    (shard,) = json.loads(Path(tmp_path / "e" / "train" / "index.json").read_bytes())["shards"]
    assert shard["column_names"] == sorted(shard["column_names"])
    encodings = dict(zip(shard["column_names"], shard["column_encodings"], strict=True))
    assert encodings == {
        "id": "str", "meta": "str", "source": "str", "split": "json", "text": "str", "url": "json", "word_count": "json"
    }  # fmt: skip


def test_a_shard_beyond_its_offsets_is_refused(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(mds_shards, "_HIGHEST", 500)
    with pytest.raises(
        UserError, match=r"a shard of mds would have [\d,]+ bytes, allowed are 500; build the corpus with"
    ):
        export_corpus(corpus, LocalPath(tmp_path / "e"), "mds", ["web"])
