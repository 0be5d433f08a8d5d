"""A tiny corpus in the product's own format: three sources, several shards, and a real tokenizer of 400
tokens.
"""

import itertools
from functools import lru_cache
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from gristmill.storage.store import digest
from pipelines.contracts.document import document_id, file_key
from pipelines.contracts.manifest import CorpusManifest, save_corpus
from pipelines.contracts.shard_set import SPAN_TYPES, ShardRecord, ShardSet, TokenizerRecord, write_shard
from tests.trainers.launching import SETTINGS, run_workers
from tokenizer.kinds.byte_bpe import train_byte_bpe
from tokenizer.vocabulary.definition import read_definition

VOCABULARY = 400
# Documents per shard, by source: several shards, one short shard, and a source of a single document.
TRAIN = {"plays": (60, 1, 40), "code": (50,), "notes": (1,)}
VALIDATION = {"plays": (12,), "code": (6, 3)}


def documents(rng: np.random.Generator, count: int, lengths: tuple[int, ...] | None = None) -> list[np.ndarray]:
    """Return random walks on a fixed sparse graph over the ids 128 to 399, so that a model can learn which
    token follows. If `lengths` is given, document lengths are drawn from it uniformly; otherwise some
    documents are empty.
    """
    successors = np.random.default_rng(7).integers(128, VOCABULARY, (VOCABULARY, 4)).tolist()
    walks = []
    for _ in range(count):
        usual = {"a": [0, 1, 5, 30, 90, 200], "p": [0.02, 0.05, 0.13, 0.3, 0.3, 0.2]}
        length = int(rng.choice(**usual) if lengths is None else rng.choice(lengths))
        walk, token = [], int(rng.integers(128, VOCABULARY))
        for choice in rng.integers(0, 4, length).tolist():
            walk.append(token)
            token = successors[token][choice]
        walks.append(np.array(walk, np.uint16))
    return walks


