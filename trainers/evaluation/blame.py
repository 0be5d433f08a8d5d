"""Blame: the documents that an optimizer step read, worst first, each with where it comes from and how it got here."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.errors import ConflictError, UserError
from gristmill.terminal import printable
from pipelines.contracts import lineage
from pipelines.contracts.columns import DROP, EDITS_COLUMN
from pipelines.contracts.lineage import Quarantined, select_rows
from trainers.config.job_kinds import as_pretraining
from trainers.config.pretraining import Pretraining
from trainers.data.packed_corpus import TrainingCorpus, TrainingData, corpus_of, training_data
from trainers.data.sequence_documents import ids_of
from trainers.runs import checkpoint
from trainers.runs.exclusion import read_excluded
from trainers.runs.run import read_config, read_run


@dataclass(frozen=True)
class Blamed:
    """A document of a step: `loss` in nats per target over its `tokens` targets (0 where it has none), `excess` the nats
    above what as many targets have on average in the step.
    """

    id: bytes
    source: str
    tokens: int
    loss: float
    excess: float
    excluded: bool


@dataclass(frozen=True)
class History:
    """Where a document comes from: printed id, URL (None where it has none), and one line per step of the build."""

    printed: str
    url: str | None
    steps: tuple[str, ...]


@dataclass(frozen=True)
class Blame:
    """A step's documents, worst first, under the weights of step `weights` (0: the initial ones)."""

    step: int
    weights: int
    loss: float
    documents: tuple[Blamed, ...]
    corpus: TrainingCorpus

    def history(self, document: Blamed) -> History:
        """The history of a document through the manifests of its corpus; UserError where they are gone."""
        published = _published(self.corpus.train[document.source].directory)
        if not published.steps:
            raise UserError(f"{published.directory}: records no steps")
        found = published.find(document.id.hex())
        if isinstance(found, Quarantined):
            return History(found.printed, None, (f"set aside: {found.reason}",))
        part = select_rows(found.part, [found.row])
        lines = [f"{published.read_step(found.source).label}: part {part.name}, row {found.row}"]
        for annotation in part.annotations:
            assert annotation.table is not None
            row = annotation.table.to_pylist()[0]
            said = [] if DROP not in row else [f"drops: {row[DROP]}" if row[DROP] else "keeps"]
            said += [f"{len(row[EDITS_COLUMN])} edits"] if row.get(EDITS_COLUMN) else []
            columns = len(row.keys() - {DROP, EDITS_COLUMN})
            said += [f"{columns} columns"] if columns else []
            lines.append(f"{annotation.step}: {', '.join(said) or 'nothing'}")
        return History(found.printed, part.table(("url",))["url"][0].as_py(), tuple(lines))


@lru_cache(maxsize=8)
def _published(directory: Path) -> lineage.Corpus:
    return lineage.open_corpus(directory)


def blame(run: Path, step: int, warn: Callable[[str], None]) -> Blame:
    """The documents of step `step` of a run (the first is 1), worst first.

    Losses are computed again, without dropout, under the newest intact checkpoint before the step; where none is kept, under
    the first one after it: it has read the step, but the initial weights find everything equally bad. These are taken
    where a run has no checkpoint at all.
    Worst is not finite, then the largest excess: it weighs a document's loss by its length, so that neither a rare word
    alone nor a long good document comes first. UserError where the run has no such step or its corpus is another by now.
    """
    record, config = read_run(run), as_pretraining(read_config(run), run)
    if not 1 <= step <= (config.budget.steps or 0):
        raise UserError(f"--step: got {step}, the run has the steps 1 to {config.budget.steps}")
    corpus = corpus_of(config)
    if corpus.fingerprint != record["fingerprints"]["corpus"]:
        raise ConflictError(
            f"{run}: read the corpus {record['fingerprints']['corpus']}, {corpus.directory} is {corpus.fingerprint} by now; "
            f"its order of documents is another"
        )
    if step <= record.get("since", 0):
        raise ConflictError(f"{run}: --step: got {step}, up to step {record['since']} the run read another corpus")
    data = training_data(corpus, config)
    found = checkpoint.nearest(run, warn, step - 1)
    data.order.resume(found.order if found else {})
    sums = _sums(_model(run, config, found), config, data, step)
    targets = sum(count for _, count in sums.values())
    finite = {key: value for key, value in sums.items() if math.isfinite(value[0])}
    mean = sum(nats for nats, _ in finite.values()) / max(1, sum(count for _, count in finite.values()))
    excluded = read_excluded(run)
    documents = [
        Blamed(identifier, source, int(count), nats / max(1.0, count), nats - mean * count, identifier in excluded)
        for (identifier, source), (nats, count) in sums.items()
    ]
    documents.sort(key=lambda d: (math.isfinite(d.excess), -d.excess if math.isfinite(d.excess) else 0.0, d.id))
    loss = sum(nats for nats, _ in sums.values()) / max(1.0, targets)
    return Blame(step, found.step if found else 0, loss, tuple(documents), corpus)


