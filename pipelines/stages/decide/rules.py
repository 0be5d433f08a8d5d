"""Filter rules over columns, and named rule sets. A rule is a condition that kept documents satisfy. The
named sets are data in rule_sets.py.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.reading.sources.record_field import parse_date
from pipelines.stages.decide.rule_sets import SETS, Limit

Value = str | bool | int | float
Threshold = float | str
Bound = Threshold | Mapping[str, Threshold | None]
DEFAULT = "default"
"""The key, in a mapping of bounds, of the bound that applies to all values not listed."""


@dataclass(frozen=True)
class Quantile:
    """A request for the quantile `q` of the column `signal` over the documents that no earlier step dropped,
    for use as a lower or upper bound (`side`). If `per` names a column, each of its values has its own
    quantile.
    """

    signal: str
    side: str  # at_least or at_most
    q: float
    per: str

    def rank(self, count: int) -> int:
        """Return the index of the threshold among `count` > 0 values in ascending order."""
        position = Fraction(repr(self.q)).limit_denominator(10**9) * count  # as written: 0.14 of 50 is 7
        if self.side == "at_least":
            return min(math.floor(position), count - 1)
        return max(math.ceil(position) - 1, 0)

    def facts(self) -> dict[str, Any]:
        """Return the request as it is recorded in a manifest, without the computed thresholds."""
        return {"signal": self.signal, "side": self.side, "quantile": self.q, "per": self.per}


@dataclass(frozen=True)
class Rule:
    """Tests of one column, or a reference to a named set of rules.

    `{rules: gopher_quality@massivetext}` applies the rules of that set, in its order. Otherwise, `signal`
    names the column to test: one that an earlier step writes, or one of the document itself, such as `url` or
    `source`. At least one test must be given, and all given tests must hold.

    A bound is a number, a date for a column of dates (`2015-01-01`), or, for thresholds by language, script
    or source, a mapping from the values of the column `per` to bounds: `{signal: mean_word_length, per:
    language, at_least: {en: 3, ko: 1.5, default: 1}}`. `default` is required: it applies to every other value
    and to null; `default: null` sets no bound there.

    `null` says whether documents without a value in the column are dropped or kept. By default, a test that
    requires a value drops them (`at_least`, `at_least_quantile`, `one_of`), and a test that only excludes
    values keeps them (`at_most`, `at_most_quantile`, `none_of`). For rules without this setting on columns
    that may be null, `plan` says what happens to null. The tests of a named set keep documents without a
    value, as the sources of the set do: a ratio without a denominator or a missing URL is no evidence against
    a document.
    """

    rules: str | None = None
    """A named set; `python -m pipelines rules` lists them."""
    signal: str | None = None
    """The column tested."""
    at_least: Bound | None = None
    """Keep if the value is at least this: a number, a date, or a mapping by the values of `per`. Columns of
    single-precision numbers are compared in single precision. NaN satisfies no bound.
    """
    at_most: Bound | None = None
    """Keep if the value is at most this: a number, a date, or a mapping by the values of `per`."""
    one_of: tuple[Value, ...] = ()
    """Keep if the value is one of these. Documents without a language have the language `und`."""
    none_of: tuple[Value, ...] = ()
    """Keep if the value is none of these."""
    name: str | None = None
    """The value of `drop` if the rule fails; default: the signal."""
    at_least_quantile: float | None = None
    """Keep the upper part: values at or above this quantile, 0 to 1, of the documents that no earlier step
    dropped. 0.9 keeps the top tenth, and all values equal to the lowest of that tenth."""
    at_most_quantile: float | None = None
    """Keep the lower part: values at or below this quantile, 0 to 1."""
    when: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    """The rule, or the set, applies only to documents whose values of these columns are listed: `when:
    {language: [ko, ja]}` gives some languages their own rules. It never drops other documents, including
    those with null in such a column."""
    per: str = ""
    """The column whose values are the keys of mappings of bounds, such as language or source. A quantile is
    computed for each value of this column; default: a single one.
    """
    null: Literal["drop", "keep"] | None = None
    """What to do if the value is null; default: drop with at_least, at_least_quantile or one_of, else keep."""
    prefix: str = ""
    """For a named set: the prefix of its column names, equal to the `prefix` of the step that measured them.
    The names of the rules do not change.
    """

    def check(self) -> None:
        """Raise ValueError if a field is invalid or conflicts with another."""
        names = ("at_least", "at_most", "one_of", "none_of", "at_least_quantile", "at_most_quantile")
        tests = [name for name in names if getattr(self, name) not in (None, ())]
        if (self.rules is None) == (self.signal is None):
            raise ValueError(f"signal: got {self.signal!r} with rules {self.rules!r}, expected exactly one of the two")
        if self.rules is not None:
            if self.rules not in RULE_SETS:
                raise ValueError(f"rules: no set named {self.rules!r}; allowed: {', '.join(sorted(RULE_SETS))}")
            extra = [*tests, *(name for name in ("name", "null") if getattr(self, name) is not None)]
            if extra:
                raise ValueError(f"rules: {self.rules!r} has its own tests and names; remove {', '.join(extra)}")
        elif self.prefix:
            raise ValueError(
                f"prefix: got {self.prefix!r} with a signal; give the signal's full name, prefix is for `rules`"
            )
        elif not tests:
            raise ValueError(
                f"signal: {self.signal!r} has no test; add at_least, at_most, one_of, none_of or a quantile"
            )
        self._check_bounds()
        for name in names[4:]:
            q = getattr(self, name)
            if q is not None and not 0 <= q <= 1:
                raise ValueError(f"{name}: got {q}, allowed from 0 to 1")
        for column, values in self.when.items():
            if not values:
                raise ValueError(
                    f"when.{column}: got an empty list: the rule would never apply; give at least one value"
                )
        if self.per and not self.quantiles() and not self.mappings():
            raise ValueError(
                f"per: got {self.per!r} without a quantile or a mapping of bounds; add at_least_quantile or "
                "at_most_quantile, or give at_least or at_most as {VALUE: bound, default: bound}"
            )

    def _check_bounds(self) -> None:
        for name, bounds in self.mappings().items():
            if not self.per:
                raise ValueError(f"{name}: got a mapping of bounds without `per`; add the column of its keys")
            if DEFAULT not in bounds:
                raise ValueError(
                    f"{name}: got bounds for {', '.join(bounds) or 'nothing'} without `default`, the bound of all other "
                    f"values of {self.per}; add it (default: null sets no bound)"
                )
            if all(bound is None for bound in bounds.values()):
                raise ValueError(f"{name}: got a mapping without a bound: it would test nothing")
        for group in dict.fromkeys(key for bounds in (*self.mappings().values(), (DEFAULT,)) for key in bounds):
            low, high = (
                _ordered(self.bound(side, group), f"{side}.{group}" if side in self.mappings() else side)
                for side in ("at_least", "at_most")
            )
            if low is not None and high is not None and low > high:
                among = f" for {group}" if self.mappings() else ""
                raise ValueError(
                    f"at_least: got {self.bound('at_least', group)}, above at_most {self.bound('at_most', group)}{among}: "
                    "nothing would be kept"
                )

    def mappings(self) -> dict[str, Mapping[str, Threshold | None]]:
        """Return the bounds that are mappings, keyed by `at_least` or `at_most`."""
        sides = {"at_least": self.at_least, "at_most": self.at_most}
        return {name: bound for name, bound in sides.items() if isinstance(bound, Mapping)}

    def bound(self, side: str, group: str = DEFAULT) -> Threshold | None:
        """Return the bound on one side (`at_least` or `at_most`) for documents whose value of `per` is
        `group`.
        """
        bound = self.at_least if side == "at_least" else self.at_most
        return bound.get(group, bound[DEFAULT]) if isinstance(bound, Mapping) else bound

    def drops_null(self) -> bool:
        """Return whether the rule drops documents whose value is null. True even if it drops them only in
        some groups.
        """
        asks = self.at_least is not None or self.at_least_quantile is not None or bool(self.one_of)
        return asks if self.null is None else self.null == "drop"

    def quantiles(self) -> tuple[Quantile, ...]:
        """Return the quantiles that must be computed as bounds of this rule; none for a named set."""
        assert self.signal is not None or self.rules is not None
        sides = (("at_least", self.at_least_quantile), ("at_most", self.at_most_quantile))
        return tuple(Quantile(self.signal or "", side, q, self.per) for side, q in sides if q is not None)

    def expand(self) -> tuple["Rule", ...]:
        """Return the rule itself or, if it names a rule set, the rules of the set with this rule's `prefix`
        and `when`.
        """
        if self.rules is None:
            return (self,)
        rules = RULE_SETS[self.rules]
        return tuple(replace(rule, signal=f"{self.prefix}{rule.signal}", when=self.when) for rule in rules)

    def reason(self) -> str:
        """Return the value of `drop` for documents that fail this rule. The rule must have a signal."""
        assert self.signal is not None
        return self.name or self.signal


def _ordered(bound: Threshold | None, where: str) -> tuple[bool, Any] | None:
    """Return a key that sorts numbers before dates, or None for no bound. Raises ValueError for a text that
    is not a date.
    """
    if not isinstance(bound, str):
        return None if bound is None else (False, bound)
    try:
        return True, parse_date(bound)
    except ValueError:
        raise ValueError(f"{where}: got {bound!r}, expected a number, or a date such as 2015-01-01") from None


def _rule(family: str, limit: Limit) -> Rule:
    name = f"{family}.{limit.name or limit.signal}"
    return Rule(None, limit.signal, limit.at_least, limit.at_most, none_of=limit.none_of, name=name, null="keep")


RULE_SETS: Mapping[str, tuple[Rule, ...]] = {
    name: tuple(_rule(name.partition("@")[0], limit) for limit in limits) for name, limits in SETS.items()
}


def group_names(column: pa.ChunkedArray) -> pa.Array:
    """Return the group of each document: the value of the column as text, or "" where it is null."""
    return pc.fill_null(pc.cast(values_of(column), pa.string()), "")


def values_of(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, decoded if it is dictionary-encoded."""
    values = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
