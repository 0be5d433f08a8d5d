"""The corpus file: frozen dataclasses that mirror its YAML, and functions that load, write and describe it.
docs/corpus_file.md is generated from the dataclasses.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from gristmill.config import load_yaml, override, parse, plain
from gristmill.errors import ConfigError
from gristmill.json_schema import schema_of, value_schema
from gristmill.storage.location import Location
from gristmill.storage.parsing import expand_location, parse_local, parse_location
from gristmill.storage.remote import Remote, check_url
from pipelines.contracts.columns import EDITS_COLUMN
from pipelines.contracts.given_split import IdSplit
from pipelines.contracts.reads import Input, Text
from pipelines.contracts.stage import CorpusStage, PartStage
from pipelines.planning.installed_stages import StageClass, stage_class, step_name
from pipelines.reading.sources.record_field import RecordField
from pipelines.reading.sources.registry import FORMATS
from pipelines.reading.sources.source import Source
from pipelines.stages import STAGES
from pipelines.stages.measure.record_fields import RecordFields

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_REMOTE = Remote()
_TAKEN = {
    "read": "the reading of the sources",
    "funnel": "the step that counts the documents of every corpus",
    "quarantined": "the quarantined records in what an export leaves out",
}
"""Names that a step cannot have."""


@dataclass(frozen=True)
class StepConfig:
    """One entry of `steps`: a stage with its knobs, and where it applies.

    `sources` limits the step to some sources. With `where: STEP`, the step annotates only documents that
    neither STEP nor a step before STEP dropped.
    """

    name: str
    stage: PartStage | CorpusStage
    stage_name: str
    sources: tuple[str, ...] | None = None
    where: str | None = None

    @cached_property
    def written(self) -> frozenset[str]:
        """The names of the columns that the stage writes."""
        return frozenset(self.stage.writes().names)


@dataclass(frozen=True)
class CorpusConfig:
    """The content of a corpus file: the sources and steps of a corpus, and where it is built."""

    name: str
    """Name of the corpus; no other corpus may use its output directory."""
    output: str
    """Directory of everything that is built, relative to the working directory, or a URL such as
    `s3://bucket/prefix`.
    """
    sources: tuple[Source, ...]
    """The sources; at least one."""
    steps: tuple[StepConfig, ...]
    """Stages in order: `{STAGE: knobs}`, optionally with `name`, `sources` and `where` next to it. If sources
    have `columns`, steps named `source_columns`, `source_columns_2` and so on, which write these columns, are
    added in front automatically.
    """
    remote: Remote = _REMOTE
    """How the URL of `output` is opened; the same fields as in `remote` of a source."""

    @property
    def is_sampled(self) -> bool:
        """Whether any source is read only in part."""
        return any(source.sample < 1 for source in self.sources)

    @property
    def place(self) -> Location:
        """The location of `output`."""
        return parse_location(self.output, self.remote)


def load_corpus_config(
    path: Path, assignments: Sequence[str] = (), stages: Mapping[str, StageClass] | None = None
) -> CorpusConfig:
    """Parse a corpus YAML, with `a.b=value` overrides. `stages` maps names to further stage classes that the
    file may use. Raises ConfigError if the file is invalid.
    """
    data = override(load_yaml(path), assignments)
    where = path.name
    steps = data.pop("steps", None)
    if not isinstance(steps, list) or not steps:
        raise ConfigError(
            f"{where}: steps: expected a list of at least one {{stage: knobs}}; stages: {', '.join(sorted(STAGES))}"
        )
    head = parse(_CorpusFile, data, where)
    parsed = tuple(_step(step, number, where, stages or {}) for number, step in enumerate(steps))
    # Expand `~` here, in the one process that reads the file: workers on other machines may have other homes.
    sources = tuple(
        _at_home(
            replace(
                source,
                root=expand_location(source.root, f"{where}: sources[{number}].root"),
                files=source.files and expand_location(source.files, f"{where}: sources[{number}].files"),
            ),
            where,
        )
        for number, source in enumerate(head.sources)
    )
    steps = (*column_steps(sources), *parsed)
    config = CorpusConfig(head.name, expand_location(head.output, f"{where}: output"), sources, steps, head.remote)
    _check(config, where)
    return config


def _at_home(source: Source, where: str) -> Source:
    split = source.split
    if not isinstance(split, IdSplit):
        return source

    def at_home(path: str | None, name: str) -> str | None:
        field = f"{where}: sources.{source.name}.split.{name}"
        if path is not None:
            parse_local(path, field)  # refuses URLs
        return path and expand_location(path, field)

    files = at_home(split.validation, "validation"), at_home(split.test, "test")
    return replace(source, split=replace(split, validation=files[0], test=files[1]))


def column_steps(sources: Sequence[Source]) -> tuple[StepConfig, ...]:
    """Return the steps that write the `columns` declared by sources, one step for all sources with the same
    columns. Raises ConfigError for a column that has different types in different sources.
    """
    shared: list[tuple[dict[str, RecordField], list[str]]] = []
    types: dict[str, tuple[str, str]] = {}  # the type of a column, and the first source with it
    for source in sources:
        for name, field in source.typed_fields():
            kind, first = types.setdefault(name, (field.type, source.name))
            if kind != field.type:
                raise ConfigError(
                    f"source {source.name!r}: columns.{name}: got {field.type}, but {kind} in source {first!r}; a column has one "
                    "type in all sources: change one of them (float also reads whole numbers), or rename one"
                )
        if columns := dict(source.typed_fields()):
            names = next((names for known, names in shared if known == columns), None)
            if names is None:
                names = []
                shared.append((columns, names))
            names.append(source.name)
    steps = []
    for number, (columns, names) in enumerate(shared, 1):
        name = f"source_columns_{number}" if number > 1 else "source_columns"
        steps.append(StepConfig(name, RecordFields(columns), "record_fields", tuple(names)))
    return tuple(steps)


def plain_config(config: CorpusConfig) -> dict[str, Any]:
    """Return the configuration as plain data that, written as YAML, is a valid corpus file."""
    steps = []
    of_sources = column_steps(config.sources)
    for step in (step for step in config.steps if step not in of_sources):
        entry: dict[str, Any] = {step.stage_name: _plain_knobs(step)}
        if step.name != step_name(step.stage_name):
            entry["name"] = step.name
        if step.sources is not None:
            entry["sources"] = list(step.sources)
        if step.where is not None:
            entry["where"] = step.where
        steps.append(entry)
    head = {"name": config.name, "output": config.output, "remote": plain(config.remote)}
    return {**head, "sources": plain(config.sources), "steps": steps}


def corpus_schema() -> dict[str, Any]:
    """Return the JSON Schema of corpus files."""
    schema = schema_of("gristmill corpus file", _CorpusFile)
    definitions, head = schema["$defs"], schema["$defs"]["CorpusFile"]
    placement = value_schema(_Placement, definitions)["$ref"].rpartition("/")[2]
    beside = definitions.pop(placement)["properties"]
    entries = []
    for name, kind in sorted(STAGES.items()):
        knobs = value_schema(kind, definitions)
        if kind.list_knob is not None:
            knobs = definitions.pop(kind.__name__)["properties"][kind.list_knob]
        entries.append(
            {"type": "object", "properties": {name: knobs, **beside}, "required": [name], "additionalProperties": False}
        )
    own = {
        "type": "object",
        "patternProperties": {r"^[a-z0-9_]+:": {}},
        "properties": beside,
        "additionalProperties": False,
    }
    entries.append(own)  # PACKAGE:STAGE
    kind = definitions["Source"]["properties"]["format"]
    del kind["type"]
    kind["anyOf"] = [{"enum": list(FORMATS)}, {"type": "string", "pattern": ":"}]  # PACKAGE:FORMAT
    head["properties"]["steps"] = {"type": "array", "minItems": 1, "items": {"anyOf": entries}}
    head["required"].append("steps")
    return schema


@dataclass(frozen=True)
class _CorpusFile:
    name: str
    output: str
    sources: tuple[Source, ...]
    remote: Remote = _REMOTE

    def check(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name: got {self.name!r}, expected lower-case letters, digits and underscores")
        check_url("output", self.output)
        if not self.sources:
            raise ValueError("sources: expected at least one source")
        seen: dict[str, str] = {}
        for source in self.sources:
            name, earlier = source.name, seen.get(source.name.lower())
            if earlier == name:
                raise ValueError(f"sources: the name {name!r} occurs twice")
            if earlier is not None:
                raise ValueError(
                    f"sources: {earlier!r} and {name!r} differ only in case, and would share directories if file names are "
                    "case-insensitive; rename one"
                )
            seen[name.lower()] = name


_PLACEMENT = ("name", "sources", "where")


def _step(entry: Any, number: int, where: str, own: Mapping[str, StageClass]) -> StepConfig:
    at = f"steps[{number}]"
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where}: {at}: got {entry!r}, expected {{stage: knobs}}")
    stages = [key for key in entry if key not in _PLACEMENT]
    if len(stages) != 1:
        raise ConfigError(
            f"{where}: {at}: names {len(stages)} stages ({', '.join(map(str, stages))}), expected exactly one"
        )
    name, knobs = str(stages[0]), entry[stages[0]]
    try:
        kind = stage_class(name, own)
    except ConfigError as error:
        raise ConfigError(f"{where}: {at}.{name}: {error}") from None
    if kind.list_knob is not None:
        knobs = {kind.list_knob: knobs}
    if isinstance(knobs, Mapping):
        found = {knob: knobs[knob] for knob in kind.paths if knob in knobs}
        at_home = {k: _paths(value, f"{where}: {at}.{name}.{k}", k in kind.places) for k, value in found.items()}
        knobs = {**knobs, **at_home}
    stage = parse(kind, knobs, f"{where}: {at}.{name}")
    wrong = [each for each in stage.reads() if not isinstance(each, Input)]
    if wrong:
        raise ConfigError(
            f"{where}: {at}.{name}: reads {wrong[0]!r}, expected Column({wrong[0]!r}), TEXT or EDITED_TEXT"
        )
    if (
        isinstance(stage, PartStage)
        and EDITS_COLUMN in stage.writes().names
        and not any(isinstance(each, Text) for each in stage.reads())
    ):
        raise ConfigError(f"{where}: {at}.{name}: writes edits, but `reads()` has neither TEXT nor EDITED_TEXT")
    placement = parse(_Placement, {key: entry[key] for key in _PLACEMENT if key in entry}, f"{where}: {at}")
    return StepConfig(placement.name or step_name(name), stage, name, placement.sources, placement.where)


def _paths(value: Any, where: str, may_be_url: bool) -> Any:
    """Return the value of a knob that names files, with a leading `~`, `~USER` or `$HOME` expanded in each
    path. Raises ConfigError for a URL if only local files are allowed.

    A value `file:PATH`, which the stage pii allows for its `key`, keeps its prefix.
    """
    if isinstance(value, str):
        if may_be_url:
            return (
                f"file:{expand_location(value[5:], where)}"
                if value.startswith("file:")
                else expand_location(value, where)
            )
        parse_local(value, where)  # refuses URLs
        return expand_location(value, where)
    if isinstance(value, Mapping):
        fields = [name for name in ("file", "files") if name in value] or list(value)
        return {**value, **{name: _paths(value[name], where, may_be_url) for name in fields}}
    return [_paths(entry, where, may_be_url) for entry in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class _Placement:
    name: str | None = None
    sources: tuple[str, ...] | None = None
    where: str | None = None


def _plain_knobs(step: StepConfig) -> Any:
    knobs = plain(step.stage)
    return knobs if step.stage.list_knob is None else knobs[step.stage.list_knob]


def _check(config: CorpusConfig, where: str) -> None:
    sources = {source.name for source in config.sources}
    seen: list[str] = []
    for number, step in enumerate(config.steps):
        at = f"{where}: steps[{number}] ({step.name})"
        if not _NAME.fullmatch(step.name):
            raise ConfigError(f"{at}: name: got {step.name!r}, expected lower-case letters, digits and underscores")
        if step.name in _TAKEN:
            raise ConfigError(
                f"{at}: the step name {step.name!r} is taken by {_TAKEN[step.name]}; give this one another"
            )
        if step.name in seen:
            raise ConfigError(f"{at}: the step name {step.name!r} occurs twice; give this one a `name`")
        for source in step.sources or ():
            if source not in sources:
                raise ConfigError(f"{at}: sources: no source named {source!r}; there are: {', '.join(sorted(sources))}")
        if step.where is not None and step.where not in seen:
            raise ConfigError(
                f"{at}: where: got {step.where!r}, expected an earlier step: {', '.join(seen) or 'there is none'}"
            )
        if step.where is not None and isinstance(step.stage, CorpusStage):
            raise ConfigError(
                f"{at}: where: only stages that annotate parts can be limited by `where`; this one reads `drop` itself"
            )
        seen.append(step.name)
