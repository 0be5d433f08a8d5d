"""The loss of a trained model on held-out documents, computed in plain torch without a training engine."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gristmill.errors import UserError
from gristmill.storage.disk import LocalPath
from pipelines.contracts.given_split import HELD_OUT

if TYPE_CHECKING:
    import numpy as np

    from trainers.config.pretraining import Pretraining
    from trainers.data.packed_corpus import TrainingCorpus, ValidationData
    from trainers.data.stream import SourceStream
    from trainers.objectives.shared.training_objective import Contrast
    from trainers.rows.batch import Batch

_UNIGRAM_TOKENS = 1 << 20  # tokens per source, spread evenly over its training documents


def evaluate(
    path: LocalPath,
    corpora: Sequence[str] = (),
    tokens: int | None = None,
    batch: int = 8,
    split: str = "validation",
) -> dict[str, Any]:
    """Return the fields of a validation (`loss_metrics.loss_fields`, `data.document_loss`) for the export or
    run at `path`.

    The fields are measured on the `split` (validation or test) of `corpora` (default: the corpora of the
    run), in batches of `batch` sequences. `tokens` is the number of tokens per source (default: as in the
    run); the fields of `data.document_loss` are measured on whole documents instead.

    `unigram_loss` is added to each source and to the whole split. It is the loss of a model that ignores the
    context and knows only how often each token is a target in training documents. A corpus without training
    documents has no `unigram_loss`. For a contrastive objective, `chance_loss` is added instead: the loss of
    guessing among the candidates.

    Raises UserError if the model was not made by pretraining, or if the corpus was made with a tokenizer
    other than the model's, lacks the split, or has no targets for the objective.
    """
    import torch

    from trainers.config.job_kinds import as_pretraining
    from trainers.data.document_loss import add_document_fields, document_data
    from trainers.data.packed_corpus import corpus_of, validation_data
    from trainers.engine.forward import forward_of, tensors
    from trainers.engine.hardware.device import compute_device
    from trainers.engine.loss_metrics import loss_fields, no_sums, sums_by_source
    from trainers.inference.model_export import load_trained

    trained = load_trained(path)
    config = as_pretraining(trained.config, path)
    config = replace(config, data=replace(config.data, corpora=tuple(corpora) or config.data.corpora))
    corpus = corpus_of(config)
    if corpus.tokenizer.xxh3_128 != trained.fingerprints["tokenizer"]:
        raise UserError(
            f"{path}: the model was trained with tokenizer {trained.fingerprints['tokenizer']}, but the corpus was "
            f"made with {corpus.tokenizer.xxh3_128}; evaluate on a corpus made with the same tokenizer"
        )
    corpus = replace(corpus, validation=_held_out(corpus, split))
    data = validation_data(corpus, config, tokens or config.validation.tokens)
    device = compute_device()
    forward = forward_of(trained.model.to(device), config)

    def total(batches: Iterable["Batch"], sources: int) -> "np.ndarray":
        sums = no_sums(len(forward.names), sources)
        with torch.no_grad():
            for rows in batches:
                made = forward(**tensors(rows, device))
                sums += sums_by_source(made, rows, forward.losses, sources, forward.measures)
        return sums

    sums, counts = total(data.batches(batch, 0, 1), len(data.sources)), _target_counts(data)
    if not sums[0, 1].any():
        raise UserError(
            f"the {split} documents of the corpus have no targets for the {config.objective.kind} objective; raise "
            "--tokens, or hold out more documents"
        )
    assert isinstance(config.data.weights, dict)
    fields = loss_fields(sums, forward.names, data.sources, config.objective.predicts_text, config.data.weights)
    documents = document_data(corpus, config)
    if documents is not None:
        measured = total(documents.batches(batch, 0, 1), len(documents.sources))
        fields = add_document_fields(fields, documents.fields(measured[0]))
    if config.objective.contrast is None:
        _add_unigram(fields, counts, corpus, config)
    else:
        _add_chance(fields, data, config.objective.contrast, config.data.weights)
    return fields


def _held_out(corpus: "TrainingCorpus", split: str) -> dict[str, "SourceStream"]:
    if found := corpus.held_out(split):
        return found
    others = [name for name in HELD_OUT if corpus.held_out(name)]
    hint = (
        f"it has {others[0]}" if others else "give a source a `split`, or raise validation_share of its `shards` step"
    )
    raise UserError(f"{corpus.directory}: no source has {split} documents; {hint}")


def _add_chance(
    fields: dict[str, Any], data: "ValidationData", contrast: "Contrast", weights: Mapping[str, float]
) -> None:
    from trainers.engine.loss_metrics import loss_fields, no_sums
    from trainers.engine.vectors.contrastive_losses import CONTRASTS

    loss, sums = CONTRASTS[type(contrast)], no_sums(1, len(data.sources))
    for rows in data.batches(64, 0, 1):
        for source, nats, targets in zip(rows.source, loss.chance(rows), loss.targets(rows), strict=True):
            sums[0, :, source] += nats.sum(), targets.sum()
    chances = loss_fields(sums, ["loss"], data.sources, False, weights)
    fields["chance_loss"] = chances["loss"]
    for name, its in fields["sources"].items():
        its["chance_loss"] = chances["sources"][name]["loss"]


def _add_unigram(
    fields: dict[str, Any], counts: Mapping[str, Any], corpus: "TrainingCorpus", config: "Pretraining"
) -> None:
    from trainers.data.packed_corpus import validation_data

    assert isinstance(config.data.weights, dict)
    names = list(fields["sources"])
    given = [name for name in names if name not in corpus.train]
    trained = {name for name, weight in config.data.weights.items() if weight > 0} if given else set()
    read = {name: stream for name, stream in corpus.train.items() if name in trained or name in names}
    known = _target_counts(validation_data(replace(corpus, validation=read), config, _UNIGRAM_TOKENS))
    if not known:
        return
    together = sum(known.values())
    for name in names:
        fields["sources"][name]["unigram_loss"] = unigram_loss(known.get(name, together), counts[name])
    shares = {name: config.data.weights.get(name, 0.0) for name in names}
    shares = shares if any(shares.values()) else dict.fromkeys(names, 1.0)
    each = (share * unigram_loss(together, counts[name]) for name, share in shares.items())
    fields["unigram_loss"] = sum(each) / sum(shares.values())


def _target_counts(data: "ValidationData") -> dict[str, Any]:
    """Return, by source, how often each token of the vocabulary, or each bucket of characters, is a target:
    int64 [classes].
    """
    import numpy as np

    from trainers.rows.batch import IGNORED

    classes = data.packed.context.target_classes
    counts = {source.name: np.zeros(classes, dtype=np.int64) for source in data.sources}
    for rows in data.batches(64, 0, 1):
        for index in np.unique(rows.source):
            targets = rows.targets[rows.source == index]
            counts[data.sources[index].name] += np.bincount(targets[targets != IGNORED], minlength=classes)
    return counts


def unigram_loss(known: Any, targets: Any) -> float:
    """Return the loss, in nats per target, of a unigram model with add-one (Laplace) smoothing. `known` and
    `targets` are counts of each class, int64 [classes]: the model is estimated from `known`, and the loss is
    measured on `targets`.
    """
    import numpy as np

    shares = (known + 1) / (known.sum() + len(known))
    return float(-(targets * np.log(shares)).sum() / max(1, targets.sum()))
