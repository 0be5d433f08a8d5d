"""The examples of one split of a task, stored as columns."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gristmill.storage.location import FileRecord
from trainers.tasks.schema.task import Task

HIDDEN = -100
"""Stands for a label, tag or right candidate that is hidden or does not exist."""


@dataclass(frozen=True)
class Examples:
    """The n examples of a split, in the order of its files.

    `texts` is a tuple of arrays of n texts each, which depends on the task's kind:

    - `span`: (question, passage)
    - `choose`: (text,) or (text, passage)
    - `tag`: (words joined by single spaces,)
    - `facts`: (subjects,)
    - `minimal_pairs`: empty
    - other kinds: (text,) or (text, text_b)

    `word_starts` and `word_ends` are flat arrays of UTF-8 byte offsets in the example's text; example i has
    words `word_offsets[i]` to `word_offsets[i + 1] - 1`. `candidates` is also flat; `candidate_offsets`
    divides it among the examples in the same way.

    The fields that hold the gold depend on the task's kind:

    - `labels`, int64 [n]: index into the task's labels for `classify`, index of the right candidate for `choose`
      and `minimal_pairs`; -100 if hidden or if no candidate is right
    - `values`, float64 [n]: the numbers for `regress`; NaN if hidden
    - `tags`, int64, one per word: index into the task's labels for `tag`; -100 if hidden
    - `spans`: for `span`, the distinct accepted spans [start, end) of each example in UTF-8 bytes of the passage;
      empty if the question has no answer
    - `targets`: the accepted texts for `generate`, `span`, `choose` and `facts`

    `groups`, int64 [n], is the index of each example's group; `question_accuracy` counts a group as one
    question. In `minimal_pairs`, each example has two candidates, and candidate 0 is the acceptable text;
    `subtasks` and `fields` name the subtask and the field that each example belongs to. In `facts`, the
    subtask is the relation.

    `labelled` says whether the gold is known. `files` are the files that were read, with sizes and checksums.
    `own_ids` says whether the ids come from the files. `skipped` is the number of incomplete rows that were
    skipped because the task file allows it.
    """

    task: Task
    split: str
    ids: list[str]
    texts: tuple[pa.LargeStringArray, ...]
    labelled: bool
    files: tuple[FileRecord, ...]
    own_ids: bool = False
    skipped: int = 0
    candidates: pa.LargeStringArray | None = None
    candidate_offsets: np.ndarray | None = None
    word_starts: np.ndarray | None = None
    word_ends: np.ndarray | None = None
    word_offsets: np.ndarray | None = None
    labels: np.ndarray | None = None
    values: np.ndarray | None = None
    tags: np.ndarray | None = None
    spans: list[list[tuple[int, int]]] | None = None
    targets: list[list[str]] | None = None
    groups: np.ndarray | None = None
    subtasks: list[str] | None = None
    fields: list[str] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def words(self, example: int) -> list[str]:
        """Return the words of an example of a `tag` task."""
        assert self.word_offsets is not None
        assert self.word_starts is not None
        assert self.word_ends is not None
        text = self.texts[0][example].as_buffer().to_pybytes()
        bounds = range(self.word_offsets[example], self.word_offsets[example + 1])
        return [text[self.word_starts[i] : self.word_ends[i]].decode() for i in bounds]

    def candidates_of(self, example: int) -> list[str]:
        """Return the candidates of an example of a `choose` or `minimal_pairs` task."""
        assert self.candidates is not None
        assert self.candidate_offsets is not None
        first, last = self.candidate_offsets[example : example + 2].tolist()
        texts: list[str] = self.candidates[first:last].to_pylist()
        return texts
