"""Resolve a pretraining configuration, that is, compute the values that depend on the corpus; describe its
data; and compare configurations.
"""

import difflib
import math
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial

import numpy as np

from gristmill.config import plain
from gristmill.errors import ConfigError, UserError
from gristmill.storage.parsing import expand_location
from pipelines.contracts.mixtures import temperature, unimax
from trainers.config.architecture import ARCHITECTURES, fill
from trainers.config.job import BatchSize, Job, Schedule, TrainingBudget
from trainers.config.loss_weighting import GroupDRO
from trainers.config.pretraining import Data, Pretraining
from trainers.data.domain_weights import assign_leaves, names_above, share_weights
from trainers.data.mixture_weights import SourceMixture, epoch_cap
from trainers.data.order import MixtureExhausted, Order, OrderPhase, Samples
from trainers.data.packed_corpus import PackedCorpus, TrainingCorpus, mixture_of, order_of, packed_phases_of
from trainers.runs.parent import settle, settle_reference
from trainers.runs.stored_evaluations import resolve_evaluation

# Fields that may change when a run resumes: those of its execution and reporting, which do not affect
# results, and the location of the corpus, which its fingerprint identifies.
FREE = (
    *("name", "log_every", "sinks", "checkpoints", "execution"),
    *("data.corpora", "files", "final_splits", "optimizer.max_skipped_in_row", "evaluation"),
    "online_weights.reference",
)
_BELOW_FREE = tuple(f"{name}." for name in FREE)
# Up to this many samples, the tokens of a budget are counted exactly by drawing the order, which takes two
# seconds. For more samples they are estimated from the average tokens per sequence.
EXACT = 1 << 24
_MARGIN = 1000  # caps must exceed an estimated budget by a thousandth, because averages are not exact
_POWER = re.compile(r"tokens\*\*(0|1|0?\.[0-9]+)")  # weights by a power of the tokens, with its exponent
_NAMED = 20  # domains that an error lists
_EPOCHS = 4.0  # for UniMax if max_epochs is not a number: four lose little against fresh data (Muennighoff et al. 2023)


def resolve(config: Pretraining, corpus: TrainingCorpus) -> Pretraining:
    """Return the configuration with all values that depend on the corpus filled in: defaults replace null
    values, and the weights of leaf domains replace mixtures. Resolving the result again changes nothing.

    Raises ConfigError for values that do not fit the corpus or one another. Raises UserError if the corpus
    has no training documents, or if a file that the job names is missing or does not fit.
    """
    family = config.model.family
    if family not in config.objective.families:
        allowed = ", ".join(name for name, its in ARCHITECTURES.items() if its.family in config.objective.families)
        raise ConfigError(
            f"objective: got {config.objective.kind}, {config.model.architecture} is of the family {family.replace('_', '-')}; "
            f"allowed for this objective: {allowed}"
        )
    if config.model.traits.causal_only and config.objective.sees_prefix:
        raise ConfigError(
            f"objective.bidirectional_prefix: got true with {config.model.architecture}, whose attention is causal by "
            f"design; set it to false, or use gpt2 or llama as model.architecture"
        )
    if config.budget.epochs is not None:
        raise ConfigError(
            f"budget.epochs: got {config.budget.epochs}, but a mixture of sources has no epochs; set budget.steps or "
            f"budget.tokens (data.max_epochs limits how often a source is read)"
        )
    rows = config.objective.stream_length(config.data.sequence_length, family)
    asked = config.budget.tokens or (config.budget.steps or 0) * (
        config.batch.tokens or (config.batch.sequences or 0) * rows
    )
    config = replace(
        config, model=fill(config.model, corpus.tokenizer.vocab_size), data=resolve_data(config.data, corpus, asked)
    )
    packed_phases = packed_phases_of(corpus, config)
    _check_specials(packed_phases[-1])
    config = replace(config, batch=_batch(config.batch, _mean_tokens(packed_phases[-1], config.data)))
    check_micro_batch(config)
    if config.optimizer.kind == "asgd" and not corpus.validation:
        raise ConfigError(
            "optimizer.kind: got asgd, whose averaging begins by the losses of validations, and the corpus has no validation "
            "documents; build it with some, or use adamw or muon"
        )
    order = order_of(corpus, config, packed_phases)
    _check_caps(config.data, mixture_of(config.data, order.streams), order)
    config = replace(config, init=settle(config.init) if config.init else None)
    if isinstance(config.online_weights, GroupDRO):
        config = replace(config, online_weights=settle_reference(config.online_weights, corpus))
    config = replace(config, budget=_budget(config.budget, config.data, config.batch, packed_phases, order))
    config = replace(config, evaluation=resolve_evaluation(config.evaluation) if config.evaluation else None)
    return replace(config, schedule=resolve_schedule(config.schedule, config.budget.steps or 0))


