"""Word lists: count the occurrences of given words and phrases in a document, and the sentences that contain
them.
"""

import unicodedata
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from gristmill.config import ADDED
from gristmill.errors import UserError
from pipelines.contracts.reads_text import ReadsText
from pipelines.contracts.stage import PartStage
from pipelines.stages.lists.url_lists import check_lists, checksums

if TYPE_CHECKING:
    import numpy as np

    Index = tuple[np.ndarray, np.ndarray, np.ndarray]  # bytes, bounds and slots of entries

_JOINS = "'’-_"  # between letters: `don't`, `bi-curious`
_BETWEEN = ("Pd", "Ps", "Pe", "Pi", "Pf")  # dashes, brackets, quotation marks
_PUNCTUATION = '.,;:!?/"`·・…、。，！？；：¿¡'
_LINES = 10  # line numbers of unsearchable entries named in the notice


@dataclass(frozen=True)
class WordList(ReadsText, PartStage):
    """Count the occurrences of listed words and phrases, such as toxic words; decide nothing.

    | column | unit | definition |
    |---|---|---|
    | COLUMN_count | occurrences | occurrences of entries; the longest at each position, without overlaps |
    | COLUMN_ratio | 1 | UTF-8 bytes of words in occurrences / of all words, in lower case; null without words |
    | COLUMN_sentences | sentences | sentences with an occurrence |
    | COLUMN_sentence_ratio | 1 | COLUMN_sentences / all sentences; null if there are none |

    Entries match whole words, ignoring case. A phrase matches within one sentence, with any characters other
    than letters, digits and `_` between its words. In scripts without spaces (Chinese, Japanese, Thai, Lao,
    Khmer, Burmese), entries match anywhere, as C4's lists do in Japanese, Thai and Chinese. An entry with
    symbols other than punctuation (`s&m`, an emoji), or with punctuation and a word of fewer than two letters
    (`13.`), is not searched for; the plan reports how many such entries there are. For a fastText model of
    toxicity, use the stage `classifier`.
    """

    files: tuple[str, ...]
    """UTF-8 files of one word or phrase per line, relative to the working directory; empty lines and lines that begin
    with # are ignored."""
    column: str = "toxic"
    """Prefix of the column names."""
    unless_near: tuple[str, ...] = field(default=(), metadata=ADDED)
    """Files of the same form. An occurrence does not count if an entry of these files is within `window`
    words before or after it in the document, such as `cancer` near `breast`.
    """
    window: int = field(default=10, metadata=ADDED)
    """Maximum distance, in words, between the first words of an occurrence and of an entry of `unless_near`; 1 is
    the next word."""

    version: ClassVar[int] = 2
    paths: ClassVar[tuple[str, ...]] = ("files", "unless_near")

    def writes(self) -> pa.Schema:
        kinds = {"count": pa.int32(), "ratio": pa.float32(), "sentences": pa.int32(), "sentence_ratio": pa.float32()}
        return pa.schema([(f"{self.column}_{name}", kind) for name, kind in kinds.items()])

    def never_null(self) -> tuple[str, ...]:
        return (f"{self.column}_count", f"{self.column}_sentences")

    def depends(self) -> dict[str, str]:
        from pipelines.kernels.text.tables import unicode_version

        return unicode_version() | self._checksums

    def notice(self) -> str:
        skipped = []
        for path in (*self.files, *self.unless_near):
            entries, lost = _read(Path(path))
            if lost:
                lines = ", ".join(map(str, lost[:_LINES])) + (", ..." if len(lost) > _LINES else "")
                skipped.append(f"{len(lost):,} of {len(lost) + len(entries):,} entries of {path} (lines {lines})")
        return f"symbols that belong to no word: {'; '.join(skipped)} will not be searched" if skipped else ""

    def check(self) -> None:
        if not self.files:
            raise ValueError("files: got an empty list, expected at least one file")
        check_lists("files", self.files, directories=False)
        check_lists("unless_near", self.unless_near, directories=False)
        if self.window < 1:
            raise ValueError(f"window: got {self.window}, allowed 1 or more")
        if not self.column.isidentifier():
            raise ValueError(f"column: got {self.column!r}, expected letters, digits and underscores")
        super().check()

    def setup(self) -> None:
        """Load the lists. Raises UserError if one has changed since the build was planned or is not UTF-8, or
        if `files` or a given `unless_near` contains no entry that can be searched for.
        """
        if self._read_checksums() != self._checksums:
            raise UserError(
                "word_list: a file changed after the build was planned; restore it, or run the command again"
            )
        _ = self._entries, self._near

    def _read_checksums(self) -> dict[str, str]:
        return checksums("files", self.files) | checksums("unless_near", self.unless_near)

    @cached_property
    def _checksums(self) -> dict[str, str]:
        return self._read_checksums()

    @cached_property
    def _entries(self) -> "Index":
        return _index(self.files)

    @cached_property
    def _near(self) -> "Index | None":
        return _index(self.unless_near) if self.unless_near else None

    def annotate(self, docs: pa.Table) -> pa.Table:
        import numpy as np

        from pipelines.kernels.text.buffers import text_buffers
        from pipelines.kernels.text.text_units import text_units

        offsets, data = text_buffers(docs[self.text])
        rows, starts, ends = text_units(offsets, data, "sentence")
        # Sentences are contiguous, so they form the documents of a column with the same text.
        bounds = np.append(starts, ends[-1:]) if len(ends) else np.zeros(1, np.int64)
        occurrences, sentences = _search(data, bounds, self._entries)
        if self._near is not None:
            near, _ = _search(data, bounds, self._near)
            occurrences = occurrences[~_are_near(occurrences, near, rows, sentences[:, 1], self.window)]
        found = np.bincount(occurrences[:, 0], minlength=len(rows))
        covered = np.bincount(occurrences[:, 0], occurrences[:, 2], len(rows))
        count = len(offsets) - 1
        sums = [np.bincount(rows, values, count) for values in (found, covered, sentences[:, 0], found > 0, found >= 0)]
        return pa.table(
            [
                pa.array(sums[0].astype(np.int32)),
                _ratio(sums[1], sums[2]),
                pa.array(sums[3].astype(np.int32)),
                _ratio(sums[3], sums[4]),
            ],
            schema=self.writes(),
        )


