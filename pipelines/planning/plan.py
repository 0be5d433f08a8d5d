"""Make the plan of a build: turn a configuration and the inventories of its sources into concrete steps.

The fingerprint of a step covers the stage's name and version, its knobs, the versions and checksums that it
declares, and its inputs. It does not depend on the number of workers, the output root or the log level.

If a step is not reproducible, the steps that read its files have provisional fingerprints until it is
published. Their final fingerprints also cover the checksums of these files. Nothing is ever published under a
provisional fingerprint.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from gristmill.config import near_match, plain
from gristmill.errors import ConfigError
from gristmill.libraries.provenance import provenance
from gristmill.storage.location import FileRecord
from gristmill.storage.store import digest
from pipelines.contracts.columns import DROP, EDITS_COLUMN, definition_of
from pipelines.contracts.edits import COMPOSITION
from pipelines.contracts.parts import DOCUMENT_COLUMNS
from pipelines.contracts.reads import Drop, GivenSplits, StepFiles, Text, TokenizerShares
from pipelines.contracts.reads_text import MeasuresText
from pipelines.contracts.stage import CorpusStage, PartStage, Stage
from pipelines.planning.column_writers import check_definitions, missing_column
from pipelines.planning.corpus import CorpusConfig, StepConfig
from pipelines.planning.inventory import Inventory, Read
from pipelines.planning.poison import Poison, WithoutPoison
from pipelines.planning.rule_checks import check_rules
from pipelines.stages.materialise.funnel import Funnel

FINGERPRINT_DIGITS = 12  # leading digits of a fingerprint in the names of directories
PublishedFiles = Mapping[str, tuple[FileRecord, ...]]
"""Files of published steps that are not reproducible, by step directory."""


@dataclass(frozen=True)
class Step:
    """One step of a plan. `source` is None for a step of a corpus stage, which spans all `sources`.
    `identity` is everything that the fingerprint covers.

    `visible` maps each source to the labels of the earlier steps whose columns this step may read, in order.
    `files` maps the stage's names for the steps whose files it reads to the labels of these steps.
    """

    name: str
    source: str | None
    sources: tuple[str, ...]
    stage: Stage
    where: str | None
    identity: dict[str, Any]
    visible: dict[str, tuple[str, ...]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name, followed by the source if there is one, such as `language.web` or `dedup_minhash`; unique
        within a plan.
        """
        return self.name if self.source is None else f"{self.name}.{self.source}"

    @cached_property
    def fingerprint(self) -> str:
        """The digest of `identity`, 32 hex digits."""
        return digest(self.identity)

    @cached_property
    def directory(self) -> str:
        """The name of the step's directory under the output root."""
        return f"{self.label}-{self.fingerprint[:FINGERPRINT_DIGITS]}"

    def inputs(self) -> tuple[str, ...]:
        """Return the labels of the steps on which this step depends directly."""
        labels = [f"read.{source}" for source in self.sources] if self.name != "read" else []
        for visible in self.visible.values():
            labels.extend(visible)
        return tuple(dict.fromkeys([*labels, *self.files.values()]))


@dataclass(frozen=True)
class Plan:
    """All steps of a build, each after its inputs. `types` holds the types of all columns that the configured
    steps write.
    """

    config: CorpusConfig
    inventories: dict[str, Inventory]
    poison: Poison
    files: PublishedFiles
    steps: tuple[Step, ...]
    types: pa.Schema

    @property
    def order(self) -> tuple[str, ...]:
        """The names of the configured steps, in order."""
        return tuple(entry.name for entry in self.config.steps)

    def step(self, label: str) -> Step:
        """Return the step with this label; there must be one."""
        return next(step for step in self.steps if step.label == label)


def make_plan(
    config: CorpusConfig,
    inventories: Mapping[str, Inventory],
    poison: Poison | None = None,
    files: PublishedFiles | None = None,
) -> Plan:
    """Return the plan of a build. `inventories` is keyed by source. `poison` maps (step name, source) to the
    documents or records to withhold from that step. `files` holds the published files of steps that are not
    reproducible, keyed by step directory.

    Raises ConfigError if the steps do not fit together.
    """
    _check_order(config)
    _refuse_twice(config)
    poison, files = poison or {}, files or {}
    steps: dict[str, Step] = {}
    for source in config.sources:
        read = Read(source, poison.get(("read", source.name), ()))
        inputs: dict[str, Any] = {"files": inventories[source.name].digest}
        if read.poison:
            inputs["poison"] = list(read.poison)
        step = Step("read", source.name, (source.name,), read, None, _identity("read", read, read.knobs(), inputs))
        steps[step.label] = step
    types: dict[str, pa.DataType] = {}
    done: list[StepConfig] = []
    for entry in config.steps:
        _add_types(types, entry)
        for before in _derived_steps(config, entry):
            steps[before.name] = _step(config, before, done, steps, files, None, types)
        aside = {source: documents for (name, source), documents in poison.items() if name == entry.name}
        groups: list[str | None] = list(_sources(config, entry)) if isinstance(entry.stage, PartStage) else [None]
        for group in groups:
            shown = _without(entry, aside[group]) if group in aside else entry
            step = _step(config, shown, done, steps, files, group, types)
            steps[step.label] = step
        check_rules(config, entry, done, types)
        done.append(_without(entry, ()) if aside else entry)
    counting = Funnel(tuple(entry.name for entry in done), summary_columns(config), config.is_sampled)
    funnel = StepConfig("funnel", counting, "funnel")
    last = _step(config, funnel, done, steps, files, None, types)
    steps[last.label] = last
    return Plan(config, dict(inventories), poison, files, tuple(steps.values()), pa.schema(list(types.items())))


