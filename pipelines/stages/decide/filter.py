"""Filter: drop documents by rules, which are conditions on columns."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import ConfigError
from pipelines.contracts.columns import DROP
from pipelines.contracts.reads import Input, column_named
from pipelines.contracts.stage import CorpusStage, PartStage
from pipelines.reading.sources.record_field import parse_date
from pipelines.stages.decide.quantiles import Quantiles
from pipelines.stages.decide.rules import DEFAULT, Quantile, Rule, Threshold, group_names, values_of

Thresholds = Mapping[Quantile, Mapping[str, float]]
"""Computed thresholds by request and group. The group is the value of `per`, or "" if it is null or there is
no `per`.
"""

_INTEGER = re.compile(r"0|-?[1-9][0-9]*")  # as the values of a column of integers are written


@dataclass(frozen=True)
class Filter(PartStage):
    """Drop the documents that fail a rule: `drop` becomes the name of the first rule that fails, or null if
    all rules hold.

    In YAML the knob is the list itself: `filter: [{rules: gopher_quality@massivetext}, {signal:
    alpha_word_ratio, at_least: 0.7}]`. Changing a rule does not recompute the signals that it tests.
    """

    rules: tuple[Rule, ...]
    """The rules, at least one, applied in this order."""

    version: ClassVar[int] = 3
    list_knob: ClassVar[str] = "rules"

    def reads(self) -> tuple[Input, ...]:
        names = [name for rule in self.tests() for name in (rule.signal, rule.per, *rule.when) if name]
        return tuple(map(column_named, dict.fromkeys(names)))

    def writes(self) -> pa.Schema:
        return pa.schema([(DROP, pa.string())])

    def check(self) -> None:
        if not self.rules:
            raise ValueError("rules: got an empty list, expected at least one rule")
        reasons: dict[str, int] = {}
        for number, entry in enumerate(self.rules):
            for rule in entry.expand():
                if reasons.setdefault(rule.reason(), number) != number:
                    first = reasons[rule.reason()]
                    raise ValueError(f"rules[{number}]: {rule.reason()!r} also names rules[{first}]; give one a `name`")

    def annotate(self, docs: pa.Table) -> pa.Table:
        """Return the `drop` of each document. If the filter has quantile rules, call `annotate` of the stage
        returned by `use` instead.
        """
        return self.decide(docs, {})

    def derived_steps(self) -> Mapping[str, CorpusStage]:
        requests = self.quantiles()
        return {"quantiles": Quantiles(requests)} if requests else {}

    def use(self, facts: Mapping[str, Any]) -> PartStage:
        thresholds = {}
        for entry in facts["quantiles"]["thresholds"]:
            request = Quantile(entry["signal"], entry["side"], entry["quantile"], entry["per"])
            thresholds[request] = {group: group_facts["value"] for group, group_facts in entry["groups"].items()}
        return _Resolved(self, thresholds)

    def decide(self, docs: pa.Table, thresholds: Thresholds) -> pa.Table:
        """Return the `drop` of each document, given the computed thresholds of the quantile rules."""
        drop = pa.nulls(docs.num_rows, pa.string())
        for rule in self.tests():
            groups = group_names(docs[rule.per]) if rule.per else None
            bad = fails(rule, values_of(docs[rule.signal]), groups)
            for request in rule.quantiles():
                beyond = _beyond(request, values_of(docs[rule.signal]), groups, thresholds[request])
                bad = pc.or_(bad, beyond)
            for column, values in rule.when.items():
                bad = pc.and_(bad, _among(rule, column, values_of(docs[column]), values))
            drop = pc.if_else(pc.and_(pc.is_null(drop), bad), pa.scalar(rule.reason(), pa.string()), drop)
        return pa.table({DROP: drop}, schema=self.writes())

    def tests(self) -> list[Rule]:
        return [rule for entry in self.rules for rule in entry.expand()]

    def check_types(self, types: pa.Schema) -> None:
        for request in self.quantiles():
            kind = types.field(request.signal).type
            if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_timestamp(kind)):
                raise ConfigError(f"filter: {request.signal} holds {kind}, a quantile needs numbers or dates")
            if request.per and pa.types.is_nested(types.field(request.per).type):
                raise ConfigError(
                    f"filter: per: {request.per} holds {types.field(request.per).type}, expected texts, numbers, dates or "
                    f"booleans"
                )
        for rule in self.tests():
            if rule.mappings():
                _check_keys(rule, types.field(rule.per).type)
        self.decide(types.empty_table(), {request: {} for request in self.quantiles()})

    def quantiles(self) -> tuple[Quantile, ...]:
        """Return the distinct quantiles that must be computed before this filter runs."""
        return tuple(dict.fromkeys(request for rule in self.tests() for request in rule.quantiles()))


@dataclass(frozen=True)
class _Resolved(PartStage):
    filter: Filter
    thresholds: Thresholds

    def reads(self) -> tuple[Input, ...]:
        return self.filter.reads()

    def writes(self) -> pa.Schema:
        return self.filter.writes()

    def annotate(self, docs: pa.Table) -> pa.Table:
        return self.filter.decide(docs, self.thresholds)


def _beyond(request: Quantile, values: pa.Array, groups: pa.Array | None, thresholds: Mapping[str, float]) -> pa.Array:
    """Return whether each value is on the wrong side of its group's threshold, boolean [n]; false for null."""
    compare = pc.greater_equal if request.side == "at_least" else pc.less_equal
    # Thresholds are values of the column and have its type. A group without a threshold has no value to test.
    if groups is None:
        bounds = pa.scalar(thresholds.get(""), values.type)
    else:
        known = pa.array(list(thresholds.values()), values.type)
        bounds = known.take(pc.index_in(groups, value_set=pa.array(list(thresholds), pa.string())))
    return pc.and_(pc.is_valid(values), pc.invert(pc.fill_null(compare(values, bounds), True)))


