"""Packed batches of documents divided into sentences."""

import numpy as np

from tokenizer.vocabulary.specials import CLS, SEP, SPECIAL_IDS
from trainers.objectives.shared.context import Context
from trainers.rows.batch import IGNORED, PADDING, Batch

VOCABULARY = 200
CONTEXT = Context(3, dict(SPECIAL_IDS), VOCABULARY, "encoder", 128)
# The sizes of the sentences of each document of each row.
SIZES = (((5, 9, 4), (7,), (4, 6)), ((6, 4),), ((8,), (5,), (4,)), ((4, 2, 6, 5),), ())


def stream(rows=SIZES, seed=0):
    """Return a packed batch of framed documents whose sentences have the given sizes, and the sentences of
    each row as (document, tokens).
    """
    rng = np.random.default_rng(seed)
    flat, sentences = [], []
    for its in rows:
        row, made = [], []
        for document, sizes in enumerate(its):
            row.append((SPECIAL_IDS[CLS], document, True))
            for number, size in enumerate(sizes):
                tokens = rng.integers(128, VOCABULARY, size).tolist()
                row += [(token, document, number > 0 and place == 0) for place, token in enumerate(tokens)]
                made.append((document, tokens))
            row.append((SPECIAL_IDS[SEP], document, False))
        flat.append(row)
        sentences.append(made)
    shape = (len(rows), max(map(len, flat)) + 1)
    inputs, segments, starts = np.zeros(shape, np.int64), np.full(shape, PADDING), np.zeros(shape, bool)
    for number, row in enumerate(flat):
        for column, entry in enumerate(row):
            inputs[number, column], segments[number, column], starts[number, column] = entry
    none = np.zeros(len(rows), np.int64)
    fields = (none, none, np.arange(len(rows)), none)
    batch = Batch(inputs, np.full(shape, IGNORED), np.zeros(shape, np.int64), segments, *fields, sentence_starts=starts)
    return batch, sentences
