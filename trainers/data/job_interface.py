"""The interfaces through which the training loop and the run directory access the data of any kind of job."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from gristmill.storage.location import Location
from pipelines.contracts.shard_set import TokenizerRecord
from trainers.data.order import Order, Samples
from trainers.rows.batch import Batch


class JobCorpus(Protocol):
    """The corpus of a job as the training loop sees it: its fingerprint and its tokenizer."""

    @property
    def fingerprint(self) -> str:
        """A digest of the data that training and validation read."""
        ...

    @property
    def directory(self) -> Location:
        """The directory that holds the tokenizer's file."""
        ...

    @property
    def tokenizer(self) -> TokenizerRecord:
        """The tokenizer's record, with its file, size of vocabulary and special tokens."""
        ...


class JobSource(Protocol):
    """A source or a task whose losses are reported separately. `tokens` and `text_bytes` are totals over one
    epoch.
    """

    @property
    def name(self) -> str:
        """The name of the source or task."""
        ...

    @property
    def tokens(self) -> int:
        """The number of tokens, including the special tokens that are read with them."""
        ...

    @property
    def text_bytes(self) -> int:
        """The size of the text in UTF-8 bytes."""
        ...


class JobTraining(Protocol):
    """The training samples of a run, in their order."""

    @property
    def order(self) -> Order:
        """The order in which the run reads samples."""
        ...

    @property
    def since(self) -> int:
        """The index of the first sample that the run reads from this corpus."""
        ...

    @property
    def sources(self) -> Sequence[JobSource]:
        """The sources of the samples. `Batch.source` contains indices into this sequence."""
        ...

    @property
    def row_lengths(self) -> Sequence[int]:
        """The nominal row length of each phase of the order, in positions."""
        ...

    def read_since(self, sample: int) -> Self:
        """Return the same data, with `since` set to `sample`."""
        ...

    def split(self, samples: Samples, size: int, rank: int, world: int) -> Iterator[Batch]:
        """Yield rank `rank`'s share of a step's samples, in batches of up to `size` samples. Every rank gets
        the same number of batches.
        """
        ...

    def consumed(self, samples: int) -> dict[str, dict[str, float]]:
        """Return what the run has read of each source from sample `since` up to, but not including, sample
        `samples`, in the form of `packed_corpus.TrainingData.consumed`.
        """
        ...

    def notices(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (event, fields) for each log event that describes the data. The fields include a `message`."""
        ...


class JobValidation(Protocol):
    """The held-out samples of a run."""

    @property
    def sources(self) -> Sequence[JobSource]:
        """The sources that have held-out samples; empty if there is no validation."""
        ...

    @property
    def weights(self) -> Mapping[str, float]:
        """The weight of each source in the total loss. If empty, all sources have the same weight."""
        ...

    def batches(self, size: int, rank: int, world: int) -> Iterator[Batch]:
        """Yield rank `rank`'s share of the samples, in batches of up to `size` samples. Every rank gets the
        same number of batches.
        """
        ...


def verified_tokenizer(corpus: JobCorpus) -> Path:
    """Return the local path of the corpus's tokenizer file, after verifying its checksum."""
    return corpus.directory.verify(corpus.tokenizer.file)
