"""The one place where derived values are computed: what a configuration leaves open, filled in from the corpus."""

import difflib
import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from pipelines.contracts.config import plain
from pipelines.contracts.errors import ConfigError, UserError
from pipelines.contracts.mixtures import temperature, unimax
from trainers.architecture import FAMILY, fill
from trainers.config import Batch, Budget, Data, Pretraining
from trainers.data import Corpus, mixture_of, stream_length
from trainers.mixture import cap
from trainers.order import Order

# What may change between the parts of one run: how it is executed and reported, not what is computed; and where the
# corpus lies, because its identity is its fingerprint.
FREE = ("name", "log_every", "sinks", "checkpoints", "execution", "data.corpora", "optimizer.max_skipped_in_row")
_EPOCHS = 4.0  # of UniMax where max_epochs is no number: four lose little against fresh data (Muennighoff et al. 2023)


def resolve(config: Pretraining, corpus: Corpus) -> Pretraining:
    """A new configuration without open values, which resolves to itself. ConfigError where values do not fit."""
    family = FAMILY[config.model.architecture]
    if family not in config.objective.families:
        allowed = ", ".join(name for name, its in FAMILY.items() if its in config.objective.families)
        raise ConfigError(
            f"objective: got {config.objective.kind}, the model is a {family.replace('_', '-')} ({config.model.architecture}); "
            f"allowed for this objective: {allowed}"
        )
    length = stream_length(config)
    batch = _batch(config.batch, length)
    budget = _budget(config.budget, batch.tokens or 0)
    data = _data(config.data, corpus, budget.tokens or 0, length)
    if config.schedule.warmup_steps >= (budget.steps or 0) and config.schedule.warmup_steps > 0:
        raise ConfigError(
            f"schedule.warmup_steps: got {config.schedule.warmup_steps}, the run has {budget.steps} steps; "
            f"shorten the warm-up or lengthen the budget"
        )
    return replace(
        config,
        model=fill(config.model, corpus.tokenizer.vocab_size),
        data=data,
        batch=batch,
        budget=budget,
    )


def _batch(batch: Batch, length: int) -> Batch:
    sequences = batch.sequences or (batch.tokens or 0) // length
    if sequences == 0:
        raise ConfigError(f"batch.tokens: got {batch.tokens}, one sequence has {length}; allowed {length} and more")
    if batch.tokens is not None and batch.sequences is not None and batch.tokens // length != batch.sequences:
        raise ConfigError(
            f"batch: got tokens {batch.tokens} and sequences {batch.sequences}, which differ at {length} tokens a "
            f"sequence; give one and set the other to null"
        )
    return Batch(tokens=sequences * length, sequences=sequences)


def _budget(budget: Budget, batch_tokens: int) -> Budget:
    if budget.tokens is not None and budget.steps is not None and budget.tokens // batch_tokens != budget.steps:
        raise ConfigError(
            f"budget: got tokens {budget.tokens} and steps {budget.steps}, which differ at {batch_tokens} tokens a "
            f"step; give one and set the other to null"
        )
    steps = budget.steps or (budget.tokens or 0) // batch_tokens
    if steps == 0:
        raise ConfigError(
            f"budget.tokens: got {budget.tokens}, one step has {batch_tokens}; allowed {batch_tokens} and more"
        )
    return Budget(tokens=steps * batch_tokens, steps=steps)


def _data(data: Data, corpus: Corpus, budget: int, length: int) -> Data:
    """Weights and caps by source, checked against the corpus and the budget."""
    spans = np.diff([0, *(min(stage.until_tokens, budget) for stage in data.stages), budget])
    most = data.max_epochs if isinstance(data.max_epochs, float) else _EPOCHS
    stages = tuple(
        replace(stage, weights=_weights(stage.weights, corpus, f"data.stages[{i}].weights", int(spans[i]), most))
        for i, stage in enumerate(data.stages)
    )
    weights = _weights(data.weights, corpus, "data.weights", int(spans[-1]), most)
    caps = data.max_epochs
    if isinstance(caps, float):
        caps = dict.fromkeys(sorted({*weights, *(name for stage in stages for name in stage.weights)}), caps)
    for name, epochs in (caps or {}).items():
        _known(name, corpus, "data.max_epochs")
        least = length / corpus.train[name].tokens
        if cap(corpus.train[name].tokens, length, epochs) == 0:
            raise ConfigError(
                f"data.max_epochs.{name}: got {epochs}, less than one sequence of {length} tokens; "
                f"allowed {min(1.0, least):.3g} and more, or set its weight to 0"
            )
    resolved = replace(data, shard_set=corpus.shard_set, weights=weights, stages=stages, max_epochs=caps)
    total = mixture_of(corpus, resolved, length).total
    if total < budget:
        raise ConfigError(
            f"data.max_epochs: the sources of a stage have given all they may after {int(total):,} tokens, the budget is "
            f"{budget:,}; raise max_epochs, lower the budget or add a source"
        )
    return resolved


