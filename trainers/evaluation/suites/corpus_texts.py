"""The held-out documents of a corpus as texts, so that models with any tokenizer can be measured on them."""

from dataclasses import replace

import pyarrow as pa

from gristmill.errors import ConfigError, UserError
from gristmill.storage.location import Location
from pipelines.contracts.given_split import HELD_OUT
from tokenizer.encode import Encoder
from trainers.data.packed_corpus import open_corpus
from trainers.evaluation.suites.text_bits import text_task
from trainers.tasks.examples import Examples


def corpus_texts(directory: Location, limit: int | None = None) -> list[Examples]:
    """Return the held-out documents of a corpus, decoded from its tokens, in one `Examples` for each held-out
    split. Only the first `limit` documents of each domain are used.

    Raises ConfigError if the corpus has no held-out documents, and UserError if the text cannot be restored
    from its tokens, as with WordPiece.
    """
    corpus = open_corpus((str(directory),), None)
    encoder = Encoder.load(str(corpus.directory.verify(corpus.tokenizer.file)))
    found = []
    for split in HELD_OUT:
        texts, ids, sources = [], [], []
        for name, stream in corpus.held_out(split).items():
            left = limit
            for number in range(len(stream.shards)):
                shard = stream.shard(number)
                for document in range(len(shard.n_bytes) if left is None else min(left, len(shard.n_bytes))):
                    tokens = shard.tokens[shard.offsets[document] : shard.offsets[document + 1]]
                    text = encoder.decode(tokens)
                    if len(text.encode()) != shard.n_bytes[document]:
                        raise UserError(
                            f"{directory}: {name}: the text cannot be restored from tokens of a {encoder.kind} "
                            f"vocabulary; measure its files with text=FILE"
                        )
                    if not text.strip():
                        continue
                    texts.append(text)
                    ids.append(shard.doc_ids[document].as_py().hex())
                    sources.append(name)
                left = None if left is None else max(0, left - len(shard.n_bytes))
        if texts:
            task = replace(text_task(directory), name=f"{directory.name}_{split}")
            arrays = (pa.array(texts, pa.large_string()),)
            found.append(Examples(task, split, ids, arrays, True, (), own_ids=True, subtasks=sources))
    if not found:
        raise ConfigError(f"corpus: {directory} has no held-out documents; give a source a `split`, or use text=FILE")
    return found
