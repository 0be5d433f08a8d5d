"""Check the columns that rules and `group_by` name, before anything runs. It is an error if no earlier step
writes a rule's column for a source that the rule judges, or if a column has a type that the stage cannot use.
Notices report `group_by` columns that are missing for some sources, and rules that do not say what happens to
nulls.
"""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from gristmill.errors import ConfigError
from pipelines.contracts.columns import DROP
from pipelines.contracts.document import DOCUMENT
from pipelines.contracts.stage import ColumnTest
from pipelines.planning.corpus import CorpusConfig, StepConfig, column_steps
from pipelines.stages.materialise.shards import Shards

NULLABLE_DOCUMENT_COLUMNS = tuple(column.name for column in DOCUMENT if column.nullable)


def check_rules(
    config: CorpusConfig, entry: StepConfig, done: Sequence[StepConfig], types: Mapping[str, pa.DataType]
) -> None:
    """Raise ConfigError if a rule judges a source for which no earlier step writes the rule's column, or if
    the stage cannot use the type of a column.
    """
    stage = entry.stage
    known = {**dict(zip(DOCUMENT.names, DOCUMENT.types, strict=True)), **types, DROP: pa.string()}
    read = dict.fromkeys(each.name for each in stage.read_columns() if each.name in known)
    stage.check_types(pa.schema([(name, known[name]) for name in read]))
    for rule in stage.tests():
        writers = [earlier for earlier in done if rule.signal in earlier.written]
        if rule.signal in DOCUMENT.names or rule.signal == DROP:
            continue
        written = {source for earlier in writers for source in _sources(config, earlier)}
        if lacking := [source for source in _judged(config, entry, rule) if source not in written]:
            measured = [source for source in _sources(config, entry) if source in written]
            own = column_steps(config.sources)
            names = " and ".join(earlier.name for earlier in writers if earlier not in own)
            remedy = f"let {names} measure {lacking[0]}" if names else f"add it to `columns` of {lacking[0]}"
            raise ConfigError(
                f"step {entry.name}: the rule {rule.reason()!r} tests {rule.signal!r}, which no step writes for the source "
                f"{lacking[0]}; limit the rule by `when: {{source: [{', '.join(measured)}]}}`, limit {entry.name} to such "
                f"`sources`, or {remedy}"
            )


def null_notices(config: CorpusConfig) -> Iterator[str]:
    """Yield one line for every rule that does not say what happens to nulls, although its column may contain
    them.
    """
    done: list[StepConfig] = []
    for entry in config.steps:
        for rule in entry.stage.tests():
            if rule.null is None and _may_be_null(rule, done):
                verdict = "drops" if rule.drops_null() else "keeps"
                name = "" if rule.reason() == rule.signal else f" {rule.reason()!r}"
                yield (
                    f"{entry.name}: {rule.signal} has no value in some documents, and the rule{name} {verdict} them; "
                    "write `null: drop` or `null: keep` into the rule"
                )
        done.append(entry)


def undivided_notices(config: CorpusConfig) -> Iterator[str]:
    """Yield a notice for every `group_by` column that is missing for some sources because no earlier step
    writes it. The shards of those sources are not divided by that column.
    """
    done: list[StepConfig] = []
    for entry in config.steps:
        for each in entry.stage.groups if isinstance(entry.stage, Shards) else ():
            writers = [earlier for earlier in done if each.column in earlier.written]
            written = {source for earlier in writers for source in _sources(config, earlier)}
            if left := [source for source in _sources(config, entry) if source not in written]:
                yield f"{entry.name}: no step writes {each.column} for {', '.join(left)}, which it therefore does not split"
        done.append(entry)


def _may_be_null(rule: ColumnTest, done: Sequence[StepConfig]) -> bool:
    if rule.signal in DOCUMENT.names:
        return rule.signal in NULLABLE_DOCUMENT_COLUMNS
    writers = [earlier.stage for earlier in done if rule.signal in earlier.written]
    return any(rule.signal not in stage.never_null() for stage in writers)


def _judged(config: CorpusConfig, entry: StepConfig, rule: ColumnTest) -> list[str]:
    sources = _sources(config, entry)
    return [source for source in sources if "source" not in rule.when or source in rule.when["source"]]


def _sources(config: CorpusConfig, entry: StepConfig) -> Sequence[str]:
    return entry.sources if entry.sources is not None else [source.name for source in config.sources]
