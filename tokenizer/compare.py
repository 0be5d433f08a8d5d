"""Compare tokenizers by measuring them on the same groups of texts."""

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenizer.encode import Encoder
from tokenizer.texts import read_records

ALL = "all"
"""Name of the group of all texts."""

MAX_GROUPS = 64
"""Largest number of groups, not counting the group of all texts. A field with more values identifies documents
rather than kinds of text.
"""

_NOT_PARALLEL = ("false", "f", "no", "n", "off", "0", "")  # values of TOKENIZERS_PARALLELISM

Texts = Mapping[str, pa.LargeStringArray]


@dataclass(frozen=True)
class Row:
    """The measurements of one tokenizer on one group of texts. Words are separated by white space.

    `tokens_per_word` is the fertility. `coverage` is the share of words that yield at least one token and no
    unknown token. `vocabulary_used` is the share of the vocabulary, without special tokens, that occurs in
    the texts. `megabytes_per_second` is the speed of encoding alone, in wall time with `threads` threads.
    """

    tokenizer: str
    group: str
    documents: int
    words: int
    bytes: int
    tokens: int
    tokens_per_word: float
    bytes_per_token: float
    coverage: float
    vocabulary_used: float
    megabytes_per_second: float
    threads: int


@dataclass
class _Counts:
    documents: int = 0
    words: int = 0
    bytes: int = 0
    tokens: int = 0
    covered: int = 0
    seconds: float = 0.0
    used: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))

    def add(self, other: "_Counts") -> None:
        for name in ("documents", "words", "bytes", "tokens", "covered", "seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.used = other.used if not len(self.used) else self.used | other.used


def read_groups(files: Iterable[tuple[str, str]], by: Sequence[str], most_bytes: float, field: str = "text") -> Texts:
    """Read texts from files, given as (name, path), and group them. For each group, the first texts are kept,
    up to about `most_bytes` of UTF-8. The text of a JSON record is the value of `field`.

    The group of a JSON record consists of its values of the fields in `by`, joined by " / ". In `by`, a dot
    selects within an object, as in `meta.language`; a missing value is written as "none". Without `by`, and
    for plain text, the group is the name given for the file.

    Raises ValueError for a file that `read_records` cannot read, if the files hold no text, if a field in
    `by` is missing from every record, and if there are more than 64 groups.
    """
    groups: dict[str, list[str]] = {}
    sizes: Counter[str] = Counter()
    seen: set[str] = set()
    for name, path in files:
        for text, record in read_records(path, field):
            values = [_value(record, key) for key in by] if record else []
            seen.update(key for key, value in zip(by, values, strict=False) if value is not None)
            group = " / ".join("none" if value is None else str(value) for value in values) or name
            if group not in sizes and len(sizes) == MAX_GROUPS:
                raise ValueError(f"--by: {path}: more than {MAX_GROUPS} groups; name fields with fewer values")
            if text and sizes[group] < most_bytes:
                groups.setdefault(group, []).append(text)
                sizes[group] += len(text.encode())
    if not groups:
        raise ValueError("--text: the files hold no text; name other files, or the right --field")
    if missing := [key for key in by if key not in seen]:
        raise ValueError(f"--by: no record has a field {missing[0]!r}; name a field of the JSON lines, or leave it out")
    return {group: pa.array(texts, pa.large_string()) for group, texts in groups.items()}


def _value(record: Mapping[str, Any], key: str) -> Any:
    value: Any = record
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def compare(encoders: Mapping[str, Encoder], texts: Texts) -> list[Row]:
    """Measure each tokenizer on each group. Returns a row for each pair, ordered by tokenizer and then by
    group. If there are several groups, each tokenizer also gets a row for all texts.
    """
    rows = []
    for name, encoder in encoders.items():
        encoder.encode(next(iter(texts.values())).slice(0, 1))  # loads the library before the clock starts
        total = _Counts()
        for group, documents in texts.items():
            counts = _count(encoder, documents)
            rows.append(_row(name, group, encoder, counts))
            total.add(counts)
        if len(texts) > 1:
            rows.append(_row(name, ALL, encoder, total))
    return rows


def _count(encoder: Encoder, documents: pa.LargeStringArray) -> _Counts:
    started = time.perf_counter()
    tokens, _ = encoder.encode(documents)
    seconds = time.perf_counter() - started
    words: Counter[str] = Counter()
    size = 0
    for text in documents.to_pylist():
        words.update(text.split())
        size += len(text.encode())
    used = np.bincount(tokens, minlength=encoder.vocab_size) > 0
    covered = _count_covered(encoder, words)
    return _Counts(len(documents), words.total(), size, len(tokens), covered, seconds, used)


def _count_covered(encoder: Encoder, words: Counter[str]) -> int:
    distinct = list(words)
    ids, offsets = encoder.encode(pa.array(distinct, pa.large_string()))
    unknown = np.zeros(len(ids) + 1, np.int64)
    if encoder.definition.unknown_id is not None:
        np.cumsum(ids == encoder.definition.unknown_id, out=unknown[1:])
    known = (unknown[offsets[1:]] == unknown[offsets[:-1]]) & (np.diff(offsets) > 0)
    return sum(words[word] for word, is_known in zip(distinct, known.tolist(), strict=True) if is_known)


def _row(name: str, group: str, encoder: Encoder, counts: _Counts) -> Row:
    special = list(encoder.definition.specials.values())
    ordinary = len(set(encoder.definition.tokens) - set(special))
    used = counts.used.copy()
    used[special] = False
    return Row(
        tokenizer=name,
        group=group,
        documents=counts.documents,
        words=counts.words,
        bytes=counts.bytes,
        tokens=counts.tokens,
        tokens_per_word=counts.tokens / counts.words if counts.words else 0.0,
        bytes_per_token=counts.bytes / counts.tokens if counts.tokens else 0.0,
        coverage=counts.covered / counts.words if counts.words else 0.0,
        vocabulary_used=int(used.sum()) / ordinary if ordinary else 0.0,
        megabytes_per_second=counts.bytes / 1e6 / counts.seconds if counts.seconds else 0.0,
        threads=count_threads(encoder),
    )


def count_threads(encoder: Encoder) -> int:
    """Return the number of threads that `Encoder.encode` uses on this machine with `parallel=False`. For
    `tokenizers` and `words`, it depends on RAYON_NUM_THREADS and TOKENIZERS_PARALLELISM. All other libraries
    use one.
    """
    parallel = os.environ.get("TOKENIZERS_PARALLELISM", "true").lower() not in _NOT_PARALLEL
    if encoder.library not in ("tokenizers", "words") or not parallel:
        return 1
    limit = os.environ.get("RAYON_NUM_THREADS", "")
    return int(limit) if limit.isdigit() and int(limit) > 0 else len(os.sched_getaffinity(0))