def resolve_schedule(schedule: Schedule, steps: int) -> Schedule:
    """Return the schedule with its warm-up in steps. Raises ConfigError if the warm-up takes all `steps`."""
    if schedule.warmup_fraction is not None:
        schedule = replace(schedule, warmup_steps=math.floor(schedule.warmup_fraction * steps))
    if schedule.warmup_steps >= steps and schedule.warmup_steps > 0:
        raise ConfigError(
            f"schedule.warmup_steps: got {schedule.warmup_steps}, the run has {steps} steps; shorten the warm-up or "
            f"lengthen the budget"
        )
    return schedule


def check_micro_batch(config: Job) -> None:
    """Raise ConfigError if a micro-batch would be larger than the batch."""
    rows, sequences = config.execution.micro_batch, config.batch.sequences or 0
    if rows != "auto" and rows > sequences:
        raise ConfigError(
            f"execution.micro_batch: got {rows}, a batch has {sequences} sequences; allowed 1 to {sequences}, or auto"
        )


def _check_specials(packed: PackedCorpus) -> None:
    """Raise ConfigError if the tokenizer lacks a special token that the objective, or a member of a mixture
    of objectives, needs. The check makes a row of padding, because objectives look up their special tokens
    whenever they make rows.
    """
    objective, none = packed.objective, np.empty(0, np.int64)
    for _, token in objective.members():
        if token is not None:
            packed.context.special(token)
    for each, _ in objective.members():
        replace(packed, objective=each).rows(Samples(none, none, none, none, none), 1)


def _mean_tokens(packed: PackedCorpus, data: Data) -> Fraction:
    """Return the mean number of tokens per sequence when sources are read with the final weights."""
    assert isinstance(data.weights, dict)
    sequences = Fraction(0)
    for source in packed.sources:
        mean = Fraction(packed.length)
        if source.packing is not None:
            mean = Fraction(source.tokens, len(source.packing.sizes))
        sequences += Fraction(data.weights.get(source.name, 0.0)) / mean
    return sum(map(Fraction, data.weights.values()), Fraction(0)) / sequences


def _batch(batch: BatchSize, mean: Fraction) -> BatchSize:
    length = math.ceil(mean)
    sequences = batch.sequences or (batch.tokens or 0) // mean
    if sequences == 0:
        raise ConfigError(f"batch.tokens: got {batch.tokens}, one sequence has {length}; allowed {length} or more")
    if batch.tokens is not None and batch.sequences is not None and batch.tokens // mean != batch.sequences:
        raise ConfigError(
            f"batch: got tokens {batch.tokens} and sequences {batch.sequences}, which differ at {float(mean):.10g} tokens "
            f"per sequence; give one and set the other to null"
        )
    return BatchSize(tokens=math.ceil(sequences * mean), sequences=sequences)


