"""Chunks for litdata against the shards: read by the documented layout, and by litdata itself where it is installed."""

import json
from itertools import pairwise

import numpy as np
import pytest

from gristmill.errors import UserError
from gristmill.storage.disk import LocalPath
from pipelines.export import litdata_chunks
from pipelines.export.token_export import export_tokens
from tests.pipelines.export.test_token_export import as_uint32, build_tokens, documents

TYPES = {20: np.uint16, 15: np.int32}  # litdata.constants._TORCH_DTYPES_MAPPING


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return build_tokens(tmp_path_factory.mktemp("chunks"))


def chunks(directory):
    """Yield the documents of each chunk, read from the layout that `litdata.streaming.writer` writes."""
    index = json.loads((directory / "index.json").read_bytes())
    assert index["config"]["item_loader"] == "TokensLoader"
    name, number = index["config"]["data_format"][0].split(":")
    assert name == "no_header_tensor"
    kind = np.dtype(TYPES[int(number)])
    for chunk in index["chunks"]:
        data = (directory / chunk["filename"]).read_bytes()
        assert np.frombuffer(data, np.uint32, 1) == [chunk["chunk_size"]]
        offsets = np.frombuffer(data, np.uint32, chunk["chunk_size"] + 1, 4)
        assert offsets[0] == (1 + chunk["chunk_size"] + 1) * 4
        assert offsets[-1] == len(data) == offsets[0] + chunk["chunk_bytes"]
        assert chunk["dim"] * kind.itemsize == chunk["chunk_bytes"]
        yield [np.frombuffer(data[a:b], kind).tolist() for a, b in pairwise(offsets.tolist())]


@pytest.mark.parametrize("wide", [False, True])
def test_chunks_hold_the_documents_of_the_shards(corpus, tmp_path, monkeypatch, wide):
    if wide:
        monkeypatch.setattr("pipelines.export.token_export.open_corpus", lambda place: as_uint32(corpus))
    export_tokens(corpus.corpus.directory, LocalPath(tmp_path / "e"), "litdata")
    for split in ("train", "validation"):
        found = list(chunks(tmp_path / "e" / split))
        assert len(found) > 1
        assert [document for chunk in found for document in chunk] == documents(corpus, split)
    names = {str(path.relative_to(tmp_path / "e")) for path in (tmp_path / "e").rglob("*") if path.is_file()}
    files = json.loads((tmp_path / "e" / "export.json").read_bytes())["files"]
    assert names == {file["path"] for file in files} | {"export.json"}


@pytest.mark.filterwarnings("ignore")  # those of the library
@pytest.mark.parametrize("block", [7, 16])
def test_litdata_reads_the_blocks(corpus, tmp_path, monkeypatch, block):
    monkeypatch.setenv("LITDATA_CACHE_DIR", str(tmp_path / "cache"))
    litdata = pytest.importorskip("litdata", reason="pip install litdata==0.2.76")
    export_tokens(corpus.corpus.directory, LocalPath(tmp_path / "e"), "litdata")
    loader = litdata.TokensLoader(block_size=block)
    dataset = litdata.StreamingDataset(str(tmp_path / "e" / "train"), item_loader=loader, shuffle=False)
    expected = []
    for chunk in chunks(tmp_path / "e" / "train"):
        ids = [token for document in chunk for token in document]
        expected += [ids[at : at + block] for at in range(0, len(ids) - block + 1, block)]
    assert len(dataset) == len(expected)
    assert [dataset[number].tolist() for number in range(len(expected))] == expected


def test_a_chunk_beyond_its_offsets_is_refused(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(litdata_chunks, "_HIGHEST", 100)
    with pytest.raises(
        UserError, match=r"a chunk of litdata would have [\d,]+ bytes, allowed are 100; build the shards with"
    ):
        export_tokens(corpus.corpus.directory, LocalPath(tmp_path / "e"), "litdata")
