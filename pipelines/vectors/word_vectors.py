"""Word vectors as arrays: read and write them in word2vec's text format, find nearest neighbours and answer
analogies.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import BinaryIO

import numpy as np

from gristmill.errors import ConflictError, UserError
from gristmill.storage.disk import LocalPath
from gristmill.terminal import printable
from pipelines.kernels.search.cosine import unit_rows

VECTORS = "vectors.txt"
_BLOCK = 1 << 10


@dataclass(frozen=True)
class WordVectors:
    """Words and their vectors, usually the most frequent words first."""

    words: Sequence[str]
    matrix: np.ndarray  # float32 [words, dimensions]

    @cached_property
    def rows(self) -> dict[str, int]:
        """Maps every word to the index of its row in `matrix`."""
        return {word: row for row, word in enumerate(self.words)}

    @cached_property
    def unit(self) -> np.ndarray:
        """The vectors scaled to length 1, float32 [words, dimensions]. A vector of zeros is unchanged."""
        return unit_rows(self.matrix)

    def row(self, word: str) -> int:
        """Return the row index of a word. Raises UserError if the word has no vector."""
        if word not in self.rows:
            lower = f"; did you mean {word.lower()!r}?" if word.lower() in self.rows else ""
            raise UserError(f"{printable(word)!r}: no such word among {len(self.words):,}{lower}")
        return self.rows[word]

    def first(self, count: int) -> "WordVectors":
        """Return the first `count` words and their vectors."""
        return WordVectors(self.words[:count], self.matrix[:count])


def vectors_file(place: LocalPath) -> LocalPath:
    """Return the file of vectors at a path: the path itself or, for a directory written by `vectors train`,
    its vectors.txt.
    """
    return place / VECTORS if place.is_dir() else place


def check_output(output: LocalPath, *, overwrite: bool) -> None:
    """Raise ConflictError if `output` is a file, or if it is a directory that is not empty and `overwrite` is
    not set.
    """
    if output.exists() and not (output.is_dir() and (overwrite or not any(output.iterdir()))):
        raise ConflictError(f"{output}: exists; name another directory, or use --overwrite")


def write_vectors(vectors: WordVectors, path: LocalPath) -> None:
    """Write vectors in the text format of word2vec, with values rounded to seven significant digits."""

    form = " ".join(["%.7g"] * vectors.matrix.shape[1])

    def write(sink: BinaryIO) -> None:
        sink.write(f"{len(vectors.words)} {vectors.matrix.shape[1]}\n".encode())
        for word, row in zip(vectors.words, vectors.matrix, strict=True):
            sink.write(f"{word} {form % tuple(row.tolist())}\n".encode())

    path.write_atomic(write)


def read_vectors(place: LocalPath, most: int | None = None) -> WordVectors:
    """Read a file of vectors in the text format of word2vec, or the vectors.txt of a directory. If `most` is
    given, only the first `most` words are read. Raises UserError for a missing or malformed file.
    """
    path = vectors_file(place)
    if not path.is_file():
        raise UserError(f"{place}: no such file, and no directory with {VECTORS}; `vectors train` writes one")
    with path.open("rb") as source:
        header = re.fullmatch(rb"(\d+) (\d+)\s*", source.readline(100))
        if header is None or int(header[2]) == 0:
            raise UserError(f"{path}:1: expected the numbers of words and of dimensions, as word2vec writes them")
        size = int(header[1]) if most is None else min(int(header[1]), most)
        dimensions = int(header[2])
        words: dict[str, None] = {}
        blocks = [np.zeros((0, dimensions), np.float32)]
        for number in range(size):
            if number % _BLOCK == 0:
                blocks.append(np.zeros((min(_BLOCK, size - number), dimensions), np.float32))
            word, blocks[-1][number % _BLOCK] = _parse_line(source.readline(), dimensions, f"{path}:{number + 2}")
            if word in words:
                raise UserError(f"{path}:{number + 2}: {printable(word)!r} has a vector on an earlier line")
            words[word] = None
    return WordVectors(list(words), np.concatenate(blocks))


def _parse_line(line: bytes, dimensions: int, where: str) -> tuple[str, np.ndarray]:
    word, *values = line.rstrip(b" \r\n").rsplit(b" ", dimensions)
    try:
        text, row = word.decode(), np.array(values, np.float32)
    except ValueError:  # UnicodeDecodeError is one, too
        raise UserError(f"{where}: expected a word in UTF-8 and {dimensions} numbers") from None
    if len(row) != dimensions or not np.isfinite(row).all():
        raise UserError(f"{where}: expected a word and {dimensions} finite numbers")
    return text, row


@dataclass(frozen=True)
class Neighbour:
    """A word and its cosine similarity to the query (`score`)."""

    word: str
    score: float


def neighbours(vectors: WordVectors, word: str, count: int) -> list[Neighbour]:
    """Return the `count` nearest neighbours of a word by cosine, nearest first, without the word itself."""
    row = vectors.row(word)
    return _highest(vectors, vectors.unit[row], {row}, count)


def complete_analogy(vectors: WordVectors, words: tuple[str, str, str], count: int) -> list[Neighbour]:
    """Return the `count` words that best complete the analogy "a is to b as c is to ...", best first. `words`
    are a, b and c, which are left out of the result. The score of a word w is cos(w, b - a + c), with all
    vectors scaled to length 1; it ranks words as 3CosAdd does (Mikolov, Yih and Zweig 2013, "Linguistic
    Regularities in Continuous Space Word Representations", section 4). Raises UserError if a, b or c has no
    vector.
    """
    a, b, c = (vectors.row(word) for word in words)
    query = unit_rows((vectors.unit[b] - vectors.unit[a] + vectors.unit[c])[None])[0]
    return _highest(vectors, query, {a, b, c}, count)


def _highest(vectors: WordVectors, query: np.ndarray, without: set[int], count: int) -> list[Neighbour]:
    scores = vectors.unit @ query
    scores[list(without)] = -np.inf
    rows = np.argsort(-scores, kind="stable")[: max(0, min(count, len(scores) - len(without)))]
    return [Neighbour(vectors.words[row], float(scores[row])) for row in rows]


@dataclass(frozen=True)
class AnalogyScore:
    """The result of answering one section of analogy questions. `covered` is the number of questions whose
    four words all have vectors.
    """

    section: str
    questions: int
    covered: int
    correct: int


def answer_questions(vectors: WordVectors, path: LocalPath) -> list[AnalogyScore]:
    """Answer a file of analogy questions in the format of word2vec's questions-words.txt, and return the
    score of each section. If no word of the vectors has a capital letter, the questions are converted to
    lower case.

    Raises UserError for a malformed line.
    """
    fold: Callable[[str], str] = str if any(word != word.lower() for word in vectors.words) else str.lower
    scores: list[AnalogyScore] = []
    for section, questions in _sections(path):
        folded = [[fold(word) for word in words] for words in questions]
        covered = [words for words in folded if all(word in vectors.rows for word in words)]
        answers = [complete_analogy(vectors, (a, b, c), 1) for a, b, c, _ in covered]
        right = sum(answer[0].word == words[3] for answer, words in zip(answers, covered, strict=True) if answer)
        scores.append(AnalogyScore(section, len(questions), len(covered), right))
    return scores


def text_lines(path: LocalPath) -> Iterator[tuple[str, str]]:
    """Yield (`FILE:LINE`, line without its ending) for each line of a text file. Raises UserError for a line
    that is not UTF-8.
    """
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            where = f"{path}:{number}"
            try:
                yield where, line.decode().rstrip("\r\n")
            except UnicodeDecodeError:
                raise UserError(f"{where}: is not UTF-8") from None


def _sections(path: LocalPath) -> Iterable[tuple[str, list[list[str]]]]:
    sections: dict[str, list[list[str]]] = {}
    name = ""
    for where, line in text_lines(path):
        words = line.split()
        if line.startswith(":"):
            name = line[1:].strip()
        elif len(words) == 4:
            sections.setdefault(name, []).append(words)
        elif words:
            raise UserError(f"{where}: got {len(words)} words, expected four, or `: SECTION`")
    return sections.items()