def _search(data: "np.ndarray", bounds: "np.ndarray", index: "Index") -> "tuple[np.ndarray, np.ndarray]":
    import numpy as np

    from pipelines.kernels.search.word_lists import find_entries
    from pipelines.kernels.text.buffers import blocks
    from pipelines.kernels.text.characters import lower_runs
    from pipelines.kernels.text.tables import IN_WORD, lower_case

    _, bits = lower_case()
    occurrences, sentences = [np.zeros((0, 3), np.int64)], [np.zeros((0, 2), np.int64)]
    for first, _, local, block in blocks(bounds, data):
        runs = lower_runs(local, block, IN_WORD)
        found, texts = find_entries(*index, runs.data, runs.offsets, bits)
        occurrences.append(found + np.array([first, 0, 0]))
        sentences.append(texts)
    return np.concatenate(occurrences), np.concatenate(sentences)


def _are_near(
    occurrences: "np.ndarray", near: "np.ndarray", rows: "np.ndarray", words: "np.ndarray", window: int
) -> "np.ndarray":
    """Return, for each of `occurrences`, whether one of `near` is within `window` words in the same document,
    bool [occurrences]. Both are as `find_entries` returns them for sentences. `rows` and `words` hold the
    document and the number of words of each sentence.
    """
    import numpy as np

    before = np.cumsum(words) - words  # words of all documents before each sentence
    positions, places = before[occurrences[:, 0]] + occurrences[:, 1], before[near[:, 0]] + near[:, 1]
    documents = rows[occurrences[:, 0]]
    of_document = np.searchsorted(rows, [documents, documents + 1])  # its first sentence, and that of the next
    edges = np.append(before, words.sum())[of_document]
    first = np.searchsorted(places, np.maximum(positions - window, edges[0]), "left")
    return first < np.searchsorted(places, np.minimum(positions + window + 1, edges[1]), "left")


def _ratio(part: "np.ndarray", whole: "np.ndarray") -> pa.Array:
    import numpy as np

    return pa.array((part / np.maximum(whole, 1)).astype(np.float32), mask=whole == 0)


def _index(files: tuple[str, ...]) -> "Index":
    """Return the entries of files in the form that `pipelines.kernels.search.word_lists` searches."""
    import numpy as np

    from pipelines.kernels.search.word_lists import index_entries

    entries = sorted({entry for path in files for entry in _read(Path(path))[0]})
    if not entries:
        raise UserError(f"word_list: {', '.join(files)}: no entry consists of words; use another list")
    bounds = np.cumsum([0, *map(len, entries)], dtype=np.int64)
    data = np.frombuffer(b"".join(entries), np.uint8)
    slots = np.full(1 << (2 * len(entries) + 1).bit_length(), -1, np.int32)
    index_entries(data, bounds, slots)
    return data, bounds, slots


def _read(path: Path) -> tuple[list[bytes], list[int]]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"word_list: {path}: not UTF-8 at byte {error.start}") from None
    entries, lost = [], []
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("#"):
            entry = _words(line)
            if _is_searchable(line.strip(), entry.decode()):
                entries.append(entry)
            else:
                lost.append(number)
    return entries, lost


def _is_searchable(entry: str, words: str) -> bool:
    """Return whether a search for the words of an entry would find the entry and hardly anything else.

    Symbols other than punctuation are part of an entry's meaning, and so is punctuation if a word of the
    entry has fewer than two letters: `s m` is not `s&m`.
    """
    symbols = {c for c in entry if not (c.isalnum() or c.isspace() or c in _JOINS or unicodedata.category(c)[0] == "M")}
    if not words or not symbols:
        return bool(words)
    between = all(unicodedata.category(c) in _BETWEEN or c in _PUNCTUATION for c in symbols)
    return between and all(sum(c.isalpha() for c in word) > 1 for word in words.split(" "))


def _words(text: str) -> bytes:
    import numpy as np

    from pipelines.kernels.text.characters import lower_runs
    from pipelines.kernels.text.tables import IN_WORD

    data = np.frombuffer(text.encode(), np.uint8)
    bounds = np.array([0, len(data)], np.int64)
    for array in (data, bounds):
        array.flags.writeable = False
    return lower_runs(bounds, data, IN_WORD).data.tobytes()
