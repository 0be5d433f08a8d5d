"""Check that a corpus has what an objective needs: long enough documents, spans of certain types, or pairs."""

from collections.abc import Collection, Sequence

import numpy as np

from gristmill.errors import ConfigError
from gristmill.storage.location import Location
from pipelines.contracts.shard_set import SPAN_TYPES
from trainers.data.stream import SourceStream
from trainers.objectives.shared.training_objective import TrainingObjective


def check_sentences(directory: Location, objective: TrainingObjective, sources: Sequence[SourceStream]) -> None:
    """Raise ConfigError if no document of the sources has as many sentences as the objective needs. Without
    sources, do nothing.
    """
    least = objective.least_sentences
    if least < 2 or not sources:
        return
    for source in sources:
        for number in range(len(source.shards)):
            offsets = source.shard(number).sentence_offsets
            if offsets is not None and np.diff(offsets).max(initial=0) >= least:
                return
    names = ", ".join(source.name for source in sources)
    other = ", or simcse with `unit: documents`" if "encoder" in objective.families else ""
    raise ConfigError(
        f"objective: {objective.kind} needs documents of {least} or more sentences, and in {directory} {names} has none; "
        f"use sources of longer documents{other}"
    )


def check_lengths(directory: Location, objective: TrainingObjective, sources: Sequence[SourceStream]) -> None:
    """Raise ConfigError if no document of the sources has as many tokens as the objective needs. Without
    sources, do nothing.
    """
    least = objective.least_tokens
    if least < 2 or not sources:
        return
    for source in sources:
        for number in range(len(source.shards)):
            if np.diff(source.shard(number).offsets).max(initial=0) >= least:
                return
    names = ", ".join(source.name for source in sources)
    raise ConfigError(
        f"objective: {objective.kind} needs documents of {least} or more tokens, and in {directory} {names} has none; "
        f"use sources of longer documents"
    )


def check_spans(
    directory: Location, span_types: Collection[str], objective: TrainingObjective, sources: Sequence[SourceStream]
) -> None:
    """Raise ConfigError if the objective uses a type of span that is not in `span_types`, the types that all
    shards record, or if there are sources but none of their documents has a span of any type used.
    """
    wanted = objective.span_types
    if missing := [kind for kind in wanted if kind not in span_types]:
        raise ConfigError(
            f"objective: {objective.kind} needs spans of {' and '.join(missing)}, which {directory} does not have; build "
            f"the corpus with `spans: [{', '.join(wanted)}]` in its `shards` step"
        )
    if not wanted or not sources:
        return
    numbers = [number for number, kind in enumerate(SPAN_TYPES) if kind in wanted]
    for source in sources:
        for number in range(len(source.shards)):
            spans = source.shard(number).spans
            if spans is not None and np.isin(spans[:, 2], numbers).any():
                return
    names = ", ".join(source.name for source in sources)
    raise ConfigError(
        f"objective: {objective.kind} needs documents with {' or '.join(wanted)}, and in {directory} {names} has none; "
        f"use sources of English prose"
    )


def check_pairs(
    directory: Location, columns: Collection[str], objective: TrainingObjective, sources: Sequence[SourceStream]
) -> None:
    """Raise ConfigError if the objective needs pairs, but `columns` lacks `target` or no document of the
    sources has a target. Without sources, do nothing.
    """
    if not objective.needs_pairs or not sources:
        return
    if "target" not in columns:
        raise ConfigError(
            f"objective: {objective.kind} needs to know where targets begin, which {directory} does not say; build the "
            f"corpus with `target: true` in its `shards` step"
        )
    if not any(shard.pairs for source in sources for shard in source.shards):
        names = ", ".join(source.name for source in sources)
        raise ConfigError(
            f"objective: {objective.kind} needs documents with a target, and in {directory} {names} has none; name the field "
            f"with the target in `text.target` of a source"
        )
