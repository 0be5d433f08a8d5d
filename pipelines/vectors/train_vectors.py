"""`vectors train`: train CBOW or skip-gram word vectors (Mikolov et al. 2013, arXiv 1301.3781 and 1310.4546)
on the text of a corpus with fastText. Character n-grams are not used.

In fastText, each thread initialises a tenth of the matrix, so with fewer than ten threads the rest is
uninitialised memory. Therefore we draw the initial vectors of all words ourselves, from fastText's
distribution U(-1/dim, 1/dim), and pass them to fastText as pretrained vectors. On one machine, a single
thread then gives the same file for the same corpus, settings and library. Several threads race on the
weights, so the file differs from run to run.
"""

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gristmill.config import plain
from gristmill.errors import UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.lease import lock
from gristmill.storage.location import Location
from gristmill.storage.store import file_checksum, write_json
from pipelines.contracts.lineage import Corpus, open_corpus
from pipelines.vectors.corpus_words import write_words
from pipelines.vectors.word_vectors import VECTORS, WordVectors, check_output, write_vectors

FORMAT = "gristmill-vectors/1"
CARD = "vectors.json"
_LARGEST = (1 << 31) - 1  # fastText's numbers have 32 bits
_END = "</s>"  # fastText's word at the end of a line
_NO_LABEL = "<label>"  # no word begins like this, so that fastText takes none for a label


@dataclass(frozen=True)
class VectorSettings:
    """The settings for training vectors. The defaults are fastText's, except that fastText also uses
    character n-grams, keeps upper case and runs several threads.
    """

    model: Literal["skipgram", "cbow"] = "skipgram"
    """skipgram predicts the surrounding words from a word; cbow predicts a word from the mean of the
    surrounding words.
    """
    dim: int = 100
    """Number of dimensions."""
    window: int = 5
    """Maximum number of words on each side. The actual number is drawn for every word, from 1 to the maximum.
    Windows do not extend beyond a document, or beyond a block of about 1,000 words, which fastText takes as a line.
    """
    epoch: int = 5
    """Number of passes over the text."""
    lr: float = 0.05
    """Initial learning rate; it decays to 0."""
    min_count: int = 5
    """Words that occur less often get no vector."""
    negatives: int = 5
    """Number of words drawn as negative examples for every prediction, with probabilities proportional to the
    square root of their counts.
    """
    subsample: float = 1e-4
    """Threshold for frequent words: occurrences of words whose share of the text is more than about 2.6 times this
    value are skipped at random (arXiv 1310.4546, section 2.3).
    """
    lower: bool = True
    """Whether words are converted to lower case."""
    seed: int = 0
    """Seed of the initial vectors. fastText's own random draws always use the seed 0."""
    thread: int = 1
    """Number of threads. The result is reproducible only with one thread."""

    def check(self) -> None:
        """Raise ValueError if a value is out of range."""
        for name in ("dim", "window", "epoch", "min_count", "negatives", "thread"):
            if not 1 <= getattr(self, name) <= _LARGEST:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected 1 to {_LARGEST:,}")
        for name in ("lr", "subsample"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected a number above 0, at most 1")
        if not 0 <= self.seed < 1 << 64:
            raise ValueError(f"seed: got {self.seed}, expected a whole number from 0, of at most 64 bits")


def train_vectors(
    corpus: Location, output: LocalPath, settings: VectorSettings, sources: Sequence[str] | None, *, overwrite: bool
) -> dict[str, Any]:
    """Train vectors on the kept documents of a corpus, and write vectors.txt and vectors.json into `output`.
    Returns the content of vectors.json. If `sources` is None, all sources are used.

    Raises ConflictError if another process is training in `output`, if `output` is a file, or if `output` is
    not empty and `overwrite` is not set. Raises UserError for unknown sources, for too few frequent words, or
    if the training fails.
    """
    opened = open_corpus(corpus)
    names = opened.choose_sources(sources, "--sources")
    check_output(output, overwrite=overwrite)
    with lock(output, "training", print, wait=False):
        for name in (CARD, VECTORS):
            (output / name).unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(dir=output) as scratch:
            facts = _train(opened, names, settings, Path(scratch), output)
        write_json(output / CARD, facts)
    return facts


def _train(
    corpus: Corpus, sources: Sequence[str], settings: VectorSettings, scratch: Path, output: LocalPath
) -> dict[str, Any]:
    with (scratch / "words.txt").open("wb") as sink:
        counts = write_words(corpus, sources, settings.lower, sink)
    vectors, trained = fit_vectors(scratch / "words.txt", counts, settings)
    write_vectors(vectors, output / VECTORS)
    return {
        "format": FORMAT,
        "corpus": {"corpus": corpus.manifest.corpus, "fingerprint": corpus.manifest.fingerprint, "sources": list(sources)},
        "settings": plain(settings),
        "words": {"text": counts.total(), "different": len(counts), "with_vectors": len(vectors.words), "trained_on": trained},
        "fasttext-numpy2": version("fasttext-numpy2"),
        "reproducible": settings.thread == 1,
        "vectors": {"path": VECTORS, "xxh3_128": file_checksum(output / VECTORS)},
    }  # fmt: skip


def fit_vectors(text: Path, counts: Counter[str], settings: VectorSettings) -> tuple[WordVectors, int]:
    """Train vectors on a file of words separated by spaces. `counts` gives the number of occurrences of every
    word in the file. Returns the vectors, the most frequent word first, and the total number of occurrences
    of the words that have a vector. Writes `initial.vec` next to `text`. Raises UserError if fewer than two
    words occur at least `min_count` times, or if the training fails.
    """
    import fasttext

    words = sorted(
        (word for word, count in counts.items() if count >= settings.min_count), key=lambda w: (-counts[w], w)
    )
    if len(words) < 2:
        raise UserError(
            f"min_count: {len(words)} words occur {settings.min_count} times or more, expected at least 2; lower it, or give "
            "more text"
        )
    initial = text.with_name("initial.vec")
    _write_initial([*words, _END], settings, initial)
    try:
        model = fasttext.train_unsupervised(
            str(text), model=settings.model, dim=settings.dim, ws=settings.window, epoch=settings.epoch, lr=settings.lr,
            minCount=settings.min_count, neg=settings.negatives, t=settings.subsample, loss="ns", minn=0, maxn=0, bucket=0,
            thread=settings.thread, pretrainedVectors=str(initial), label=_NO_LABEL, verbose=0,
        )  # fmt: skip
    except RuntimeError as error:
        raise UserError(f"fasttext: training failed ({error}); lower `lr`, or give it more text") from None
    rows = {word: row for row, word in enumerate(model.words)}
    matrix = model.get_input_matrix()[[rows[word] for word in words]]
    return WordVectors(words, np.ascontiguousarray(matrix, np.float32)), sum(counts[word] for word in words)


def _write_initial(words: Sequence[str], settings: VectorSettings, path: Path) -> None:
    random, bound = np.random.default_rng(settings.seed), 1 / settings.dim
    form = " ".join(["%.7g"] * settings.dim)
    with path.open("wb") as sink:
        sink.write(f"{len(words)} {settings.dim}\n".encode())
        for word in words:
            sink.write(f"{word} {form % tuple(random.uniform(-bound, bound, settings.dim))}\n".encode())
