"""Hand-written packed batches, and functions that read batches back document by document."""

from dataclasses import replace

import numpy as np

from tokenizer.vocabulary.definition import Definition
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.objectives.shared.character_cuts import TokenTexts
from trainers.objectives.shared.context import Context
from trainers.rows.batch import IGNORED, PADDING, Batch

VOCABULARY = 1000
FIRST = len(SPECIAL_IDS)  # the first id of text
BOS, EOS, PAD, MASK = (SPECIAL_IDS[name] for name in ("<bos>", "<eos>", "<pad>", "<mask>"))
SENTENCE = ["Thank", "you", "for", "inviting", "me", "to", "your", "party", "last", "week", "."]


# A vocabulary of words: a token is as good as a character, and none has characters of its own.
_WORDS = {"type": "WordLevel", "vocab": {str(number): number for number in range(VOCABULARY)}, "unk_token": None}
TOKENS = TokenTexts(Definition("words", {"model": _WORDS, "added_tokens": [], "pre_tokenizer": None, "decoder": None}))


def ids(words):
    """Return the ids of words of SENTENCE. X, Y and Z stand for sentinels, and M stands for the mask."""
    named = {
        "X": "<extra_id_0>",
        "Y": "<extra_id_1>",
        "Z": "<extra_id_2>",
        "M": "<mask>",
        "</s>": "<eos>",
        "<s>": "<bos>",
    }
    found = [SPECIAL_IDS[named[word]] if word in named else FIRST + SENTENCE.index(word) for word in words.split()]
    return [int(number) for number in found]


def context(family="encoder_decoder", seed=3, start="<pad>"):
    return Context(seed, dict(SPECIAL_IDS), VOCABULARY, family, 64, decoder_start=start, texts=TOKENS)


def packed(rows, length=None, frame=False, cut=()):
    """Return a batch with one row for each list of documents, where a document is a list of tokens, and
    padding.

    With `frame`, each document begins with `<bos>` and has next-token targets. Rows in `cut` begin inside
    their first document and end inside their last.
    """
    streams = [[[BOS, *text] if frame and not (r in cut and i == 0) else list(text) for i, text in enumerate(texts)]
               for r, texts in enumerate(rows)]  # fmt: skip
    width = length or max([sum(map(len, texts)) for texts in streams], default=1) + 3
    shape = (len(rows), width)
    inputs, targets = np.full(shape, PAD, np.int64), np.full(shape, IGNORED, np.int64)
    positions, segments = np.zeros(shape, np.int64), np.full(shape, PADDING, np.int64)
    for row, texts in enumerate(streams):
        column = 0
        for number, text in enumerate(texts):
            here = slice(column, column + len(text))
            inputs[row, here], positions[row, here], segments[row, here] = text, np.arange(len(text)), number
            if frame and text:
                last = FIRST + 500 if row in cut and number == len(texts) - 1 else EOS
                targets[row, here] = [*text[1:], last]
            column += len(text)
    numbers = np.arange(len(rows), dtype=np.int64)
    return Batch(inputs, targets, positions, segments, numbers % 3, numbers * 5, numbers, numbers * 0)


def random_rows(seed, count, sizes=(0, 1, 2, 3, 17, 40)):
    rng = np.random.default_rng(seed)
    return [[rng.integers(FIRST, VOCABULARY, rng.choice(sizes)).tolist() for _ in range(rng.integers(0, 5))]
            for _ in range(count)]  # fmt: skip


def paired(rows):
    """Return a batch of rows of documents. Each document is given as (number of tokens, index of the token at
    which the target begins or None). All tokens of a row differ.
    """
    numbers = [iter(range(FIRST, VOCABULARY)) for _ in rows]
    batch = packed(
        [[[next(number) for _ in range(size)] for size, _ in row] for row, number in zip(rows, numbers, strict=True)]
    )
    in_target = np.zeros(batch.inputs.shape, bool)
    for row, documents in enumerate(rows):
        column = 0
        for size, at in documents:
            if at is not None:
                in_target[row, column + at : column + size] = True
            column += size
    return replace(batch, in_target=in_target)


def random_pairs(seed, count=5):
    """Return rows of random documents for `paired`: pairs, documents without a target, and documents that
    begin in the middle of a target.
    """
    rng = np.random.default_rng(seed)

    def document():
        size = int(rng.integers(0, 24))
        return size, None if rng.random() < 0.3 else int(rng.integers(0, size + 1))

    return [[document() for _ in range(rng.integers(0, 4))] for _ in range(count)]


def chosen(batch, rows):
    arrays = {name: value[rows] for name, value in vars(batch).items() if value is not None}
    return Batch(**arrays)


def both_sides(batch):
    """Return {(row, segment): (encoder tokens, decoder tokens, targets)} of an encoder-decoder batch."""
    found = {}
    for row in range(len(batch.inputs)):
        for number in sorted(set(batch.segments[row]) | set(batch.decoder.segments[row])):
            if number != PADDING:
                here, there = batch.segments[row] == number, batch.decoder.segments[row] == number
                sides = batch.inputs[row][here], batch.decoder.inputs[row][there], batch.targets[row][there]
                found[row, int(number)] = tuple(side.tolist() for side in sides)
    return found


def one_side(batch):
    """Return {(row, segment): (tokens, targets, prefix)} of a decoder batch."""
    found = {}
    prefix = np.zeros(batch.inputs.shape, bool) if batch.prefix is None else batch.prefix
    for row in range(len(batch.inputs)):
        for number in sorted(set(batch.segments[row]) - {PADDING}):
            here = batch.segments[row] == number
            sides = batch.inputs[row][here], batch.targets[row][here], prefix[row][here]
            found[row, int(number)] = tuple(side.tolist() for side in sides)
    return found


def over_workers(data, documents, size, world):
    """Collect {(sample, segment): value} from `documents`, which is applied to the micro-batches of `size`
    rows of all workers, for the first 24 samples.
    """
    found = {}
    for rank in range(world):
        for batch in data.micro_batches(0, 24, size, rank, world):
            found |= {(int(batch.sample[row]), number): values for (row, number), values in documents(batch).items()}
    return found
