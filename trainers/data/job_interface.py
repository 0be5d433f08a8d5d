"""What a job reads, as the loop and the run directory see it, whatever the kind of job."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from gristmill.storage.location import Location
from pipelines.contracts.manifest import TokenizerRecord
from trainers.data.order import Order, Samples
from trainers.rows.batch import Batch


class JobCorpus(Protocol):
    """What a job reads: its fingerprint, and its tokenizer's file below a directory."""

    @property
    def fingerprint(self) -> str:
        """A digest of everything that is read."""
        ...

    @property
    def directory(self) -> Location:
        """The directory that holds the tokenizer's file."""
        ...

    @property
    def tokenizer(self) -> TokenizerRecord:
        """The record of the tokenizer."""
        ...


class JobSource(Protocol):
    """A source, or a task: one that losses are shown for. `tokens` and `text_bytes` are those of an epoch."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def tokens(self) -> int:
        """Tokens, marks included."""
        ...

    @property
    def text_bytes(self) -> int:
        """UTF-8 bytes of the text."""
        ...


class JobTraining(Protocol):
    """The training samples of a run, in their order."""

    @property
    def order(self) -> Order:
        """The order of the samples."""
        ...

    @property
    def since(self) -> int:
        """The sample from which on the run reads this corpus."""
        ...

    @property
    def sources(self) -> Sequence[JobSource]:
        """The sources; `Batch.source` is an index into them."""
        ...

    @property
    def row_lengths(self) -> Sequence[int]:
        """The nominal length of a row in each phase of the order."""
        ...

    def read_since(self, sample: int) -> Self:
        """Return the same, read from `sample` on."""
        ...

    def split(self, samples: Samples, size: int, rank: int, world: int) -> Iterator[Batch]:
        """Yield the share of rank `rank` of the samples of a step, in batches of `size` samples: as many on
        every rank.
        """
        ...

    def consumed(self, samples: int) -> dict[str, dict[str, float]]:
        """What the samples up to `samples` read of each source, as `packed_corpus.TrainingData` has it."""
        ...

    def notices(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Events for the log that describe the data: (event, fields with a `message`)."""
        ...


class JobValidation(Protocol):
    """What is held out."""

    @property
    def sources(self) -> Sequence[JobSource]:
        """The sources that something of is held out; none for no validation."""
        ...

    @property
    def weights(self) -> Mapping[str, float]:
        """The share of each source in the loss over all; empty for the mean over targets."""
        ...

    def batches(self, size: int, rank: int, world: int) -> Iterator[Batch]:
        """Yield the share of rank `rank` in batches of `size` samples: as many on every rank."""
        ...


def verified_tokenizer(corpus: JobCorpus) -> Path:
    """Return the path of the corpus's tokenizer.json, checksum verified."""
    return corpus.directory.verify(corpus.tokenizer.file)
