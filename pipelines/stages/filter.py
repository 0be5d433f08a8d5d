"""Filter: the one place where thresholds decide. Rules are data over columns that earlier steps measured."""

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.contracts.errors import ConfigError
from pipelines.contracts.stage import DROP, PartStage
from pipelines.stages.rules import Rule


@dataclass(frozen=True)
class Filter(PartStage):
    """Drop the documents that fail a rule: `drop` becomes the name of the first rule that fails, null keeps.

    In YAML the knob is the list itself: `filter: [{rules: gopher_quality@massivetext}, {signal: alpha_word_ratio,
    at_least: 0.7}]`. A null value means that a rule does not apply; it never drops. Changing a rule recomputes
    decisions, never signals.
    """

    rules: tuple[Rule, ...]
    """At least one; tried in this order."""

    list_knob: ClassVar[str] = "rules"

    def reads(self) -> tuple[str, ...]:
        """The columns that the rules test."""
        return tuple(dict.fromkeys(rule.signal for rule in self._tests() if rule.signal is not None))

    def writes(self) -> pa.Schema:
        """`drop`: the name of the first rule that fails."""
        return pa.schema([(DROP, pa.string())])

    def check(self) -> None:
        """There is a rule, and reasons tell rules apart."""
        if not self.rules:
            raise ValueError("rules: got an empty list, expected at least one rule")
        reasons: dict[str, int] = {}
        for number, entry in enumerate(self.rules):
            for rule in entry.expand():
                if reasons.setdefault(rule.reason(), number) != number:
                    first = reasons[rule.reason()]
                    raise ValueError(f"rules[{number}]: {rule.reason()!r} also names rules[{first}]; give one a `name`")

    def annotate(self, docs: pa.Table) -> pa.Table:
        """The `drop` of each document."""
        drop = pa.nulls(docs.num_rows, pa.string())
        for rule in self._tests():
            failed = pc.and_(pc.is_null(drop), fails(rule, _values(docs[rule.signal])))
            drop = pc.if_else(failed, pa.scalar(rule.reason(), pa.string()), drop)
        return pa.table({DROP: drop}, schema=self.writes())

    def _tests(self) -> list[Rule]:
        return [rule for entry in self.rules for rule in entry.expand()]


def fails(rule: Rule, values: pa.Array) -> pa.Array:
    """Where a value does not satisfy the rule, boolean [n]; false where it is null."""
    tests = []
    for bound, compare in ((rule.at_least, pc.greater_equal), (rule.at_most, pc.less_equal)):
        if bound is not None:
            tests.append(compare(values, _bound(rule, bound, values.type)))
    if rule.one_of:
        tests.append(pc.is_in(values, value_set=_set(rule, rule.one_of, values.type)))
    if rule.none_of:
        tests.append(pc.invert(pc.is_in(values, value_set=_set(rule, rule.none_of, values.type))))
    holds = tests[0]
    for test in tests[1:]:
        holds = pc.and_(holds, test)
    return pc.and_(pc.is_valid(values), pc.invert(pc.fill_null(holds, True)))


def _values(column: pa.ChunkedArray) -> pa.Array:
    values = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def _bound(rule: Rule, bound: float, kind: pa.DataType) -> pa.Scalar:
    if pa.types.is_floating(kind):
        return pa.scalar(bound, kind)  # a float32 ratio of exactly 0.1 is float32's 0.1, which lies above float64's
    if pa.types.is_integer(kind):
        return pa.scalar(bound, pa.float64())
    message = f"{rule.signal} holds {kind}, at_least and at_most need numbers; use one_of"
    raise ConfigError(f"filter: rule {rule.reason()!r}: {message}")


def _set(rule: Rule, values: tuple[object, ...], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        message = f"{rule.signal} holds {kind}, which cannot be any of {list(values)}"
        raise ConfigError(f"filter: rule {rule.reason()!r}: {message}") from None
