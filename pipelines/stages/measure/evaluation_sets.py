"""Evaluation sets: data on which models will be tested, and the index of n-grams that finds this data in
corpora.
"""

import gzip
import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.config import ADDED
from gristmill.errors import UserError

if TYPE_CHECKING:
    from pipelines.kernels.signals.ngrams import Table

FIELDS = ("prompt", "answer")
_SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")


@dataclass(frozen=True)
class EvaluationSet:
    """A file of evaluation items. The fields named in `prompts` are shown to the model; those named in
    `answers` contain the expected answers.
    """

    name: str
    """Name of the set, and the prefix of the names of its items: `name#record`, with records counted from 0."""
    file: str
    """JSON lines (`.jsonl`, `.jsonl.gz`) or Parquet; relative to the working directory."""
    prompts: tuple[str, ...] = ()
    """Fields of questions, passages and choices; `a.b` is field b of field a. In lists and objects, each string is
    a text."""
    answers: tuple[str, ...] = ()
    """Fields of answers and solutions."""
    ids: str | None = field(default=None, metadata=ADDED)
    """The field whose value names an item, as `name#ID`, instead of its record number. Files of `trainers
    evaluate --write-items` have `id`.
    """

    def check(self) -> None:
        """Raise ValueError if the file does not exist or has an unknown format, if the name is invalid, or if
        both `prompts` and `answers` are empty.
        """
        if not self.file.endswith(_SUFFIXES) or not Path(self.file).is_file():
            raise ValueError(f"file: got {self.file!r}, expected an existing file that ends in {', '.join(_SUFFIXES)}")
        if not self.prompts and not self.answers:
            raise ValueError("prompts, answers: both are empty, expected at least one field of the file's records")
        if not self.name or "#" in self.name:
            raise ValueError(f"name: got {self.name!r}, expected some characters other than #")

    def texts(self) -> Iterator[tuple[int, str, int, str]]:
        """Yield (record number, name of the item, index into FIELDS, text) for every text, in NFC. Raises
        UserError for an invalid record.
        """
        for record, item in enumerate(self._items()):
            named = record if self.ids is None else self._value(record, item, self.ids)
            if not isinstance(named, str | int):
                raise UserError(
                    f"{self.file}: record {record}: {self.ids}: got {type(named).__name__}, expected a name"
                )
            for index, names in enumerate((self.prompts, self.answers)):
                for name in names:
                    for text in _strings(self._value(record, item, name)):
                        yield record, f"{self.name}#{named}", index, unicodedata.normalize("NFC", text)

    def _items(self) -> Iterator[Mapping[str, Any]]:
        if self.file.endswith(".parquet"):
            from pyarrow import parquet

            names = {name.split(".")[0] for name in (*self.prompts, *self.answers, *filter(None, [self.ids]))}
            with parquet.ParquetFile(self.file) as file:
                columns = [name for name in file.schema_arrow.names if name in names]
                for batch in file.iter_batches(columns=columns):
                    yield from batch.to_pylist()
            return
        with gzip.open(self.file, "rb") if self.file.endswith(".gz") else open(self.file, "rb") as lines:
            for number, line in enumerate(lines):
                try:
                    item = json.loads(line)
                except ValueError:
                    item = None
                if not isinstance(item, dict):
                    raise UserError(f"{self.file}: line {number + 1}: expected a JSON object")
                yield item

    def _value(self, record: int, item: Mapping[str, Any], name: str) -> Any:
        value: Any = item
        for step in name.split("."):
            if value is None:
                return None
            if not isinstance(value, Mapping) or step not in value:
                available = ", ".join(value) if isinstance(value, Mapping) else f"a {type(value).__name__}"
                raise UserError(f"{self.file}: record {record}: no field {name!r}; available: {available}")
            value = value[step]
        return value


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for entry in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(entry)


@dataclass(frozen=True)
class Index:
    """An index of the n-grams of evaluation sets, and of the texts that contain them. Texts of one field with
    the same words are stored once.

    N-gram g of `table` occurs in the texts `texts[bounds[g]:bounds[g + 1]]`. The same slice of `positions`
    holds, for each of these texts, the index of the word at which the n-gram first occurs.

    `names[t]` is the name of the first item that contains text t. `sets[t]` and `fields[t]` are the indices
    of the item's set and of the text's field in FIELDS. Text t has `counts[t]` n-grams of `lengths[t]` words
    each, which cover `words[t]` words. `copies` contains (item name, t) for each further occurrence of text
    t. `facts` maps the name of each set to numbers of its items and texts.
    """

    table: "Table"
    bounds: np.ndarray
    texts: np.ndarray
    positions: np.ndarray
    names: tuple[str, ...]
    sets: np.ndarray
    fields: np.ndarray
    lengths: np.ndarray
    counts: np.ndarray
    words: np.ndarray
    facts: dict[str, dict[str, int]]
    copies: tuple[tuple[str, int], ...] = ()