def _budget(
    budget: TrainingBudget, data: Data, batch: BatchSize, packed_phases: Sequence[PackedCorpus], order: Order
) -> TrainingBudget:
    """Return the budget with its number of steps and the number of tokens that these steps read. The number
    of tokens is an estimate if the steps draw more than EXACT samples. Raises ConfigError if the data ends
    before the budget, if steps and tokens disagree, or if the tokens do not suffice for one step.
    """
    size, nominal = (
        batch.sequences or 0,
        partial(_nominal, data=data, size=batch.sequences or 0, packed_phases=packed_phases),
    )
    steps = budget.steps or bisect_right(range(1 << 48), budget.tokens or 0, key=nominal) - 1
    tokens, exact = nominal(steps), steps * size <= EXACT
    both = budget.steps is not None and budget.tokens == tokens  # resolved before, from more samples than EXACT
    try:
        if exact and budget.tokens is not None and not both:
            steps = _steps(order, size, budget.tokens)
        if exact:
            drawn = int(order.totals(steps * size).tokens.sum())
            tokens = tokens if both else drawn
        elif order.mixture().total < tokens + tokens // _MARGIN:
            raise MixtureExhausted(-1, int(order.mixture().total))
    except MixtureExhausted as end:
        wanted = f"{budget.tokens:,} tokens" if budget.tokens else f"{budget.steps:,} steps, some {tokens:,} tokens"
        raise ConfigError(
            f"data.max_epochs: the sources of a stage are exhausted after {end.tokens:,} tokens, the budget is "
            f"{wanted}; raise max_epochs, lower the budget or add a source"
        ) from None
    if budget.steps is not None and steps != budget.steps:
        raise ConfigError(
            f"budget: got tokens {budget.tokens} and steps {budget.steps}, which differ: that many tokens take {steps} "
            f"steps of {size} sequences; give one and set the other to null"
        )
    if steps == 0:
        least = int(order.totals(size).tokens.sum())
        raise ConfigError(f"budget.tokens: got {budget.tokens}, one step has {least}; allowed {least} or more")
    return TrainingBudget(tokens=tokens, steps=steps)


def _nominal(steps: int, data: Data, size: int, packed_phases: Sequence[PackedCorpus]) -> int:
    """Estimate the tokens that `steps` steps of `size` sequences read, from the mean tokens per sequence in
    each phase.
    """
    total, begin = Fraction(0), 0
    for packed, until in zip(packed_phases, [*(phase.until_step for phase in data.phases), steps], strict=True):
        end = max(begin, min(until, steps))
        total, begin = total + (end - begin) * math.ceil(size * _mean_tokens(packed, data)), end
    return int(total)


def _steps(order: Order, size: int, tokens: int) -> int:
    """Return the largest number of steps that reads no more than `tokens` tokens. Raises MixtureExhausted if
    the data ends first.
    """
    try:
        return order.steps(size, tokens)
    except MixtureExhausted as end:
        if end.tokens < tokens:
            raise
        return end.samples // size


def resolve_data(data: Data, corpus: TrainingCorpus, budget: int) -> Data:
    """Return `data` with its corpora as full locations, and with the shard set, the weights and the limits on
    epochs resolved for `corpus`. `budget` is the approximate number of tokens that the run reads.
    """
    # Reading some tokens from a subset takes as many epochs as reading 1 / subset times as many from the
    # whole.
    spans = np.diff([0, *(min(stage.until_tokens, budget) for stage in data.stages), budget]) / data.subset
    most = data.max_epochs if isinstance(data.max_epochs, float) else _EPOCHS
    stages = tuple(
        replace(stage, weights=_weights(stage.weights, corpus, f"data.stages[{i}].weights", int(spans[i]), most))
        for i, stage in enumerate(data.stages)
    )
    weights = _weights(data.weights, corpus, "data.weights", int(spans[-1]), most)
    caps = data.max_epochs
    if isinstance(caps, float):
        caps = dict.fromkeys(sorted({*weights, *(name for stage in stages for name in stage.weights)}), caps)
    elif caps is not None:
        for name in caps:
            _known(name, corpus, "data.max_epochs")
        leaves_of = assign_leaves(caps, corpus.train, "data.max_epochs")
        caps = {leaf: caps[name] for name, leaves in leaves_of.items() for leaf in leaves}
    corpora = tuple(expand_location(name, "data.corpora") for name in data.corpora)
    return replace(data, corpora=corpora, shard_set=corpus.shard_set, weights=weights, stages=stages, max_epochs=caps)


def _check_caps(data: Data, asked: SourceMixture, order: Order) -> None:
    caps = data.max_epochs if isinstance(data.max_epochs, dict) else {}
    for stream, wanted, most in zip(order.streams, asked.caps, order.caps(), strict=True):
        # Sources of stages that the mixture never reaches have cap 0 and are not reported.
        if most == 0 and (wanted > 0 or epoch_cap(stream.tokens, caps.get(stream.name, math.inf)) == 0):
            length = min(stream.tokens, order.phases[0].length)
            raise ConfigError(
                f"data.max_epochs.{stream.name}: got {caps[stream.name]}, less than one sequence of up to {length} tokens; "
                f"allowed {length / stream.tokens:.3g} or more, or set its weight to 0"
            )


