"""A corpus with a planted truth: `clean` text, `kin` in the same language, and `garbage` of uniformly random
tokens. Only `clean` has held-out documents.
"""

import numpy as np
import pyarrow as pa

from gristmill.storage.store import digest
from pipelines.contracts.document import document_id, file_key
from pipelines.contracts.manifest import CorpusManifest, save_corpus
from pipelines.contracts.shard_set import ShardRecord, ShardSet, TokenizerRecord, write_shard
from tests.trainers.conftest import VOCABULARY, documents
from tokenizer.kinds.byte_bpe import train_byte_bpe
from tokenizer.vocabulary.definition import read_definition

LENGTHS = (60, 120, 240)
TRAIN = {"clean": 60, "kin": 60, "garbage": 240}  # a quarter of the documents of a shard


def build_planted(directory):
    rng, records = np.random.default_rng(3), []
    for split, layout in (("train", TRAIN), ("validation", {"clean": 12})):
        for source, count in layout.items():
            walks = documents(rng, 4 * count, LENGTHS)
            if source == "garbage":
                walks = [rng.integers(128, VOCABULARY, len(walk)).astype(np.uint16) for walk in walks]
            records.append(_shard(directory, split, source, walks))
    words = ["".join(letters) for letters in np.random.default_rng(1).choice(list("abcdefgh"), (60, 6))]
    (directory / "tokenizer.json").write_atomic(train_byte_bpe([" ".join(words)] * 3, VOCABULARY))
    file, definition = directory.record("tokenizer.json"), read_definition(str(directory / "tokenizer.json"))
    tokenizer = TokenizerRecord(
        file.path, file.bytes, file.xxh3_128, definition.vocab_size, definition.kind, definition.roles
    )
    sources = {name: {"licence": "none"} for name in TRAIN}
    fingerprint = digest([record.xxh3_128 for record in records])
    shards = {"shards": ShardSet(tokenizer, "uint16", (), tuple(records))}
    save_corpus(directory, CorpusManifest("planted", fingerprint, {}, sources, shards, (), (), {}), lambda: None)
    return directory


def _shard(directory, split, source, walks):
    offsets = np.concatenate([[0], np.cumsum([len(walk) for walk in walks])]).astype(np.int64)
    key = file_key(source, split)
    ids = pa.array([document_id(key, i) for i in range(len(walks))], pa.binary(16))
    n_bytes = np.array([3 * len(walk) for walk in walks], dtype=np.int64)
    path = f"shards/{source}/{split}-00000.arrow"
    tokens = np.concatenate(walks)
    (directory / path).write_atomic(
        lambda sink: write_shard(sink, tokens, offsets, ids, n_bytes, {"source": "x"}, None)
    )
    file = directory.record(path)
    size = (len(walks), len(tokens), int(n_bytes.sum()))
    return ShardRecord(file.path, file.bytes, file.xxh3_128, source, split, *size)
