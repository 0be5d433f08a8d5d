"""Blame: the documents that an optimizer step read, each with its origin and history. Those that raised the
loss most come first.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from gristmill.errors import ConflictError, UserError
from gristmill.storage.disk import LocalPath
from gristmill.terminal import printable
from pipelines.contracts import lineage
from pipelines.contracts.columns import DROP, EDITS_COLUMN
from pipelines.contracts.lineage import Quarantined, select_rows
from trainers.config.job_kinds import as_pretraining
from trainers.config.pretraining import Pretraining
from trainers.data.packed_corpus import TrainingCorpus, TrainingData, corpus_of, training_data
from trainers.data.sequence_documents import ids_of
from trainers.engine.losses import Loss
from trainers.runs import checkpoint
from trainers.runs.exclusion import read_excluded
from trainers.runs.run import read_config, read_run, verified_copy


@dataclass(frozen=True)
class Blamed:
    """A document that a step read. `losses` holds the nats per target of each loss in which the document has
    targets, and `tokens` is its number of targets in the first loss.

    `excess` is how much more the document adds to the minimised loss than an average document with as many
    targets. The difference is multiplied by the step's number of targets in the first loss, so that with a
    single loss its unit is nats.
    """

    id: bytes
    source: str
    tokens: int
    losses: Mapping[str, float]
    excess: float
    excluded: bool


@dataclass(frozen=True)
class History:
    """The history of a document: its id as shown to users, its URL as pii steps redacted it, and what each
    step of the build did to it.
    """

    printed: str
    url: str | None
    steps: tuple[str, ...]


@dataclass(frozen=True)
class Blame:
    """The documents that a step read, worst first, and the losses of the step in nats per target, all
    measured with the weights after step `weights` (0: the initial weights).
    """

    step: int
    weights: int
    losses: Mapping[str, float]
    documents: tuple[Blamed, ...]
    corpus: TrainingCorpus

    def history(self, document: Blamed) -> History:
        """Return the history of a document. Raises UserError if its corpus has no readable steps."""
        published = _published(self.corpus.train[document.source].directory)
        if not published.steps:
            raise UserError(f"{published.directory}: records no steps")
        location = published.find(document.id.hex())
        if isinstance(location, Quarantined):
            return History(location.printed, None, (f"set aside: {location.reason}",))
        part = select_rows(location.part, [location.row])
        lines = [f"{published.read_step(location.source).label}: part {part.name}, row {location.row}"]
        for annotation in part.annotations:
            assert annotation.table is not None
            row = annotation.table.to_pylist()[0]
            said = [] if DROP not in row else [f"drops: {row[DROP]}" if row[DROP] else "keeps"]
            said += [f"{len(row[EDITS_COLUMN])} edits"] if row.get(EDITS_COLUMN) else []
            columns = len(row.keys() - {DROP, EDITS_COLUMN})
            said += [f"{columns} columns"] if columns else []
            lines.append(f"{annotation.step}: {', '.join(said) or 'nothing'}")
        url = part.table(("url",))["url"][0].as_py()
        if part.has("pii_url"):  # null where nothing was replaced
            url = part.table(("pii_url",))["pii_url"][0].as_py() or url
        return History(location.printed, url, tuple(lines))


@lru_cache(maxsize=8)
def _published(directory: LocalPath) -> lineage.Corpus:
    return lineage.open_corpus(directory)


def blame(run: LocalPath, step: int, warn: Callable[[str], None]) -> Blame:
    """Return the documents that step `step` of a run read, worst first: first the documents with a loss that
    is not finite, then the others by decreasing excess (see `Blamed`). Steps count from 1.

    Losses are computed again, without dropout, with the newest intact checkpoint before the step; if there is
    none, with the first one after it; and if the run has no checkpoints, with the initial weights.

    Raises UserError if the run does not pretrain a model, if it has no such step, if the corpus that the step
    read has since changed or been replaced, if all checkpoints are corrupt, or if the run began with the
    weights of another model and has no checkpoint.
    """
    record, config = read_run(run), as_pretraining(read_config(run), run)
    if not 1 <= step <= (config.budget.steps or 0):
        raise UserError(f"--step: got {step}, allowed 1 to {config.budget.steps}, the steps of the run")
    corpus = corpus_of(config)
    if corpus.fingerprint != record["fingerprints"]["corpus"]:
        raise ConflictError(
            f"{run}: read the corpus {record['fingerprints']['corpus']}, but {corpus.directory} is now "
            f"{corpus.fingerprint}, with its documents in another order"
        )
    if step <= record.get("since", 0):
        raise ConflictError(f"{run}: --step: got {step}, but up to step {record['since']} the run read another corpus")
    data = training_data(corpus, config)
    start = checkpoint.nearest(run, warn, step - 1)
    if start is None and "parent" in record:
        raise UserError(
            f"{run}: began with the weights of {record['parent']['path']} and has no checkpoint; blame needs one of its own"
        )
    data.order.resume(start.order if start else {})
    losses, sums = _sums(_model(run, config, start), config, data, step)
    nothing = np.zeros((len(losses), 2))
    total = sum(sums.values(), nothing)
    finite = sum((each for each in sums.values() if np.isfinite(each).all()), nothing)
    excluded = read_excluded(run)
    documents = [
        Blamed(
            identifier, source, round(each[0, 1]), _means(losses, each), _excess(losses, each, finite, total),
            identifier in excluded,
        )
        for (identifier, source), each in sums.items()
    ]  # fmt: skip
    documents.sort(key=lambda d: (math.isfinite(d.excess), -d.excess if math.isfinite(d.excess) else 0.0, d.id))
    return Blame(step, start.step if start else 0, _means(losses, total), tuple(documents), corpus)


def _means(losses: Sequence[Loss], sums: np.ndarray) -> dict[str, float]:
    return {loss.name: float(nats / targets) for loss, (nats, targets) in zip(losses, sums, strict=True) if targets}


def _excess(losses: Sequence[Loss], document: np.ndarray, finite: np.ndarray, total: np.ndarray) -> float:
    """Return the excess of a document (see `Blamed`). Each array, [losses, 2], holds the sum of nats and the
    number of targets for each loss. `document` covers this document, `finite` all documents whose nats are
    finite, and `total` all documents.
    """
    means, weights = finite[:, 0] / np.maximum(1, finite[:, 1]), np.array([loss.weight for loss in losses])
    scales = weights * (total[0, 1] / np.maximum(1, total[:, 1]))
    return float((scales * (document[:, 0] - means * document[:, 1])).sum())


def _model(run: LocalPath, config: Pretraining, start: checkpoint.Checkpoint | None) -> Any:
    if start is None:
        from trainers.models import build_model, give_characters

        network = build_model(config.model, read_run(run)["specials"], config.seed)
        give_characters(network, config.model, verified_copy(run))
        return network.eval()
    from trainers.inference.model_export import trained_model

    return trained_model(run, start)


def _sums(
    model: Any, config: Pretraining, data: TrainingData, step: int
) -> tuple[Sequence[Loss], dict[tuple[bytes, str], np.ndarray]]:
    """Return the losses of a run, and what each document in a step contributes to them, keyed by (id,
    source): the document's nats and number of targets for each loss, float64 [losses, 2]. If a loss has one
    target per row, the nats and the target are divided equally among the row's documents.
    """
    import torch

    from trainers.engine.forward import forward_of, tensors
    from trainers.engine.hardware.device import compute_device

    sequences = config.batch.sequences or 0
    packed = data.packed_at((step - 1) * sequences)
    device = compute_device()
    forward = forward_of(model.to(device), config)
    samples = data.order.take((step - 1) * sequences, sequences)
    sums: dict[tuple[bytes, str], np.ndarray] = {}
    rows = config.execution.rows(auto=8)
    for first in range(0, sequences, rows):
        chosen = samples.select(np.arange(first, min(first + rows, sequences)))
        batch = data.rows(chosen)
        with torch.no_grad():
            nats = {name: its.double().cpu().numpy() for name, its in forward(**tensors(batch, device)).items()}
        targets = {loss.name: loss.targets(batch) for loss in forward.losses}
        for row, (index, sequence, epoch) in enumerate(zip(chosen.source, chosen.sequence, chosen.epoch, strict=True)):
            source = packed.sources[index]
            ids = ids_of(source, int(sequence), packed.length, int(epoch))
            each = np.zeros((len(ids), len(forward.losses), 2))
            for number, loss in enumerate(forward.losses):
                held = targets[loss.name][row]
                if held.ndim == 0:
                    each[:, number] = np.array([nats[loss.name][row], held]) / max(1, len(ids))
                    continue
                segments = batch.target_documents[row][held]
                each[:, number, 0] = np.bincount(segments, nats[loss.name][row][held], len(ids))
                each[:, number, 1] = np.bincount(segments, minlength=len(ids))
            for identifier, one in zip(ids, each, strict=True):
                before = sums.get((identifier, source.name))
                sums[identifier, source.name] = one if before is None else before + one
    return forward.losses, sums


def show(blamed: Blame, count: int, line: Callable[[str], None]) -> None:
    """Pass the losses of the step and its `count` worst documents to `line`, one line at a time."""
    weights = f"the weights of step {blamed.weights}" if blamed.weights else "the initial weights"
    weights += ", because no earlier checkpoint is kept" if blamed.weights >= blamed.step else ""
    line(
        f"step {blamed.step}: {len(blamed.documents):,} documents, {_shown(blamed.losses)} with {weights}; worst first"
    )
    for number, document in enumerate(blamed.documents[:count], 1):
        try:
            history = blamed.history(document)
        except UserError as error:
            history = History(document.id.hex(), None, (f"no history: {error}",))
        mark = ", excluded" if document.excluded else ""
        unit = " nats" if len(blamed.losses) == 1 else ""  # a weighted sum of several losses has none
        line(
            f"{number}. {printable(history.printed)}  source {printable(document.source)}  {_shown(document.losses)} over "
            f"{document.tokens:,} tokens  excess {document.excess:,.1f}{unit}{mark}"
        )
        if history.url is not None:
            line(f"   url {printable(history.url)}")
        for step in history.steps:
            line(f"   {printable(step)}")
    if len(blamed.documents) > count:
        line(f"{len(blamed.documents) - count:,} more; --documents N shows N of them")
    line("`python -m pipelines inspect CORPUS ID` shows a document; `--exclude-documents FILE` excludes documents")


def _shown(losses: Mapping[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in losses.items()) or "no targets"