def sentence_starts(rng: np.random.Generator, walks: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return (starts, offsets) as stored in a shard. Every nonempty document begins with a sentence. Two
    sentences may start at the same token, and one may start at the end of its document.
    """
    found = [np.sort(np.append(rng.integers(0, len(w) + 1, len(w) // 12), 0)) if len(w) else [] for w in walks]
    return np.concatenate([*found, []]).astype(np.int32), np.concatenate([[0], np.cumsum(list(map(len, found)))])


def random_spans(rng: np.random.Generator, walks: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return (spans, offsets) as stored in a shard. Spans are one to four tokens long, and some are adjacent.
    Documents of fewer than six tokens have none.
    """
    found = []
    for walk in walks:
        cuts = np.unique(rng.integers(0, len(walk) + 1, len(walk) // 3))
        pairs = [(a, b) for a, b in itertools.pairwise(cuts) if b - a < 5 and rng.random() < 0.6]
        found.append(np.array([(a, b, rng.integers(0, 2)) for a, b in pairs], np.int32).reshape(-1, 3))
    return np.concatenate(found), np.concatenate([[0], np.cumsum(list(map(len, found)))])


def random_targets(rng: np.random.Generator, walks: list[np.ndarray]) -> np.ndarray:
    """Return the starts of targets as stored in a shard. They lie in the middle third of documents of three
    or more tokens; about a fifth of these documents have no target.
    """
    found = [len(walk) // 3 + rng.integers(0, len(walk) // 3 + 1) for walk in walks]
    return np.array(
        [at if len(walk) > 2 and rng.random() < 0.8 else -1 for at, walk in zip(found, walks, strict=True)], np.int32
    )


@lru_cache(16)
def _shards(
    seed: int, sentences: bool, numbered: bool, lengths: tuple[int, ...] | None, spans: bool, pairs: bool
) -> list[tuple[ShardRecord, bytes]]:
    """Return the shards of `build_corpus` and their content. The result is cached because corpora that differ
    only in their tokenizer have the same shards.
    """
    rng, places, salient, sides = (np.random.default_rng(key) for key in (seed, [seed, 1], [seed, 2], [seed, 3]))
    number_of_place = itertools.count(128)
    made = []
    for split, layout in (("train", TRAIN), ("validation", VALIDATION)):
        for source, shards in layout.items():
            for number, count in enumerate(shards):
                walks = documents(rng, count) if lengths is None else documents(rng, 4 * count, lengths)
                count = len(walks)
                if numbered:
                    walks = [np.fromiter(number_of_place, np.uint16, len(walk)) for walk in walks]
                offsets = np.concatenate([[0], np.cumsum([len(walk) for walk in walks])]).astype(np.int64)
                tokens = np.concatenate([*walks, np.empty(0, np.uint16)])
                key = file_key(source, f"{split}-{number}")
                ids = pa.array([document_id(key, i) for i in range(count)], pa.binary(16))
                n_bytes = np.array([3 * len(walk) for walk in walks], dtype=np.int64)
                path = f"shards/{source}/{split}-{number:05d}.arrow"
                begins = sentence_starts(places, walks) if sentences else None
                named = random_spans(salient, walks) if spans else None
                second = random_targets(sides, walks) if pairs else None
                columns = (begins, named, second)
                sink = BytesIO()
                write_shard(sink, tokens, offsets, ids, n_bytes, {"source": "x"}, *columns)
                content, size = sink.getvalue(), (count, len(tokens), int(n_bytes.sum()))
                many = int((second >= 0).sum()) if pairs else 0
                checksum = xxhash.xxh3_128_hexdigest(content)
                record = ShardRecord(path, len(content), checksum, source, split, *size, pairs=many)
                made.append((record, content))
    return made


def build_corpus(
    directory: Path,
    seed: int = 0,
    sentences: bool = True,
    numbered: bool = False,
    tokenizer: bytes | None = None,
    lengths: tuple[int, ...] | None = None,
    spans: bool = False,
    pairs: bool = False,
) -> Path:
    """Write a corpus. Another seed gives other documents, and so another fingerprint, with the same
    tokenizer.

    `sentences`, `spans` and `pairs` determine whether the shards have these columns. With `numbered`, the
    tokens are 128, 129 and so on; every token is different, and tokens may exceed the vocabulary. `tokenizer`
    is the content of a tokenizer.json that replaces the tiny one. `lengths` gives the document lengths; with
    it, there are four times as many documents.
    """
    made = _shards(seed, sentences, numbered, lengths, spans, pairs)
    for record, content in made:
        (directory / record.path).write_atomic(content)
    records = [record for record, _ in made]
    words = ["".join(letters) for letters in np.random.default_rng(1).choice(list("abcdefgh"), (60, 6))]
    (directory / "tokenizer.json").write_atomic(tokenizer or train_byte_bpe([" ".join(words)] * 3, VOCABULARY))
    file = directory.record("tokenizer.json")
    definition = read_definition(str(directory / "tokenizer.json"))
    size = (definition.vocab_size, definition.kind, definition.roles)
    shard_set = ShardSet(
        TokenizerRecord(file.path, file.bytes, file.xxh3_128, *size),
        "uint16",
        tuple(name for name, wanted in (("sentences", sentences), ("spans", spans), ("target", pairs)) if wanted),
        tuple(records),
        SPAN_TYPES if spans else (),
    )
    fingerprint = digest([record.xxh3_128 for record in records])
    sources = {name: {"licence": "none"} for name in TRAIN}
    save_corpus(
        directory, CorpusManifest("tiny", fingerprint, {}, sources, {"shards": shard_set}, (), (), {}), lambda: None
    )
    return directory


@pytest.fixture(scope="session")
def corpus_directory(tmp_path_factory):
    return build_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def salient_directory(tmp_path_factory):
    """The documents of `corpus_directory` in shards that also have spans and targets, so that all recipes can
    use the corpus.
    """
    return build_corpus(tmp_path_factory.mktemp("salient"), spans=True, pairs=True)


@pytest.fixture(scope="session")
def foreign_directory(tmp_path_factory):
    return build_corpus(tmp_path_factory.mktemp("foreign"), seed=1)


@pytest.fixture(scope="session")
def unbroken(corpus_directory, tmp_path_factory):
    """Return the directory of an undisturbed run on one worker. The file `record` next to it lists the rows
    read.
    """
    directory = tmp_path_factory.mktemp("unbroken")
    script = [Path(__file__).with_name("kill_worker.py"), "never", 0, 0, directory / "record"]
    arguments = ["pretrain", "llama_tiny", f"corpus={corpus_directory}", f"run={directory / 'run'}", *SETTINGS]
    statuses, printed = run_workers(1, *script, *arguments)
    assert statuses == [0], printed[-4000:]
    return directory / "run"


@pytest.fixture(scope="session")
def plain_directory(tmp_path_factory):
    return build_corpus(tmp_path_factory.mktemp("plain"), sentences=False)


@pytest.fixture(scope="session")
def numbered_directory(tmp_path_factory):
    return build_corpus(tmp_path_factory.mktemp("numbered"), numbered=True)