def _weights(
    wanted: str | Mapping[str, float], corpus: TrainingCorpus, field: str, span: int, epochs: float
) -> dict[str, float]:
    """Return the weight of each leaf domain. `wanted` is either the name of a mixture or a mapping from
    domains at any level to weights. `span` is the number of tokens that are read with these weights. `epochs`
    is the limit on epochs for UniMax.
    """
    sizes = {name: corpus.train[name].tokens for name in sorted(corpus.train)}
    if not sizes:
        raise UserError(f"{corpus.directory}: the corpus has no training documents; its report shows where they went")
    named: dict[str, Mapping[str, float]] = {
        **corpus.mixtures,
        "proportional": sizes,
        "uniform": dict.fromkeys(sizes, 1.0),
        "temperature": temperature(sizes),
        # A stage beyond the budget has span 0. Its weights are computed as for one epoch of all sources.
        "unimax": unimax(sizes, span or sum(sizes.values()), epochs),
    }
    if isinstance(wanted, str):
        power = _POWER.fullmatch(wanted)
        if power and wanted not in named:
            named[wanted] = temperature(sizes, float(power[1]))
        if wanted not in named:
            names = ", ".join(sorted(named))
            raise ConfigError(
                f"{field}: got {wanted!r}, allowed a mapping over domains, {names}, or tokens**E with an exponent from 0 to 1"
            )
        wanted = named[wanted]
    for name, weight in wanted.items():
        if weight > 0 or name not in corpus.empty:
            _known(name, corpus, field)
    return share_weights({name: weight for name, weight in wanted.items() if name not in corpus.empty}, sizes, field)


def _known(name: str, corpus: TrainingCorpus, field: str) -> None:
    levels = sorted({level for leaf in corpus.train for level in names_above(leaf)})
    if name in levels:
        return
    if name in corpus.empty:
        raise ConfigError(
            f"{field}.{name}: the corpus has no training document of this source or domain; set its weight to 0, or see in "
            f"the corpus's report where its documents went"
        )
    near = difflib.get_close_matches(name, levels, n=1)
    more = f" and {len(levels) - _NAMED} more" if len(levels) > _NAMED else ""
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(levels[:_NAMED])}{more}"
    raise ConfigError(f"{field}.{name}: no such source or domain with training documents in the corpus; {hint}")


def differences(config: Job, other: Job) -> list[tuple[str, object, object]]:
    """Return (field, value in `config`, value in `other`) for every field that differs, sorted by field."""
    here, there = _flat(plain(config)), _flat(plain(other))
    return [
        (name, here.get(name), there.get(name)) for name in sorted({*here, *there}) if here.get(name) != there.get(name)
    ]


def is_free(name: str) -> bool:
    """Return whether the field `name`, a dotted name, may change when a run resumes."""
    return name in FREE or name.startswith(_BELOW_FREE)


def identity(config: Job) -> dict[str, object]:
    """Return {dotted name: value} for the fields that identify a run: all except those that may change when
    it resumes (`is_free`).
    """
    return {name: value for name, value in _flat(plain(config)).items() if not is_free(name)}


def _flat(value: object, prefix: str = "") -> dict[str, object]:
    if not isinstance(value, dict):
        return {prefix: value}
    result: dict[str, object] = {}
    for key, entry in value.items():
        result.update(_flat(entry, f"{prefix}.{key}" if prefix else str(key)))
    return result


