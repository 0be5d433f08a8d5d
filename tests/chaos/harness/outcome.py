"""Comparison of a build or run that was broken with an undisturbed one."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pipelines.contracts.manifest import load_corpus
from pipelines.contracts.shard_set import open_shard
from tests.trainers.launching import losses, recorded

UNPUBLISHED = ("run.json", ".checksums.json", "report.html", "ray.json")  # times, and what is made from them


class Outcome(NamedTuple):
    """What a fault did to the result.

    `lost` and `doubled` are numbers of documents (in training, of rows).
    """

    lost: int
    doubled: int
    identical: bool


@dataclass(frozen=True)
class Reference:
    """An undisturbed corpus: the content of each file by path, and how often each document is in the shards."""

    files: dict[str, bytes]
    documents: Counter[bytes]


def reference_of(corpus: Path) -> Reference:
    return Reference(files_of(corpus), documents_of(corpus))


def files_of(corpus: Path) -> dict[str, bytes]:
    """Return the bytes of every file that is part of the result, by path.

    Temporary files of killed attempts are left out, and so are files that depend on times (UNPUBLISHED).
    """
    paths = [path for path in sorted(corpus.rglob("*")) if path.is_file()]
    kept = [path for path in paths if path.name not in UNPUBLISHED and path.suffix != ".tmp"]
    return {str(path.relative_to(corpus)): path.read_bytes() for path in kept}


def documents_of(corpus: Path) -> Counter[bytes]:
    """Count how often each document id occurs in each shard set of a corpus."""
    found: Counter[bytes] = Counter()
    for name, shard_set in load_corpus(corpus).shard_sets.items():
        for shard in shard_set.shards:
            found.update(name.encode() + b"/" + bytes(i.as_py()) for i in open_shard(corpus, shard).doc_ids)
    return found


def build_outcome(wanted: Reference, corpus: Path) -> Outcome:
    """Compare a build that was broken, and then finished by the same command, with the reference."""
    documents, files = documents_of(corpus), files_of(corpus)
    return Outcome(
        (wanted.documents - documents).total(), (documents - wanted.documents).total(), files == wanted.files
    )


@dataclass(frozen=True)
class Trained:
    """What a run trained: the digests of its rows by (step, sample), and the loss of each step."""

    rows: dict[tuple[int, int], set[str]]
    losses: dict[int, float]


def trained(run: Path, record: Path) -> Trained:
    """Return the rows that `launching.Record` wrote at `record` over all attempts of `run`, and the losses of
    `run`.
    """
    return Trained(recorded(record), losses(run))


def run_outcome(wanted: Trained, found: Trained) -> Outcome:
    """Compare a run that was broken and continued with an undisturbed one.

    A row is lost if no attempt read it at the right step, and doubled if one read it at a wrong step. Runs
    are identical if the digests of their rows are equal and their losses agree to 1e-5 (the order of sums
    depends on the number of workers).
    """
    lost, doubled = wanted.rows.keys() - found.rows.keys(), found.rows.keys() - wanted.rows.keys()
    same_losses = wanted.losses.keys() == found.losses.keys() and all(
        abs(loss - found.losses[step]) < 1e-5 for step, loss in wanted.losses.items()
    )
    return Outcome(len(lost), len(doubled), wanted.rows == found.rows and same_losses)