def _weights(
    wanted: str | Mapping[str, float], corpus: Corpus, field: str, span: int, epochs: float
) -> dict[str, float]:
    """Weights by source, in the order of their names; `field` is where they stand, `span` the tokens that they hold for."""
    sizes = {name: corpus.train[name].tokens for name in sorted(corpus.train)}
    if not sizes:
        raise UserError(f"{corpus.directory}: the corpus has no training documents; look at its report")
    named: dict[str, Mapping[str, float]] = {
        **corpus.mixtures,
        "proportional": sizes,
        "uniform": dict.fromkeys(sizes, 1.0),
        "temperature": temperature(sizes),
        # A stage that the budget does not reach has no tokens to share out: then one epoch of everything.
        "unimax": unimax(sizes, span or sum(sizes.values()), epochs),
    }
    if isinstance(wanted, str):
        if wanted not in named:
            raise ConfigError(f"{field}: got {wanted!r}, allowed a mapping over sources or {', '.join(sorted(named))}")
        wanted = named[wanted]
    for name, weight in wanted.items():
        if weight > 0:
            _known(name, corpus, field)
    return {name: float(wanted[name]) for name in sizes if wanted.get(name, 0) > 0}


def _known(name: str, corpus: Corpus, field: str) -> None:
    """ConfigError unless a source has training documents."""
    if name in corpus.train:
        return
    if name in corpus.empty:
        raise ConfigError(
            f"{field}.{name}: the corpus has this source without a training document; set its weight to 0 or see in the "
            f"build's report where its documents went"
        )
    near = difflib.get_close_matches(name, corpus.train, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(sorted(corpus.train))}"
    raise ConfigError(f"{field}.{name}: no such source with training documents in the corpus; {hint}")


def differences(config: Pretraining, other: Pretraining) -> list[tuple[str, object, object]]:
    """(field, value here, value there) of every field whose values differ."""
    here, there = _flat(plain(config)), _flat(plain(other))
    return [
        (name, here.get(name), there.get(name)) for name in sorted({*here, *there}) if here.get(name) != there.get(name)
    ]


def is_free(name: str) -> bool:
    """Whether a field may change within a run."""
    return any(name == free or name.startswith(f"{free}.") for free in FREE)


def identity(config: Pretraining) -> dict[str, object]:
    """The fields that make a run what it is, flat by name: all but the free ones."""
    return {name: value for name, value in _flat(plain(config)).items() if not is_free(name)}


def _flat(value: object, prefix: str = "") -> dict[str, object]:
    if not isinstance(value, dict):
        return {prefix: value}
    result: dict[str, object] = {}
    for key, entry in value.items():
        result.update(_flat(entry, f"{prefix}.{key}" if prefix else str(key)))
    return result


def describe_data(config: Pretraining, corpus: Corpus, order: Order) -> list[str]:
    """One line per source: its share of the tokens and the epochs that the budget reads, with a warning beyond one.
    Then where the mixture changes within the budget.
    """
    _, drawn = order.drawn((config.budget.steps or 0) * (config.batch.sequences or 0))
    requested = order.mixture.requested(int(drawn.sum()))
    lines = []
    for index, stream in enumerate(order.streams):
        share, tokens = requested[index] / max(1, drawn.sum()), int(drawn[index])
        epochs = tokens / stream.tokens
        line = f"data  {stream.name}: {share:.2%} of the tokens, {tokens:,} tokens, {epochs:.2f} epochs"
        lines.append(line + (f"  (reads documents again: enters epoch {math.ceil(epochs)})" if epochs > 1 else ""))
    unread = sorted(set(corpus.train) - {stream.name for stream in order.streams})
    lines += [f"data  {name}: not read, its weight is 0" for name in unread]
    for stream in order.streams:
        if stream.sizes is not None:
            places = len(stream.sizes) * order.sequence_length
            lines.append(f"data  {stream.name}: best-fit packing leaves {1 - stream.tokens / places:.2%} as padding")
    mixture = order.mixture
    for end, shares in zip(mixture.ends[:-1], mixture.shares[1:], strict=True):
        if end < drawn.sum():
            weights = ", ".join(
                f"{name} {share:.2%}" for name, share in zip(mixture.names, shares, strict=True) if share
            )
            lines.append(f"data  from token {int(end):,} on: {weights}")
    return lines