def describe_data(config: Pretraining, corpus: TrainingCorpus, order: Order) -> list[str]:
    """Return lines that describe the data of the run, such as its sources and the cost of packing."""
    samples = (config.budget.steps or 0) * (config.batch.sequences or 0)
    mixture = order.mixture(samples if samples <= EXACT else 0)
    lines = [
        f"data  {config.batch.sequences:,} sequences per step, {config.batch.tokens:,} tokens on average; "
        f"{config.budget.steps:,} steps read {config.budget.tokens:,} tokens in all"
    ]
    if (bptt := config.data.bptt) is not None:
        updates = ", then ".join(f"{phase.length // bptt:,}" for phase in order.phases)
        lines.append(f"data  rows are trained in windows of {bptt:,} tokens: {updates} updates per step")
    begin, reached = 0, []
    for until, phase in zip([*(p.until_step for p in config.data.phases), math.inf], order.phases, strict=True):
        end = int(min(until, config.budget.steps or 0))
        if begin < end:
            reached.append(phase)
            where = f"steps {begin + 1:,} to {end:,}"
            lines += [f"data  {where}: sequences of {phase.length:,} tokens"] * (len(order.phases) > 1)
        begin = end
    lines += _source_lines(config, order, len(reached))
    unread = sorted(set(corpus.train) - {stream.name for stream in order.streams})
    lines += [f"data  {name}: not read, its weight is 0" for name in unread]
    bare = sorted({stream.name for stream in order.streams} - set(corpus.validation))
    given = sorted(set(corpus.validation) - set(corpus.train))
    if given:
        lines.append(f"data  validated on {', '.join(given)}, from which nothing is trained")
    elif bare:
        lines.append(f"data  no validation loss of {', '.join(bare)}: no validation documents in the corpus")
    lines += [line for phase in reached for line in _packing_lines(config, phase)]
    if config.model.traits.characters:
        lines.append(
            f"data  {config.model.architecture} reads each document as a row of its own; documents of very different lengths "
            f"cost padding"
        )
    for end, shares in zip(mixture.ends[:-1], mixture.shares[1:], strict=True):
        if end < (config.budget.tokens or 0):
            weights = ", ".join(
                f"{name} {share:.2%}" for name, share in zip(mixture.names, shares, strict=True) if share
            )
            lines.append(f"data  from token {int(end):,} on: {weights}")
    return lines


def _source_lines(config: Pretraining, order: Order, phases: int) -> list[str]:
    """Return one line per source, then lines about sources that reach their cap. `phases` is the number of
    phases that the budget reaches.
    """
    samples, total = (config.budget.steps or 0) * (config.batch.sequences or 0), config.budget.tokens or 0
    sizes = np.array([stream.tokens for stream in order.streams])
    if samples <= EXACT:
        drawn = order.totals(samples)
        tokens, requested, begun = drawn.tokens, drawn.requested, drawn.epochs
    else:
        tokens = requested = order.mixture().requested(total)
        begun = np.ceil(tokens / sizes).astype(np.int64) + phases - 1
    lines, capped = [], []
    for i, (stream, most) in enumerate(zip(order.streams, order.caps(samples if samples <= EXACT else 0), strict=True)):
        share, epochs = requested[i] / max(1, total), tokens[i] / stream.tokens
        line = f"data  {stream.name}: {share:.2%} of the tokens, {int(tokens[i]):,} tokens, {epochs:.2f} epochs"
        if epochs > 1:
            line += f"  (reads documents again: enters epoch {begun[i]})"
        elif begun[i] > 1:
            line += f"  (may read documents again: a new length begins epoch {begun[i]})"
        lines.append(line)
        if most <= requested[i]:
            left = -int(tokens[i]) % stream.tokens
            capped.append(f"data  {stream.name}: limited by max_epochs; {left:,} tokens of its last epoch stay unread")
    return lines + capped


def _packing_lines(config: Pretraining, phase: OrderPhase) -> list[str]:
    """Return lines that describe what packing costs each source of `phase`, except sources cut into equal
    slices.
    """
    lines = []
    packing = "documents (one in each sequence)" if config.data.packing == "documents" else config.data.packing
    marked = config.objective.rewrites_rows
    for stream in phase.streams:
        if stream.sizes is not None:
            held = int(stream.sizes.sum())
            if marked:
                lines.append(
                    f"data  {stream.name}: {packing} gives {held / len(stream.sizes):.1f} tokens per sequence, because marks "
                    f"take room; {phase.length:,} where one document fills a sequence"
                )
                continue
            lines.append(
                f"data  {stream.name}: {packing} at {phase.length:,} leaves {1 - held / (len(stream.sizes) * phase.length):.2%} "
                f"of the positions as padding and omits {stream.tokens - held:,} tokens; {held / len(stream.sizes):.1f} tokens "
                f"per sequence"
            )
    return lines
