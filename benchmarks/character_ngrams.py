"""Print losses that a character-level model must beat: uniform, unigram, and interpolated n-grams, on the
given split of a corpus.

    python -m benchmarks.character_ngrams data/corpora/shakespeare_characters

Orders are interpolated as by Witten and Bell (1991, method C): after a history with N occurrences and T
different continuations, the probability of a token is (its count + T x its probability after the shorter
history) / (N + T). Nothing is tuned on the validation split. Losses are in nats per token.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from math import log

import numpy as np

from gristmill.storage.location import Location
from gristmill.storage.parsing import location_argument
from pipelines.contracts.manifest import load_corpus
from pipelines.contracts.shard_set import open_shard

LONGEST = 8


def read_documents(corpus: Location, split: str) -> Iterator[np.ndarray]:
    shard_set = next(iter(load_corpus(corpus).shard_sets.values()))
    for record in shard_set.shards:
        if record.split == split:
            shard = open_shard(corpus, record.file)
            for start, stop in zip(shard.offsets[:-1], shard.offsets[1:], strict=True):
                yield shard.tokens[start:stop]


def ngram_losses(train: Sequence[np.ndarray], held_out: Sequence[np.ndarray]) -> dict[str, float]:
    """Return the mean loss of each model, in nats per held-out token."""
    known = {token for document in train for token in document.tolist()}
    counts: list[dict[bytes, Counter[int]]] = [defaultdict(Counter) for _ in range(LONGEST)]
    for document in train:
        for place, token in enumerate(document.tolist()):
            for order in range(min(LONGEST, place + 1)):
                counts[order][document[place - order : place].tobytes()][token] += 1
    nats, tokens = np.zeros(LONGEST + 1), 0
    for document in held_out:
        tokens += len(document)
        for place, token in enumerate(document.tolist()):
            chance = 1 / len(known)
            nats[0] -= log(chance)
            for order in range(LONGEST):
                after = counts[order].get(document[max(0, place - order) : place].tobytes()) if order <= place else None
                if after is not None:
                    total = after.total()
                    chance = (after[token] + len(after) * chance) / (total + len(after))
                nats[order + 1] -= log(chance)
    names = ["uniform", "unigram", *(f"{order}-gram" for order in range(2, LONGEST + 1))]
    return dict(zip(names, (nats / tokens).tolist(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", metavar="CORPUS", type=location_argument)
    parser.add_argument("--split", choices=("validation", "test"), default="validation")
    options = parser.parse_args()
    splits = [list(read_documents(options.corpus, split)) for split in ("train", options.split)]
    for name, loss in ngram_losses(*splits).items():
        print(f"{name:8} {loss:.4f}")


if __name__ == "__main__":
    main()
