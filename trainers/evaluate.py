"""Validation loss of a trained model, with plain torch: what the training loop logs, without its engine."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.contracts.errors import UserError

if TYPE_CHECKING:
    from trainers.data import ValidationData

_UNIGRAM_TOKENS = 1 << 20  # of each source, evenly spread over its training documents


def evaluate(path: Path, corpora: Sequence[str] = (), tokens: int | None = None, batch: int = 8) -> dict[str, Any]:
    """Loss (nats per target), bits per byte and both by source, of an export or a run on the validation split of
    `corpora`; beside each loss `unigram_loss`, that of a model of the same objective which ignores the context: the shares
    of tokens among the targets of the source's training documents, or of all sources' alike.

    Without `corpora` those of the run are read; `tokens` per source default to the run's. UserError where the corpus
    was made with another tokenizer than the model.
    """
    import torch

    from trainers.data import corpus_of, validation_data
    from trainers.export import load_trained
    from trainers.forward import Forward, tensors
    from trainers.measure import loss_fields, no_sums, sums_by_source

    trained = load_trained(path)
    config = trained.config
    config = replace(config, data=replace(config.data, corpora=tuple(corpora) or config.data.corpora))
    corpus = corpus_of(config)
    if corpus.tokenizer.xxh3_128 != trained.fingerprints["tokenizer"]:
        raise UserError(
            f"{path}: the model was trained with tokenizer {trained.fingerprints['tokenizer']}, the corpus was made "
            f"with {corpus.tokenizer.xxh3_128}; evaluate on a corpus made with the same tokenizer"
        )
    data = validation_data(corpus, config, tokens or config.validation.tokens)
    if not data.sources:
        raise UserError("the corpus has no validation documents; raise validation_share of its `shards` step")
    forward = Forward(trained.model, config.model.architecture, config.data.isolation)
    sums, counts = no_sums(len(data.sources)), _target_counts(data)
    with torch.no_grad():
        for rows in data.batches(batch, 0, 1):
            sums += sums_by_source(forward(**tensors(rows, "cpu")), rows, len(data.sources))
    if not sums[1].any():
        raise UserError(
            f"the {config.objective.kind} objective finds nothing to predict in the corpus's validation documents; raise "
            "--tokens, or validation_share of its `shards` step"
        )
    fields = loss_fields(sums, data.sources, config.objective.predicts_text)
    read = {name: corpus.train[name] for name in fields["sources"] if name in corpus.train}
    known = _target_counts(validation_data(replace(corpus, validation=read), config, _UNIGRAM_TOKENS))
    for name, entry in fields["sources"].items():
        if name in known:
            entry["unigram_loss"] = unigram_loss(known[name], counts[name])
    if len(known) == len(fields["sources"]):
        fields["unigram_loss"] = unigram_loss(sum(known.values()), sum(counts[name] for name in known))
    return fields


def _target_counts(data: "ValidationData") -> dict[str, Any]:
    """How often each token of the vocabulary is a target, int64 [vocabulary], by source."""
    import numpy as np

    from trainers.batch import IGNORED

    counts = {source.name: np.zeros(data.grid.context.vocab_size, dtype=np.int64) for source in data.sources}
    for rows in data.batches(64, 0, 1):
        for index in np.unique(rows.source):
            targets = rows.targets[rows.source == index]
            counts[data.sources[index].name] += np.bincount(
                targets[targets != IGNORED], minlength=data.grid.context.vocab_size
            )
    return counts


def unigram_loss(known: Any, targets: Any) -> float:
    """Nats per target of a unigram model. `known` and `targets`, int64 [vocabulary], say how often each token is a target
    where the model was learned and where it is measured. Every token counts once more than it was seen (Laplace).
    """
    import numpy as np

    shares = (known + 1) / (known.sum() + len(known))
    return float(-(targets * np.log(shares)).sum() / max(1, targets.sum()))
