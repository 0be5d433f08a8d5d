"""Exported tokens, read as nanoGPT and Megatron-LM read them, against the shards."""

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import pipelines
from gristmill.errors import ConflictError, UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import file_checksum, read_json
from pipelines.__main__ import main
from pipelines.export.token_export import export_tokens

CORPUS = """
name: tokens
output: {root}/out
sources:
  - {{name: web, root: {root}/web, format: jsonl, part_bytes: 3000}}
  - {{name: code, root: {root}/code, format: text}}
steps:
  - learn_tokenizer: {{kind: bytes}}
  - shards: {{tokenizer: learn_tokenizer, validation_share: 0.2, shard_bytes: 2000}}
"""


def build_tokens(root):
    for name in ("web", "code"):
        (root / name).mkdir()
    lines = [f'{{"text": "Line {n} {"of words " * (n % 9)}"}}' for n in range(120)]
    (root / "web" / "a.jsonl").write_text("\n".join(lines))
    (root / "code" / "a.py").write_text("print('hello')\n")
    (root / "corpus.yaml").write_text(CORPUS.format(root=root))
    return pipelines.build(root / "corpus.yaml", in_process=True)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return build_tokens(tmp_path_factory.mktemp("tokens"))


def documents(corpus, split, sources=None):
    found = []
    for source in sources or corpus.sources:
        for shard in corpus.shards(split=split, sources=[source]):
            found += [[*ids.tolist(), 2] for ids in np.split(shard.tokens, shard.offsets[1:-1])]
    return found


def read_megatron(prefix: Path):
    """Return the documents of a Megatron-LM dataset, read as its IndexedDataset does."""
    with open(prefix.with_suffix(".idx"), "rb") as file:
        assert file.read(9) == b"MMIDIDX\x00\x00"
        assert struct.unpack("<Q", file.read(8)) == (1,)
        kind = {4: np.int32, 8: np.uint16}[struct.unpack("<B", file.read(1))[0]]
        sequences, borders = struct.unpack("<QQ", file.read(16))
        lengths = np.frombuffer(file.read(4 * sequences), np.int32)
        pointers = np.frombuffer(file.read(8 * sequences), np.int64)
        limits = np.frombuffer(file.read(8 * borders), np.int64)
        assert not file.read()
    ids = prefix.with_suffix(".bin").read_bytes()
    each = [np.frombuffer(ids, kind, count, start).tolist() for count, start in zip(lengths, pointers, strict=True)]
    assert sum(lengths) * np.dtype(kind).itemsize == len(ids)
    assert limits.tolist() == list(range(sequences + 1))
    return each


def test_nanogpt(corpus, tmp_path):
    export_tokens(corpus.corpus.directory, LocalPath(tmp_path / "e"), "nanogpt")
    for name, split in (("train", "train"), ("val", "validation")):
        data = np.memmap(tmp_path / "e" / f"{name}.bin", dtype=np.uint16, mode="r")
        assert data.tolist() == [token for document in documents(corpus, split) for token in document]
    assert not (tmp_path / "e" / "test.bin").exists()


def test_megatron(corpus, tmp_path):
    export_tokens(corpus.corpus.directory, LocalPath(tmp_path / "e"), "megatron")
    for split in ("train", "validation"):
        assert len(list(corpus.shards(split=split))) > 1
        assert read_megatron(tmp_path / "e" / split) == documents(corpus, split)


def test_large_vocabularies_have_32_bits_in_megatron_alone(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.export.token_export.open_corpus", lambda place: as_uint32(corpus))
    export_tokens(corpus.corpus.directory, LocalPath(tmp_path / "e"), "megatron")
    assert read_megatron(tmp_path / "e" / "train") == documents(corpus, "train")
    with pytest.raises(UserError, match="nanogpt has 16-bit ids, and the vocabulary of shards has"):
        export_tokens(corpus.corpus.directory, LocalPath(tmp_path / "n"), "nanogpt")


def as_uint32(corpus):
    """Return the opened corpus with 32-bit tokens declared, as if its vocabulary were large."""
    manifest = corpus.corpus.manifest
    sets = {name: replace(each, dtype="uint32") for name, each in manifest.shard_sets.items()}
    return replace(corpus.corpus, manifest=replace(manifest, shard_sets=sets))


def test_some_sources_and_what_the_export_says(corpus, tmp_path):
    output = LocalPath(tmp_path / "e")
    assert main(["export", str(corpus.corpus.directory), str(output), "--format", "nanogpt", "--sources", "web"]) == 0
    ids = np.fromfile(output / "train.bin", np.uint16).tolist()
    assert ids == [token for document in documents(corpus, "train", ["web"]) for token in document]
    facts = read_json(output / "export.json")
    assert facts["eos"] == 2
    assert {each["path"]: each["xxh3_128"] for each in facts["files"]} == {
        name: file_checksum(output / name) for name in ("train.bin", "val.bin", "tokenizer.json")
    }
    assert not (output / "unfinished.json").exists()
    again = LocalPath(tmp_path / "again")
    export_tokens(corpus.corpus.directory, again, "nanogpt", sources=["web"])
    assert (again / "export.json").read_bytes() == (output / "export.json").read_bytes()


def test_bad_requests_are_refused(corpus, tmp_path, capsys):
    place, output = corpus.corpus.directory, LocalPath(tmp_path / "e")
    with pytest.raises(UserError, match="--shard-set: got 'x', the corpus has shards"):
        export_tokens(place, output, "nanogpt", "x")
    with pytest.raises(UserError, match="no source 'wed'"):
        export_tokens(place, output, "nanogpt", sources=["wed"])
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "mine").touch()
    with pytest.raises(ConflictError, match="is not empty"):
        export_tokens(place, output, "nanogpt")
    assert main(["export", str(place), str(tmp_path / "f"), "--format", "megatron", "--without", "url"]) != 0
    assert main(["export", str(place), str(tmp_path / "f"), "--shard-set", "shards"]) != 0
    assert "tokens have no columns" in capsys.readouterr().err