def fails(rule: Rule, values: pa.Array, groups: pa.Array | None) -> pa.Array:
    """Return whether each value fails the rule, boolean [n]. This ignores the rule's `when`, and considers
    its quantile bounds only for nulls. `groups` are the values of `per`, which select a bound from a mapping;
    None if the rule has no `per`.

    NaN fails `at_least` and `at_most`. By default, a null fails if a test that requires a value (`at_least`,
    `at_least_quantile` or `one_of`) applies to it. With `null: drop`, it fails if any test applies to it.
    With `null: keep`, it never fails.
    """
    bad = pa.array([False] * len(values), pa.bool_())
    tested = pa.scalar(bool(rule.one_of or rule.none_of or rule.quantiles()))
    requires = pa.scalar(bool(rule.one_of) or rule.at_least_quantile is not None)  # whether a test requires a value
    for side, compare in (("at_least", pc.less), ("at_most", pc.greater)):
        bounds = _bounds(rule, side, values.type, groups)
        if bounds is not None:
            beyond = pc.or_(compare(values.cast(bounds.type, safe=False), bounds), _is_nan(values))
            bad = pc.or_(bad, pc.fill_null(beyond, False))
            tested = pc.or_(tested, pc.is_valid(bounds))
            if side == "at_least":
                requires = pc.or_(requires, pc.is_valid(bounds))
    if rule.one_of:
        bad = pc.or_(bad, pc.invert(_among(rule, rule.signal, values, rule.one_of)))
    if rule.none_of:
        bad = pc.or_(bad, _among(rule, rule.signal, values, rule.none_of))
    dropped = requires if rule.null is None else pc.and_(tested, rule.null == "drop")
    return pc.if_else(pc.is_null(values), dropped, bad)


def _is_nan(values: pa.Array) -> pa.Array | pa.Scalar:
    return pc.is_nan(values) if pa.types.is_floating(values.type) else pa.scalar(False)


def _bounds(rule: Rule, side: str, kind: pa.DataType, groups: pa.Array | None) -> pa.Array | pa.Scalar | None:
    """Return the rule's bound on `side` (`at_least` or `at_most`), or None if the rule has no such bound. If
    the rule maps groups to bounds on this side, return an array with the bound of each element of `groups`.
    Groups that the mapping does not name have the mapping's default bound.
    """
    mapping = rule.mappings().get(side)
    bound = rule.bound(side)
    if mapping is None:
        return None if bound is None else _bound(rule, bound, kind)
    assert groups is not None
    known = pa.array([_bound(rule, bound, kind).as_py() for bound in mapping.values()], _comparable(rule, kind))
    indices = pc.index_in(groups, value_set=pa.array(list(mapping), pa.string()))
    return known.take(pc.fill_null(indices, list(mapping).index(DEFAULT)))


def _check_keys(rule: Rule, kind: pa.DataType) -> None:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    where = f"filter: rule {rule.reason()!r}: per: {rule.per} holds {kind}"
    if not text and not pa.types.is_integer(kind):
        raise ConfigError(f"{where}; bounds by value need a column of text or integers")
    for name, mapping in rule.mappings().items():
        for key in mapping:
            if not text and key != DEFAULT and not _INTEGER.fullmatch(key):
                raise ConfigError(
                    f"{where}, but {name} has the key {key!r}; expected integers, without leading zeros, and `default`"
                )


def _bound(rule: Rule, bound: Threshold | None, kind: pa.DataType) -> pa.Scalar:
    comparable = _comparable(rule, kind)
    if bound is not None and isinstance(bound, str) != pa.types.is_timestamp(kind):
        expected = "a date such as 2015-01-01" if pa.types.is_timestamp(kind) else "a number"
        raise ConfigError(
            f"filter: rule {rule.reason()!r}: {rule.signal} holds {kind}, its bound is {bound!r}, expected {expected}"
        )
    return pa.scalar(parse_date(bound) if isinstance(bound, str) else bound, comparable)


def _comparable(rule: Rule, kind: pa.DataType) -> pa.DataType:
    """Return the type in which a column of type `kind` is compared with a bound. Integers are compared as
    float64, which rounds those beyond 2**53.
    """
    if pa.types.is_floating(kind) or pa.types.is_timestamp(kind):
        return kind  # in float64, a float32 ratio of exactly 0.1 would be greater than the bound 0.1
    if pa.types.is_integer(kind):
        return pa.float64()
    message = f"{rule.signal} holds {kind}, at_least and at_most need numbers or dates; use one_of"
    raise ConfigError(f"filter: rule {rule.reason()!r}: {message}")


def _among(rule: Rule, name: str | None, column: pa.Array, values: tuple[object, ...]) -> pa.Array:
    try:
        return pc.is_in(column, value_set=pa.array(values, column.type))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        message = f"{name} holds {column.type}, which cannot be any of {list(values)}"
        raise ConfigError(f"filter: rule {rule.reason()!r}: {message}") from None
