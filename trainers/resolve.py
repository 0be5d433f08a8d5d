"""The one place where derived values are computed: what a configuration leaves open, filled in from the corpus."""

import difflib
from collections.abc import Mapping
from dataclasses import replace

from pipelines.contracts.config import plain
from pipelines.contracts.errors import ConfigError, UserError
from trainers.config import Batch, Budget, Model, Pretraining
from trainers.data import Corpus
from trainers.order import Order

# What may change between the parts of one run: how it is executed and reported, not what is computed; and where the
# corpus lies, because its identity is its fingerprint.
FREE = ("name", "log_every", "checkpoints", "execution", "data.corpora")
_VOCABULARY_MULTIPLE = 64


def resolve(config: Pretraining, corpus: Corpus) -> Pretraining:
    """A new configuration without open values, which resolves to itself. ConfigError where values do not fit."""
    length = config.data.sequence_length
    weights = _weights(config.data.weights, corpus)
    batch = _batch(config.batch, length)
    budget = _budget(config.budget, batch.tokens or 0)
    if config.schedule.warmup_steps >= (budget.steps or 0) and config.schedule.warmup_steps > 0:
        raise ConfigError(
            f"schedule.warmup_steps: got {config.schedule.warmup_steps}, the run has {budget.steps} steps; "
            f"shorten the warm-up or lengthen the budget"
        )
    return replace(
        config,
        model=_model(config.model, corpus.tokenizer.vocab_size),
        data=replace(config.data, shard_set=corpus.shard_set, weights=weights),
        batch=batch,
        budget=budget,
    )


def _model(model: Model, tokens: int) -> Model:
    vocabulary = model.vocab_size or -(-tokens // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE
    if vocabulary < tokens:
        raise ConfigError(
            f"model.vocab_size: got {vocabulary}, the corpus's tokenizer has {tokens} tokens; "
            f"raise it, or leave it out to take the tokenizer's"
        )
    llama = -(-8 * model.width // (3 * 64)) * 64
    inner = model.feed_forward or (4 * model.width if model.architecture == "gpt2" else llama)
    shared = model.key_value_heads or model.heads
    return replace(model, vocab_size=vocabulary, feed_forward=inner, key_value_heads=shared)


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


def _weights(wanted: str | Mapping[str, float], corpus: Corpus) -> dict[str, float]:
    """Weights by source, not normalised, in the order of the sources' names."""
    sizes = {name: float(corpus.train[name].tokens) for name in sorted(corpus.train)}
    if not sizes:
        raise UserError(f"{corpus.directory}: the corpus has no training documents; look at its report")
    named = {**corpus.mixtures, "proportional": sizes, "uniform": dict.fromkeys(sizes, 1.0)}
    if isinstance(wanted, str):
        if wanted not in named:
            raise ConfigError(
                f"data.weights: got {wanted!r}, allowed a mapping over sources or {', '.join(sorted(named))}"
            )
        wanted = named[wanted]
    for name, weight in wanted.items():
        if name not in sizes and weight > 0:
            near = difflib.get_close_matches(name, sizes, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(sizes)}"
            raise ConfigError(f"data.weights.{name}: no such source with training documents in the corpus; {hint}")
    return {name: float(wanted[name]) for name in sizes if wanted.get(name, 0) > 0}


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
    """One line per source: its share of the tokens and the epochs that the budget reads, with a warning beyond one."""
    steps, sequences = config.budget.steps or 0, config.batch.sequences or 0
    _, drawn = order.drawn(steps * sequences)
    lines = []
    for index, stream in enumerate(order.streams):
        share, tokens = order.weights[index], drawn[index]
        line = f"data  {stream.name}: {share:.2%} of the tokens, {tokens:,} tokens, {tokens / stream.tokens:.2f} epochs"
        lines.append(line + ("  (reads documents again)" if tokens > stream.tokens else ""))
    unread = sorted(set(corpus.train) - {stream.name for stream in order.streams})
    return [*lines, *(f"data  {name}: not read, its weight is 0" for name in unread)]
