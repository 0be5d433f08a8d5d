"""Rules over columns, and rule sets named after their source and version, because implementations of one paper differ.

A rule says what a kept document satisfies. The named sets are data in rule_sets.py; to write another one, add an entry
there, or list rules in YAML.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pipelines.stages.rule_sets import SETS, Limit

Value = str | bool | int | float


@dataclass(frozen=True)
class Quantile:
    """A threshold that is to be computed: quantile `q` of `signal` among the documents that share their value of `per`."""

    signal: str
    side: str  # at_least or at_most
    q: float
    per: str

    def rank(self, count: int) -> int:
        """Which of `count` > 0 values in ascending order, from 0, is the threshold."""
        if self.side == "at_least":
            return min(math.floor(self.q * count), count - 1)
        return max(math.ceil(self.q * count) - 1, 0)

    def facts(self) -> dict[str, Any]:
        """What a manifest says of it."""
        return {"signal": self.signal, "side": self.side, "quantile": self.q, "per": self.per}


@dataclass(frozen=True)
class Rule:
    """One test of one column, or a reference to a named set of tests.

    `{rules: gopher_quality@massivetext}` stands for the rules of that set, in its order. Otherwise `signal` names a
    column that an earlier step writes (or `url`, `source`, ...), and at least one of the four tests follows; all of
    them must hold.
    """

    rules: str | None = None
    """A named set; see RULE_SETS."""
    signal: str | None = None
    """The column tested. A null value means that the rule does not apply, so the document is kept."""
    at_least: float | None = None
    """Keep where the value is this or more. Compared in the column's own type. NaN satisfies no bound."""
    at_most: float | None = None
    """Keep where the value is this or less."""
    one_of: tuple[Value, ...] = ()
    """Keep where the value is one of these."""
    none_of: tuple[Value, ...] = ()
    """Keep where the value is none of these."""
    name: str | None = None
    """What `drop` holds where the rule fails; default: the signal."""
    at_least_quantile: float | None = None
    """Keep the upper part: values at or above this quantile, 0 to 1, of the documents that no earlier step dropped. 0.9 keeps
    a tenth, and what equals its lowest value."""
    at_most_quantile: float | None = None
    """Keep the lower part: values at or below this quantile, 0 to 1."""
    when: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    """The rule, or the set, judges only documents whose values of these columns are among those listed: `when: {language:
    [ko, ja]}` gives some languages rules of their own. It never drops the others."""
    per: str = ""
    """The quantile is computed for each value of this column by itself, such as source or language; default: for all
    documents that the step sees together."""

    def check(self) -> None:
        """Exactly one of `rules` and `signal`; a signal needs a test; a range must not be empty."""
        names = ("at_least", "at_most", "one_of", "none_of", "at_least_quantile", "at_most_quantile")
        tests = [name for name in names if getattr(self, name) not in (None, ())]
        if (self.rules is None) == (self.signal is None):
            raise ValueError(f"signal: got {self.signal!r} with rules {self.rules!r}, expected exactly one of the two")
        if self.rules is not None:
            if self.rules not in RULE_SETS:
                raise ValueError(f"rules: no set named {self.rules!r}; there are: {', '.join(sorted(RULE_SETS))}")
            if tests or self.name is not None:
                extra = ", ".join([*tests, "name"] if self.name is not None else tests)
                raise ValueError(f"rules: {self.rules!r} brings its own tests and names; remove {extra}")
        elif not tests:
            raise ValueError(
                f"signal: {self.signal!r} is given no test; add at_least, at_most, one_of, none_of or a quantile"
            )
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError(f"at_least: got {self.at_least}, above at_most {self.at_most}: nothing would be kept")
        for name in names[4:]:
            q = getattr(self, name)
            if q is not None and not 0 <= q <= 1:
                raise ValueError(f"{name}: got {q}, allowed from 0 to 1")
        for column, values in self.when.items():
            if not values:
                raise ValueError(
                    f"when.{column}: got an empty list: the rule would judge nothing; name at least one value"
                )
        if self.per and not self.quantiles():
            raise ValueError(f"per: got {self.per!r} without a quantile; add at_least_quantile or at_most_quantile")

    def quantiles(self) -> tuple[Quantile, ...]:
        """The thresholds that this rule needs computed."""
        assert self.signal is not None or self.rules is not None
        sides = (("at_least", self.at_least_quantile), ("at_most", self.at_most_quantile))
        return tuple(Quantile(self.signal or "", side, q, self.per) for side, q in sides if q is not None)

    def expand(self) -> tuple["Rule", ...]:
        """The tests this entry stands for."""
        if self.rules is None:
            return (self,)
        return tuple(replace(rule, when=self.when) for rule in RULE_SETS[self.rules])

    def reason(self) -> str:
        """What `drop` holds where this rule fails."""
        assert self.signal is not None
        return self.name or self.signal


def _rule(family: str, limit: Limit) -> Rule:
    name = f"{family}.{limit.name or limit.signal}"
    return Rule(None, limit.signal, limit.at_least, limit.at_most, none_of=limit.none_of, name=name)


RULE_SETS: Mapping[str, tuple[Rule, ...]] = {
    name: tuple(_rule(name.partition("@")[0], limit) for limit in limits) for name, limits in SETS.items()
}
