"""Estimate the effect of changed filter thresholds: how many documents and bytes each source would gain or
lose. Nothing is built, and later effects, such as on deduplication, are not considered.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from gristmill.config import near_match, parse, plain, yaml_value
from gristmill.errors import ConfigError, UserError
from gristmill.storage.location import FileRecord
from pipelines.building.publish import without_places
from pipelines.contracts.columns import DROP, EDITS_COLUMN
from pipelines.contracts.lineage import Corpus, open_corpus
from pipelines.contracts.manifest import read_schema, read_table, schema_facts
from pipelines.contracts.parts import DOCUMENT_COLUMNS, Part
from pipelines.planning.corpus import CorpusConfig, plain_config
from pipelines.stages.decide.filter import Filter, Thresholds
from pipelines.stages.decide.rules import Quantile, group_names, values_of
from pipelines.stages.materialise.funnel import SAMPLE_ROWS, emptied_by, sample_of

_FIELDS = ("at_least", "at_most", "one_of", "none_of", "at_least_quantile", "at_most_quantile", "per", "null")
_Z = 1.96  # standard deviations of a normal distribution that cover 95 %


@dataclass
class Impact:
    """The effect of changed filters on one source. It covers the documents that are kept, or that a filter or
    deduplication was the first to drop.

    `documents` is the number of these documents, and `kept` is how many of them the current filters keep.
    `seen` is how many of them were examined: a sample, or all. All other fields describe only the examined
    documents.
    """

    documents: int
    kept: int  # documents kept now, exact
    seen: int = 0
    newly_dropped: int = 0
    newly_kept: int = 0
    rules_now: dict[str, int] = field(default_factory=dict)
    rules_then: dict[str, int] = field(default_factory=dict)
    moved: list[tuple[int, bool, int, int]] = field(default_factory=list)  # lowest (hash, newly kept?, part, row)
    bytes_sum: float = 0.0  # UTF-8 bytes of stored text gained
    bytes_squares: float = 0.0  # sum of their squares by document

    @property
    def exact(self) -> bool:
        """Whether all documents were examined, not only a sample."""
        return self.seen == self.documents

    def scaled(self, count: float) -> float:
        """Extrapolate a count or sum over the examined documents to all documents."""
        return count if self.exact else count * self.documents / max(self.seen, 1)

    def change(self) -> tuple[float, float]:
        """Return the net number of documents gained, and half the width of its 95 % confidence interval (0 if
        exact or if no document was examined). If a sample was examined and none of its documents changed, the
        half-width follows the rule of three.
        """
        gained = self.newly_kept - self.newly_dropped
        squares = self.newly_kept + self.newly_dropped
        if not self.exact and not squares and self.seen:
            return 0.0, 3 / self.seen * self.documents  # rule of three: 0 of n observed means at most 3/n
        return self.scaled(gained), self._half_width(gained, squares)

    def bytes_change(self) -> tuple[float, float]:
        """Return the net number of bytes gained, and half the width of its 95 % confidence interval (0 if
        exact, or if no examined document changed).
        """
        return self.scaled(self.bytes_sum), self._half_width(self.bytes_sum, self.bytes_squares)

    def _half_width(self, total: float, squares: float) -> float:
        """Return half the width of the 95 % confidence interval of a sum over all documents, by the normal
        approximation with finite population correction.
        """
        if self.exact or not self.seen:
            return 0.0
        variance = max(squares / self.seen - (total / self.seen) ** 2, 0.0)
        left = 1 - self.seen / self.documents
        return float(_Z * self.documents * np.sqrt(variance / self.seen * left))


@dataclass(frozen=True)
class WhatIf:
    """A built corpus with two sets of filters: those it was built with (`now`) and changed filters (`then`)."""

    config: CorpusConfig
    corpus: Corpus
    now: Mapping[str, Filter]
    then: Mapping[str, Filter]

    @property
    def changed(self) -> list[str]:
        """The names of the filter steps that differ between `now` and `then`."""
        return [name for name, stage in self.now.items() if stage != self.then[name]]

    def sources(self) -> list[str]:
        """Return the sources to which a changed filter applies, in the order of the corpus file."""
        return [s.name for s in self.config.sources if any(self.applies(name, s.name) for name in self.changed)]

    def applies(self, step: str, source: str) -> bool:
        """Return whether a step applies to the documents of a source."""
        sources = next(entry.sources for entry in self.config.steps if entry.name == step)
        return sources is None or source in sources

    def run(self, *, full: bool) -> dict[str, Impact]:
        """Return the impact of the changed filters on each source to which at least one of them applies,
        keyed by source. With `full`, the impact is counted over all documents; otherwise, it is estimated
        from the published sample. Raises UserError if a filter reads a column that the corpus lacks or,
        without `full`, one that the sample lacks.
        """
        impacts = {source: _current_impact(self, source) for source in self.sources()}
        thresholds = self._thresholds(full=full)
        for source, impact in impacts.items():
            for table in self._chunks(source, full=full):
                _count_changes(self, impact, source, table, thresholds)
        return impacts

    def _chunks(self, source: str, *, full: bool) -> Iterator[pa.Table]:
        columns = self._columns(full=full)
        if not full:
            yield _read_sample(self.corpus, columns).filter(pc.equal(pc.field("source"), source))
            return
        for part in self.corpus.parts(source):
            yield _stored_columns(part, columns)

    def _columns(self, *, full: bool) -> list[str]:
        stages = [*self.now.values(), *self.then.values()]
        names = dict.fromkeys(each.name for stage in stages for each in stage.read_columns() if each.name != "source")
        written = {*DOCUMENT_COLUMNS, *(name for step in self.corpus.steps for name in step.manifest.schema)}
        stored = sorted(written - {DROP, EDITS_COLUMN})
        sampled = _sample_types(self.corpus)
        for name in names:
            if name not in stored:
                raise UserError(f"{name}: no step of the corpus writes this column{near_match(name, stored)}")
            if not full and name not in sampled:
                raise UserError(f"{name}: is not in the published sample; use --full, which reads the stored columns")
        return list(names)

    def _thresholds(self, *, full: bool) -> dict[str, Thresholds]:
        """Return the quantiles that the filters of `then` request, by step, computed over the documents that
        the earlier filters of `then` would keep.
        """
        thresholds: dict[str, Thresholds] = {}
        for position, (name, stage) in enumerate(self.then.items()):
            if stage.quantiles():
                before = dict(list(self.then.items())[:position])
                thresholds[name] = self._quantiles(name, before, thresholds, full=full)
        return thresholds

    def _quantiles(
        self, step: str, before: Mapping[str, Filter], known: Mapping[str, Thresholds], *, full: bool
    ) -> Thresholds:
        requests = self.then[step].quantiles()
        gathered: dict[tuple[Quantile, str], list[tuple[np.ndarray, float]]] = {}
        for source in (s.name for s in self.config.sources if self.applies(step, s.name)):
            base = _current_impact(self, source)
            for table in self._chunks(source, full=full):
                table = table.filter(_eligible(self, table))
                weight = 1.0 if full or not table.num_rows else base.documents / table.num_rows
                table = table.filter(pc.is_null(_decide(self, before, source, table, known)))
                for request in requests:
                    names = _group(table, request)
                    for group in names.unique().to_pylist():
                        values = table.filter(pc.equal(names, group))[request.signal].drop_null()
                        numbers = values.combine_chunks().to_numpy(zero_copy_only=False)
                        numbers = numbers[numbers == numbers]  # NaN differs from itself
                        gathered.setdefault((request, group), []).append((numbers, weight))
        result: dict[Quantile, dict[str, float]] = {request: {} for request in requests}
        for (request, group), chunks in gathered.items():
            if any(len(numbers) for numbers, _ in chunks):
                result[request][group] = _weighted_quantile(request, chunks)
        return result


def what_if(config: CorpusConfig, changes: Sequence[str]) -> WhatIf:
    """Return the filters of a built corpus together with the same filters after `changes`. Each change is
    `STEP.RULE.FIELD=value`, `STEP.RULE.FIELD.KEY=value` or, to replace all rules of a step, `STEP=[rules]`.

    Raises UserError if the steps of the corpus differ from those of `config`, if there is no filter, if a
    change is invalid, if the changes have no effect, or if a filter reads columns that newly kept documents
    lack.
    """
    corpus = open_corpus(config.place)
    if corpus.manifest.config["steps"] != without_places(plain_config(config))["steps"]:
        raise UserError(f"{config.output}: was built with steps other than those in this file; build it first")
    if new := [source.name for source in config.sources if source.name not in corpus.manifest.sources]:
        raise UserError(f"{config.output}: was built without the sources {', '.join(new)}; build it first")
    now = {entry.name: entry.stage for entry in config.steps if isinstance(entry.stage, Filter)}
    if not now:
        raise UserError(f"{config.name}: has no filter step, so there is no threshold to change")
    then = dict(now)
    for change in changes:
        name, stage = _apply_change(change, then)
        then[name] = stage
    question = WhatIf(config, corpus, now, then)
    if not question.changed:
        raise UserError("--set: changes nothing: every rule equals that of the built corpus")
    _refuse_unmeasured(question)
    return question


def _refuse_unmeasured(question: WhatIf) -> None:
    order = [entry.name for entry in question.config.steps]
    for entry in question.config.steps:
        if entry.where is None or entry.name in question.now:
            continue
        earlier = [name for name in question.changed if order.index(name) <= order.index(entry.where)]
        read = {name: {each.name for each in stage.read_columns()} for name, stage in question.then.items()}
        readers = [name for name, columns in read.items() if columns & entry.written]
        if earlier and readers:
            raise UserError(
                f"{', '.join(earlier)}: newly kept documents lack the columns of {entry.name}, which measured only kept "
                f"documents (`where: {entry.where}`), and {', '.join(readers)} decides by them; build it to find out"
            )


def _apply_change(change: str, steps: Mapping[str, Filter]) -> tuple[str, Filter]:
    path, equals, raw = change.partition("=")
    name, _, rest = path.partition(".")
    if not equals or name not in steps:
        raise ConfigError(
            f"--set {change!r}: expected STEP.RULE.FIELD=value, with a filter step{near_match(name, list(steps))}"
        )
    value = yaml_value(raw, f"--set {change!r}")
    stage = steps[name]
    rules = [plain(rule) for rule in stage.tests()]
    if not rest:
        rules = value
    else:
        reasons = [rule.reason() for rule in stage.tests()]
        reason, knob, group = _split_path(rest, reasons)
        if reason not in reasons:
            raise ConfigError(f"--set {change!r}: {name} has no rule {reason!r}{near_match(reason, reasons)}")
        if knob not in _FIELDS:
            raise ConfigError(f"--set {change!r}: a rule has no field {knob!r}{near_match(knob, list(_FIELDS))}")
        rule = rules[reasons.index(reason)]
        if group and not isinstance(rule[knob], dict):
            raise ConfigError(f"--set {change!r}: {knob} of {reason} is not a mapping of bounds; leave out .{group}")
        rules[reasons.index(reason)] = {**rule, knob: {**rule[knob], group: value} if group else value}
    return name, parse(Filter, {"rules": rules}, f"--set {change!r}")


def _split_path(path: str, reasons: Sequence[str]) -> tuple[str, str, str]:
    """Split RULE.FIELD or RULE.FIELD.KEY into (rule, field, key). The key is empty if absent. Names of rules
    may contain dots.
    """
    reason, _, knob = path.rpartition(".")
    rule, _, field_name = reason.rpartition(".")
    if reason not in reasons and rule in reasons and field_name in ("at_least", "at_most"):
        return rule, field_name, knob
    return reason, knob, ""


def _current_impact(question: WhatIf, source: str) -> Impact:
    """Return the impact on a source with only its exact counts, `documents` and `kept`, filled in."""
    total = question.corpus.read_step(source).manifest.counts[source].kept
    corpus_steps = set(_dedup_steps(question))
    filtered = 0
    for row in question.corpus.manifest.funnel:
        if row["source"] == source and row["step"] not in corpus_steps:
            lost = sum(row["dropped"].values())
            filtered += lost if row["step"] in question.now else 0
            total -= lost if row["step"] not in question.now else 0
    return Impact(total, total - filtered)


def _dedup_steps(question: WhatIf) -> list[str]:
    steps = question.config.steps
    return [entry.name for entry in steps if entry.stage.elects]


def _funnel_step(corpus: Corpus) -> Any:
    return next(step for step in corpus.steps if step.label == "funnel")


def _sample_record(step: Any) -> FileRecord:
    return sample_of(step.manifest)


def _sample_types(corpus: Corpus) -> list[str]:
    step = _funnel_step(corpus)
    return list(read_schema(step.directory, _sample_record(step)).names)


def _read_sample(corpus: Corpus, columns: Sequence[str]) -> pa.Table:
    step = _funnel_step(corpus)
    record = _sample_record(step)
    schema = read_schema(step.directory, record)
    names = ["hash", "id", "source", "part", "row", "drop_step", "drop", "emptied", "text_bytes", *columns]
    return read_table(step.directory, record, dict.fromkeys(names), schema_facts(schema))


def _stored_columns(part: Part, columns: Sequence[str]) -> pa.Table:
    """Return the same columns as `_read_sample`, except `hash`, for all documents of a part."""
    steps = pa.nulls(part.rows, pa.string())
    for annotation in part.annotations:
        if DROP in annotation.schema:
            dropped = pc.is_valid(annotation.column(DROP).combine_chunks())
            steps = pc.if_else(pc.and_(pc.is_null(steps), dropped), pa.scalar(annotation.step), steps)
    stored = part.table(("id", *columns, DROP))
    lengths = pc.binary_length(part.table(("text",))["text"])
    known = {
        "id": stored["id"], "source": pa.array([part.source] * part.rows), "part": pa.array([part.index] * part.rows),
        "row": pa.array(range(part.rows)), "drop_step": steps, "drop": stored[DROP], "emptied": emptied_by(part),
        "text_bytes": lengths,
    }  # fmt: skip
    return pa.table({**known, **{name: values_of(stored[name]) for name in columns}})


def _eligible(question: WhatIf, table: pa.Table) -> pa.Array:
    """Return a mask of the documents that count in an `Impact`, bool [n]: those that are kept, and those that
    a filter or deduplication step was the first to drop.
    """
    names = [*question.now, *_dedup_steps(question)]
    step = table["drop_step"].combine_chunks()
    return pc.or_(pc.is_null(step), pc.is_in(step, value_set=pa.array(names, pa.string())))


def _decide(
    question: WhatIf, filters: Mapping[str, Filter], source: str, table: pa.Table, thresholds: Mapping[str, Thresholds]
) -> pa.Array:
    drop = pa.nulls(table.num_rows, pa.string())
    for name, stage in filters.items():
        if question.applies(name, source):
            drop = pc.coalesce(drop, stage.decide(table, thresholds.get(name, {}))[DROP].combine_chunks())
    return drop


def _count_changes(
    question: WhatIf, impact: Impact, source: str, table: pa.Table, thresholds: Mapping[str, Thresholds]
) -> None:
    table = table.filter(_eligible(question, table)).combine_chunks()
    filtered = pc.is_in(table["drop_step"].combine_chunks(), value_set=pa.array(list(question.now), pa.string()))
    now = pc.if_else(filtered, table["drop"].combine_chunks(), pa.scalar(None, pa.string()))
    # A newly kept document is still dropped if edits have emptied it.
    emptied = pc.if_else(filtered, table["emptied"].combine_chunks(), pa.scalar(None, pa.string()))
    then = pc.coalesce(_decide(question, question.then, source, table, thresholds), emptied)
    was, will = (pc.is_null(drop).to_numpy(zero_copy_only=False) for drop in (now, then))
    sizes = table["text_bytes"].to_numpy().astype(np.float64)
    gained = sizes * (will.astype(np.int8) - was.astype(np.int8))
    impact.seen += table.num_rows
    impact.newly_dropped += int((was & ~will).sum())
    impact.newly_kept += int((~was & will).sum())
    impact.bytes_sum += float(gained.sum())
    impact.bytes_squares += float((gained**2).sum())
    for counts, drop in ((impact.rules_now, now), (impact.rules_then, then)):
        for entry in pc.value_counts(drop.drop_null()).to_pylist():
            counts[entry["values"]] = counts.get(entry["values"], 0) + entry["counts"]
    moved = table.filter(pa.array(was != will)).select(["id", "part", "row"]).to_pylist()
    kept = will[was != will].tolist()
    entries = [(xxhash.xxh3_64_intdigest(m["id"]), k, m["part"], m["row"]) for m, k in zip(moved, kept, strict=True)]
    impact.moved = sorted([*impact.moved, *entries])[:SAMPLE_ROWS]


def _group(table: pa.Table, request: Quantile) -> pa.Array:
    if not request.per:
        return pa.array([""] * table.num_rows, pa.string())
    return group_names(table[request.per])


def _weighted_quantile(request: Quantile, chunks: Sequence[tuple[np.ndarray, float]]) -> float:
    """Return the requested quantile of the values in `chunks`. Each chunk is (values, weight), where the
    weight is the number of documents that each value represents.
    """
    values = np.concatenate([numbers for numbers, _ in chunks])
    weights = np.concatenate([np.full(len(numbers), weight) for numbers, weight in chunks])
    order = np.argsort(values, kind="stable")
    if len(set(weights.tolist())) == 1:
        return values[order][request.rank(len(values))].item()
    reached = np.cumsum(weights[order]) / weights.sum()
    rank = np.searchsorted(reached, request.q, "right" if request.side == "at_least" else "left")
    return values[order][min(int(rank), len(values) - 1)].item()