def _add_types(types: dict[str, pa.DataType], entry: StepConfig) -> None:
    written = entry.stage.writes()
    for name in written.names:
        kind = written.field(name).type
        if types.setdefault(name, kind) != kind:
            raise ConfigError(
                f"step {entry.name}: column {name!r} has type {kind} here and {types[name]} in an earlier step"
            )


def _derived_steps(config: CorpusConfig, entry: StepConfig) -> Iterator[StepConfig]:
    for kind, stage in entry.stage.derived_steps().items():
        name = _derived(entry, kind)
        if any(other.name == name for other in config.steps):
            raise ConfigError(f"step {name}: the {kind} of {entry.name} are computed under this name; choose another")
        yield StepConfig(name, stage, kind, entry.sources)


def _derived(entry: StepConfig, kind: str) -> str:
    return f"{entry.name}_{kind}"


def _without(entry: StepConfig, documents: tuple[str, ...]) -> StepConfig:
    assert isinstance(entry.stage, PartStage)
    return replace(entry, stage=WithoutPoison(entry.stage, documents))


def _sources(config: CorpusConfig, entry: StepConfig) -> tuple[str, ...]:
    return entry.sources if entry.sources is not None else tuple(source.name for source in config.sources)


def _identity(name: str, stage: Any, knobs: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    depends = stage.depends() | provenance(stage)
    return {"stage": name, "version": stage.version, "knobs": knobs, "depends": depends, "inputs": dict(inputs)}


def _step(
    config: CorpusConfig,
    entry: StepConfig,
    done: list[StepConfig],
    steps: Mapping[str, Step],
    published: PublishedFiles,
    source: str | None,
    types: Mapping[str, pa.DataType],
) -> Step:
    sources = (source,) if source is not None else _sources(config, entry)
    reads = entry.stage.reads()
    visible = {name: _visible(config, entry, done, name, types) for name in sources}
    files = {}
    for name in (each.step for each in reads if isinstance(each, StepFiles)):
        if not any(earlier.name == name and isinstance(earlier.stage, CorpusStage) for earlier in done):
            names = [earlier.name for earlier in done if isinstance(earlier.stage, CorpusStage)]
            raise ConfigError(f"step {entry.name}: needs an earlier step named {name!r}{near_match(name, names)}")
        files[name] = name
    files |= {kind: _derived(entry, kind) for kind in entry.stage.derived_steps()}
    if accepted := entry.stage.accepts():
        for name, labels in visible.items():
            check_definitions(entry.name, name, accepted, _definitions([steps[label] for label in labels]))
    step = Step(entry.name, source, sources, entry.stage, entry.where, {}, visible, files)
    inputs: dict[str, Any] = {label: steps[label].fingerprint for label in step.inputs()}
    # Ranks of sources, part numbers and the composition of edits depend on the order. The digest of a mapping
    # ignores it.
    inputs["order"] = list(step.inputs())
    for name, label in step.files.items():
        if not steps[label].stage.reproducible:
            records = published.get(steps[label].directory)
            inputs[f"{name} files"] = records and [f"{file.path} {file.xxh3_128}" for file in records]
    if entry.where is not None:
        inputs["where"] = entry.where
    if any(isinstance(each, Text) and each.edited for each in reads):
        inputs["composition of edits"] = COMPOSITION
    if TokenizerShares() in reads:
        inputs["tokenizer_share"] = {s.name: s.tokenizer_share for s in config.sources if s.name in sources}
    given = {s.name: s.split for s in config.sources if s.name in sources and s.split is not None}
    for splits in (each for each in reads if isinstance(each, GivenSplits)):
        if given:
            inputs["split"] = {name: split.identity(name) for name, split in given.items()}
        elif splits.required:
            raise ConfigError(
                f"step {entry.name}: none of its sources gives a `split`; give one to a source, or remove the step"
            )
    stage = entry.stage
    if isinstance(stage, WithoutPoison):
        inputs["poison"] = list(stage.documents)
        stage = stage.stage
    knobs = {name: value for name, value in plain(stage).items() if name not in stage.paths}
    return replace(step, identity=_identity(entry.stage_name, stage, knobs, inputs))


def _visible(
    config: CorpusConfig,
    entry: StepConfig,
    done: list[StepConfig],
    source: str,
    types: Mapping[str, pa.DataType],
) -> tuple[str, ...]:
    """Return the labels of the earlier steps whose columns `entry` reads for one source, in order."""
    here = [earlier for earlier in done if source in _sources(config, earlier)]
    wanted: set[str] = set()
    if entry.written >= {
        DROP,
        EDITS_COLUMN,
    }:  # it needs earlier edits to see whether these and its own empty a document
        wanted.update(e.name for e in done if EDITS_COLUMN in e.written)
    for each in entry.stage.read_columns():
        if isinstance(each, Drop):
            wanted.update(e.name for e in here if DROP in e.written)
        elif isinstance(each, Text):
            if each.upto is not None and each.upto not in [earlier.name for earlier in done]:
                raise ConfigError(f"step {entry.name}: reads {each.name!r}, but no earlier step is named {each.upto!r}")
            wanted.update(e.name for e in _upto(done, each.upto) if each.edited and EDITS_COLUMN in e.written)
        elif each.name not in DOCUMENT_COLUMNS:
            column = each.name
            writers = [e.name for e in here if column in e.written]
            if len(writers) > 1:
                raise ConfigError(
                    f"step {entry.name}: column {column!r} is written by {' and '.join(writers)} for {source}; give all but "
                    "one of them another `prefix` or `column`"
                )
            if column not in types and not each.optional:
                raise ConfigError(
                    f"step {entry.name}: reads the column {column!r}, which no earlier step writes"
                    f"{missing_column(column, entry.name, config.steps, list(types))}"
                )
            wanted.update(writers)
    if entry.where is not None:
        wanted.update(e.name for e in _upto(done, entry.where) if DROP in e.written)
    return tuple(_label(e, source) for e in here if e.name in wanted)


def _definitions(writers: list[Step]) -> dict[str, dict[str, Any]]:
    return {name: definition_of(step.identity) for step in writers for name in step.stage.writes().names}


def _upto(entries: list[StepConfig], name: str | None) -> list[StepConfig]:
    if name is None:
        return entries
    return entries[: [entry.name for entry in entries].index(name) + 1]


def _label(entry: StepConfig, source: str) -> str:
    return f"{entry.name}.{source}" if isinstance(entry.stage, PartStage) else entry.name


def _check_order(config: CorpusConfig) -> None:
    clustered = spans = None
    for entry in config.steps:
        if DROP not in entry.written:
            continue
        what = "drops documents that its edits empty" if EDITS_COLUMN in entry.written else "drops documents"
        if spans is not None and not entry.stage.drops_only_emptied:
            remedy = ", or set its min_left_words to 0" if entry.stage.keeps_spans else ""
            raise ConfigError(
                f"step {entry.name}: {what} after {spans}, which keeps the only copy of a span in one of them; "
                f"move {entry.name} before {spans}{remedy}"
            )
        if entry.stage.keeps_spans:
            spans = entry.name
        if entry.stage.elects:
            clustered = entry.name
        elif clustered is not None:
            raise ConfigError(
                f"step {entry.name}: {what} after the deduplication step {clustered}, which would lose the winners "
                f"of its clusters; move {entry.name} before {clustered}"
            )


def _refuse_twice(config: CorpusConfig) -> None:
    writers: dict[tuple[str, str], str] = {}
    for entry in config.steps:
        if isinstance(entry.stage, MeasuresText):
            columns = [name for name in entry.stage.writes().names if name not in (DROP, EDITS_COLUMN)]
            for target in ((source, column) for source in _sources(config, entry) for column in columns):
                first = writers.setdefault(target, entry.name)
                if first != entry.name:
                    raise ConfigError(
                        f"step {entry.name}: writes the column {target[1]!r} for {target[0]}, as {first} does; give "
                        f"one of them a "
                        "`prefix`, such as edited_"
                    )


def summary_columns(config: CorpusConfig) -> tuple[str, ...]:
    """Return the names of the numeric, boolean and string columns that the steps write, except `drop` and
    columns that more than one step writes for the same source.
    """
    kinds: dict[str, pa.DataType] = {}
    writers: dict[tuple[str, str], int] = {}
    for entry in config.steps:
        written = entry.stage.writes()
        for name in written.names:
            if name != DROP and _summarised(written.field(name).type):
                kinds[name] = written.field(name).type
                for source in entry.sources or [source.name for source in config.sources]:
                    writers[name, source] = writers.get((name, source), 0) + 1
    twice = {name for (name, _), count in writers.items() if count > 1}
    return tuple(name for name in kinds if name not in twice)


def _summarised(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    string = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return string or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
