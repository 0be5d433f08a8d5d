"""Rules over columns, and rule sets named after their source and version, because implementations of one paper differ.

A rule says what a kept document satisfies. A set is data: to write another one, add an entry here, or list rules in
YAML.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Value = str | bool | int | float


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

    def check(self) -> None:
        """Exactly one of `rules` and `signal`; a signal needs a test; a range must not be empty."""
        tests = [name for name in ("at_least", "at_most", "one_of", "none_of") if getattr(self, name) not in (None, ())]
        if (self.rules is None) == (self.signal is None):
            raise ValueError(f"signal: got {self.signal!r} with rules {self.rules!r}, expected exactly one of the two")
        if self.rules is not None:
            if self.rules not in RULE_SETS:
                raise ValueError(f"rules: no set named {self.rules!r}; there are: {', '.join(sorted(RULE_SETS))}")
            if tests or self.name is not None:
                extra = ", ".join([*tests, "name"] if self.name is not None else tests)
                raise ValueError(f"rules: {self.rules!r} brings its own tests and names; remove {extra}")
        elif not tests:
            raise ValueError(f"signal: {self.signal!r} is given no test; add at_least, at_most, one_of or none_of")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError(f"at_least: got {self.at_least}, above at_most {self.at_most}: nothing would be kept")

    def expand(self) -> tuple["Rule", ...]:
        """The tests this entry stands for."""
        return RULE_SETS[self.rules] if self.rules is not None else (self,)

    def reason(self) -> str:
        """What `drop` holds where this rule fails."""
        assert self.signal is not None
        return self.name or self.signal


def _named(prefix: str, *rules: Rule) -> tuple[Rule, ...]:
    return tuple(
        Rule(None, r.signal, r.at_least, r.at_most, r.one_of, r.none_of, f"{prefix}.{r.reason()}") for r in rules
    )


RULE_SETS: Mapping[str, tuple[Rule, ...]] = {
    # Rae et al. 2021 (Gopher, arXiv 2112.11446), appendix A.1.1, "Quality Filtering", in the order of the text:
    "gopher_quality@massivetext": _named(
        "gopher_quality",
        # "does not contain between 50 and 100,000 words"
        Rule(signal="word_count", at_least=50, at_most=100_000),
        # "mean word length is outside the range of 3 to 10 characters"
        Rule(signal="mean_word_length", at_least=3, at_most=10),
        # "a symbol-to-word ratio greater than 0.1 for either the hash symbol or the ellipsis"
        Rule(signal="hash_to_word_ratio", at_most=0.1),
        Rule(signal="ellipsis_to_word_ratio", at_most=0.1),
        # "more than 90% of lines starting with a bullet point, or more than 30% ending with an ellipsis"
        Rule(signal="bullet_line_ratio", at_most=0.9),
        Rule(signal="ellipsis_line_ratio", at_most=0.3),
        # "80% of words in a document contain at least one alphabetic character"
        Rule(signal="alpha_word_ratio", at_least=0.8),
        # "do not contain at least two of the following English words: the, be, to, of, and, that, have, with". Read as
        # two different ones; dolma and datatrove count occurrences, so there "the ... the" passes.
        Rule(signal="stop_word_count", at_least=2),
    ),
}
