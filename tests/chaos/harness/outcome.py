"""What a broken build or run came to, beside one that nothing broke."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pipelines.contracts.manifest import load_corpus
from pipelines.contracts.shard_set import open_shard
from tests.trainers.launching import losses, recorded

UNPUBLISHED = ("run.json", ".checksums.json", "report.html", "ray.json")  # times, and what is made from them


class Outcome(NamedTuple):
    """`lost` and `doubled` in documents (of a run: rows trained on), `identical` in every byte that is part of the result."""

    lost: int
    doubled: int
    identical: bool


@dataclass(frozen=True)
class Reference:
    """A finished corpus that nothing broke: bytes by path, and how often each document is in its shards."""

    files: dict[str, bytes]
    documents: Counter[bytes]


def reference_of(corpus: Path) -> Reference:
    """What the other builds of the same corpus are held against."""
    return Reference(files_of(corpus), documents_of(corpus))


def files_of(corpus: Path) -> dict[str, bytes]:
    """Bytes of everything that is part of the result; temporary files of killed attempts are not."""
    paths = [path for path in sorted(corpus.rglob("*")) if path.is_file()]
    kept = [path for path in paths if path.name not in UNPUBLISHED and path.suffix != ".tmp"]
    return {str(path.relative_to(corpus)): path.read_bytes() for path in kept}


def documents_of(corpus: Path) -> Counter[bytes]:
    """How often the id of each document is in the shards of a corpus, over all shard sets."""
    found: Counter[bytes] = Counter()
    for name, shard_set in load_corpus(corpus).shard_sets.items():
        for shard in shard_set.shards:
            found.update(name.encode() + b"/" + bytes(i.as_py()) for i in open_shard(corpus, shard).doc_ids)
    return found


def build_outcome(wanted: Reference, corpus: Path) -> Outcome:
    """Of a build that was broken and then finished by the same command."""
    documents, files = documents_of(corpus), files_of(corpus)
    return Outcome(
        (wanted.documents - documents).total(), (documents - wanted.documents).total(), files == wanted.files
    )


@dataclass(frozen=True)
class Trained:
    """A finished run that nothing broke: the digest of each row by (step, sample), and the loss of each step."""

    rows: dict[tuple[int, int], set[str]]
    losses: dict[int, float]


def trained(run: Path, record: Path) -> Trained:
    """What `launching.Record` wrote at `record` while `run` was trained, over all its attempts."""
    return Trained(recorded(record), losses(run))


def run_outcome(wanted: Trained, found: Trained) -> Outcome:
    """Of a run that was broken and went on. A row is doubled where its sample is read at a step that is not its own, lost
    where no attempt read it; identical are digests of rows, and losses to 5 decimals (over other numbers of workers the
    order of sums differs).
    """
    lost, doubled = wanted.rows.keys() - found.rows.keys(), found.rows.keys() - wanted.rows.keys()
    same_losses = wanted.losses.keys() == found.losses.keys() and all(
        abs(loss - found.losses[step]) < 1e-5 for step, loss in wanted.losses.items()
    )
    return Outcome(len(lost), len(doubled), wanted.rows == found.rows and same_losses)