def index_sets(sets: Sequence[EvaluationSet], ngram: int, min_words: int, common: int) -> Index:
    """Index the n-grams of all texts with at least `min_words` words. A text of fewer than `ngram` words
    counts as a single n-gram. N-grams that occur in more than `common` distinct texts are excluded.
    """
    from pipelines.kernels.signals.ngrams import make_table, ngram_keys

    known: dict[tuple[int, bytes], int] = {}
    copies: list[tuple[str, int]] = []
    texts: list[tuple[str, int, int, int]] = []  # name, set, field, words of an n-gram
    keys, positions = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    facts = {each.name: {"items": 0, "texts": 0, "copies": 0, "too_short": 0, "only_common": 0} for each in sets}
    for number, each in enumerate(sets):
        fact, last = facts[each.name], -1
        for record, name, role, text in each.texts():
            fact["items"] += record != last
            last, hashes = record, _word_hashes(text)
            if len(hashes) < min_words or (role, hashes.tobytes()) in known:
                fact["too_short" if len(hashes) < min_words else "copies"] += 1
                if len(hashes) >= min_words:
                    copies.append((name, known[role, hashes.tobytes()]))
                continue
            known[role, hashes.tobytes()] = len(texts)
            fact["texts"] += 1
            size = min(ngram, len(hashes))
            different, first = np.unique(ngram_keys(hashes, size), return_index=True)
            keys.append(different)
            positions.append(first)
            texts.append((name, number, role, size))
    owners = np.repeat(np.arange(len(texts)), [len(k) for k in keys[1:]])
    unique, inverse, counts = np.unique(np.concatenate(keys), return_inverse=True, return_counts=True)
    kept = counts[inverse] <= common
    unique = unique[counts <= common]
    order = np.lexsort((owners[kept], np.concatenate(keys)[kept]))
    owners, kept_positions = owners[kept][order], np.concatenate(positions)[kept][order]
    bounds = np.concatenate([[0], np.cumsum(counts[counts <= common])])
    names, set_numbers, fields, lengths = zip(*texts, strict=True) if texts else ((), (), (), ())
    sizes = np.array(lengths, np.int64)
    grams = np.bincount(owners, minlength=len(texts))
    for number in np.asarray(set_numbers, np.int64)[grams == 0].tolist():
        facts[sets[number].name]["only_common"] += 1
    words = covered_words(owners, kept_positions, sizes, len(texts))
    table = make_table(unique, np.unique(sizes))
    columns = (np.array(set_numbers, np.int64), np.array(fields, np.int64), sizes, grams, words)
    return Index(table, bounds, owners, kept_positions, names, *columns, facts, tuple(copies))


def covered_words(groups: np.ndarray, starts: np.ndarray, lengths: np.ndarray, count: int) -> np.ndarray:
    """Return the number of words that n-grams cover in each group, int64 [count]. N-gram i belongs to group g
    = groups[i], begins at word starts[i], and is lengths[g] words long. A word in several n-grams counts
    once.
    """
    order = np.lexsort((starts, groups))
    groups, starts = groups[order], starts[order]
    sizes = lengths[groups]
    same = groups[1:] == groups[:-1]
    sizes[:-1][same] = np.minimum(sizes[:-1], starts[1:] - starts[:-1])[same]
    return np.bincount(groups, sizes, count).astype(np.int64)


def _word_hashes(text: str) -> np.ndarray:
    from pipelines.kernels.signals.ngrams import hash_words
    from pipelines.kernels.text.characters import classify
    from pipelines.kernels.text.words import find_words

    data = np.frombuffer(text.encode("utf-8", "replace"), np.uint8)
    bounds = np.array([0, len(data)], np.int64)
    for array in (data, bounds):
        array.flags.writeable = False
    return hash_words(data, find_words(bounds, data, classify(bounds, data)))
