"""Validation loss of a trained model, with plain torch: what the training loop logs, without its engine."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines.contracts.errors import UserError


def evaluate(path: Path, corpora: Sequence[str] = (), tokens: int | None = None, batch: int = 8) -> dict[str, Any]:
    """Loss (nats per target), bits per byte and both by source, of an export or a run on the validation split of
    `corpora`.

    Without `corpora` those of the run are read; `tokens` per source default to the run's. UserError where the corpus
    was made with another tokenizer than the model.
    """
    import numpy as np
    import torch

    from trainers.data import open_corpus, validation_data
    from trainers.export import load_trained
    from trainers.measure import loss_fields, sums_by_source
    from trainers.objectives import OBJECTIVES

    trained = load_trained(path)
    config = trained.config
    corpus = open_corpus(tuple(corpora) or config.data.corpora, config.data.shard_set)
    if corpus.tokenizer.xxh3_128 != trained.fingerprints["tokenizer"]:
        raise UserError(
            f"{path}: the model was trained with tokenizer {trained.fingerprints['tokenizer']}, the corpus was made "
            f"with {corpus.tokenizer.xxh3_128}; evaluate on a corpus made with the same tokenizer"
        )
    data = validation_data(corpus, tokens or config.validation.tokens, config.data.sequence_length)
    if not data.sources:
        raise UserError("the corpus has no validation documents; raise validation_share of its `shards` step")
    objective = OBJECTIVES[config.objective]
    sums = np.zeros((2, len(data.sources)))
    with torch.no_grad():
        for rows in data.batches(batch, 0, 1):
            sums += sums_by_source(objective(trained.model, rows), rows, len(data.sources))
    return loss_fields(sums[0], sums[1], data.sources)