def _model(run: Path, config: Pretraining, found: checkpoint.Checkpoint | None) -> Any:
    if found is None:
        from trainers.models import build_model

        return build_model(config.model, read_run(run)["specials"], config.seed).eval()
    from trainers.inference.model_export import trained_model

    return trained_model(run, found)


def _sums(
    model: Any, config: Pretraining, data: TrainingData, step: int
) -> dict[tuple[bytes, str], tuple[float, float]]:
    """(nats, targets) of every document of a step by (id, source); one that was read twice counts twice."""
    import torch

    from trainers.engine.device import compute_device
    from trainers.engine.forward import Forward, tensors
    from trainers.rows.batch import IGNORED

    sequences = config.batch.sequences or 0
    grid = data.grid((step - 1) * sequences)
    device = compute_device()
    forward = Forward(model.to(device), config.model.architecture, config.data.isolation)
    samples = data.order.take((step - 1) * sequences, sequences)
    sums: dict[tuple[bytes, str], tuple[float, float]] = {}
    for first in range(0, sequences, config.execution.micro_batch):
        chosen = samples.select(np.arange(first, min(first + config.execution.micro_batch, sequences)))
        batch = data.rows(chosen)
        with torch.no_grad():
            nats = forward(**tensors(batch, device))[0].double().cpu().numpy()
        for row, (index, sequence, epoch) in enumerate(zip(chosen.source, chosen.sequence, chosen.epoch, strict=True)):
            source, held = grid.sources[index], batch.targets[row] != IGNORED
            ids = ids_of(source, int(sequence), grid.length, int(epoch))
            segments = batch.target_segments[row][held]
            by_segment = np.bincount(segments, nats[row][held], len(ids)), np.bincount(segments, minlength=len(ids))
            for identifier, more, count in zip(ids, *by_segment, strict=True):
                before = sums.get((identifier, source.name), (0.0, 0.0))
                sums[identifier, source.name] = (before[0] + float(more), before[1] + float(count))
    return sums


def show(found: Blame, count: int, line: Callable[[str], None]) -> None:
    """Print the `count` worst documents. What strangers chose (paths, URLs) is escaped, no text is shown."""
    weights = f"the weights of step {found.weights}" if found.weights else "the initial weights"
    weights += ", no checkpoint before it is kept" if found.weights >= found.step else ""
    line(f"step {found.step}: {len(found.documents):,} documents, loss {found.loss:.4f} with {weights}; worst first")
    for number, document in enumerate(found.documents[:count], 1):
        try:
            history = found.history(document)
        except UserError as error:
            history = History(document.id.hex(), None, (f"no history: {error}",))
        mark = ", excluded" if document.excluded else ""
        line(
            f"{number}. {printable(history.printed)}  source {printable(document.source)}  loss {document.loss:.4f} over "
            f"{document.tokens:,} tokens  excess {document.excess:,.1f} nats{mark}"
        )
        if history.url is not None:
            line(f"   url {printable(history.url)}")
        for step in history.steps:
            line(f"   {printable(step)}")
    if len(found.documents) > count:
        line(f"{len(found.documents) - count:,} more; --documents shows them")
    line(
        "`python -m pipelines inspect CORPUS ID` shows a document; ids in a file are left out by `--exclude-documents`"
    )
