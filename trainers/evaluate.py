"""Validation loss of a trained model, with plain torch: what the training loop logs, without its engine."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelines.contracts.errors import UserError


def evaluate(path: Path, corpora: Sequence[str] = (), tokens: int | None = None, batch: int = 8) -> dict[str, Any]:
    """Loss (nats per target), bits per byte and both by source, of an export or a run on the validation split of
    `corpora`; beside each loss `unigram_loss`, which no model that ignores the context gets under on these targets.

    Without `corpora` those of the run are read; `tokens` per source default to the run's. UserError where the corpus
    was made with another tokenizer than the model.
    """
    import torch

    from trainers.data import corpus_of, validation_data
    from trainers.export import load_trained
    from trainers.forward import Forward, tensors
    from trainers.measure import TargetCounts, loss_fields, no_sums, sums_by_source

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
    sums, counts = no_sums(len(data.sources)), TargetCounts(len(data.sources), config.model.vocab_size or 0)
    with torch.no_grad():
        for rows in data.batches(batch, 0, 1):
            sums += sums_by_source(forward(**tensors(rows, "cpu")), rows, len(data.sources))
            counts.add(rows)
    fields = loss_fields(sums, data.sources, config.objective.predicts_text)
    for index, source in enumerate(data.sources):
        if source.name in fields["sources"]:
            fields["sources"][source.name]["unigram_loss"] = counts.entropy([index])
    return {**fields, "unigram_loss": counts.entropy(range(len(data.sources)))}
