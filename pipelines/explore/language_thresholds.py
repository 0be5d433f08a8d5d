"""Compute thresholds by language from the columns of a built corpus, as FineWeb2 does (Penedo et al. 2025,
arXiv 2506.20920).

- Language score (section 4.2): for each language, the median of the scores minus their standard deviation, limited
  to the range from 0.3 to 0.9.
- Quality and repetition (section 4.4.2): bounds that were made for English are transferred to the distribution of
  each language. Each family of rules uses the method that did best for it in the paper's ablations (appendix A.7.2).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import numpy as np

from gristmill.config import dump_yaml, near_match, parse
from gristmill.errors import UserError
from gristmill.storage.location import Location
from pipelines.contracts.lineage import Corpus, open_corpus
from pipelines.planning.column_writers import writers
from pipelines.stages.decide.filter import Filter
from pipelines.stages.decide.rules import DEFAULT, RULE_SETS, Rule, group_names
from pipelines.stages.measure.language import UNDETERMINED

LANGUAGE, SCORE = "language", "language_score"
LOWEST, HIGHEST = 0.3, 0.9
"""The range of thresholds of the language score; the lowest is also the default."""
TAIL = Fraction(1, 10)

Method = Literal["median_std", "tail", "quantile", "mean_std"]
_NGRAMS = (*(f"top_{n}gram_char_ratio" for n in (2, 3, 4)), *(f"dup_{n}gram_char_ratio" for n in range(5, 11)))
_DATATROVE = "_datatrove"


class Family(NamedTuple):
    """How the bounds of a family of rule sets are transferred to other languages: the method, and the signals
    to which it applies.
    """

    method: Method
    signals: tuple[str, ...]


FAMILIES: Mapping[str, Family] = {
    "fineweb": Family("tail", ("terminal_line_ratio", "newline_to_word_ratio")),
    "gopher_quality": Family("quantile", ("mean_word_length", "alpha_word_ratio")),
    "gopher_repetition": Family("mean_std", ("dup_line_ratio", *_NGRAMS)),
}
_STOP_WORDS = "stop_word_count"  # counts English words, so it has a bound in English only

Values = Mapping[str, np.ndarray]
"""The values of a column by language, ascending."""


@dataclass(frozen=True)
class LanguageThresholds:
    """Thresholds by language. `names` lists what they are for: `language_score` or rule sets. `rules` are
    filter rules as a corpus file contains them. `documents` maps each language to the number of its documents
    that have a language score. `few` lists the languages to which the `default` bounds apply, because some
    column has fewer than `least` values in them.
    """

    corpus: Corpus
    names: tuple[str, ...]
    rules: list[dict[str, Any]]
    documents: Mapping[str, int]
    few: tuple[str, ...]
    least: int

    def as_yaml(self) -> str:
        """Return the rules as a `filter` step of a corpus file, with comments that say how they were made."""
        manifest = self.corpus.manifest
        lines = [
            f"Thresholds by language, from the corpus {manifest.corpus} ({manifest.fingerprint[:12]}): {', '.join(self.names)}"
        ]
        for title, few in (("documents", False), (f"fewer than {self.least:,} values, so `default` holds", True)):
            counts = [f"{name} {count:,}" for name, count in self.documents.items() if (name in self.few) == few]
            lines.append(f"{title}: {', '.join(counts) or 'none'}")
        step = dump_yaml([{"filter": self.rules}], width=110, flow=None)
        return "".join(f"# {line}\n" for line in lines) + step


def language_thresholds(
    directory: Location, names: Sequence[str], reference: str = "en", least: int = 1000
) -> LanguageThresholds:
    """Compute thresholds by language for each of `names` (`language_score` or rule sets) from all documents
    that were read, including dropped ones. In the language `reference`, the bounds of rule sets stay
    unchanged. A language with fewer than `least` values in some column gets the default bounds. The bound on
    stop words always applies to English only, because the stop words are English.

    Raises UserError for an invalid argument, if the corpus lacks needed columns, or if bounds depend on the
    distribution of `reference` and the corpus has fewer than `least` values in that language.
    """
    if least < 1:
        raise UserError(f"--least: got {least}, expected 1 or more")
    allowed = [SCORE, *(name for name in RULE_SETS if name.partition("@")[0] in FAMILIES)]
    for name in names:
        if name not in allowed:
            raise UserError(f"thresholds: got {name!r}{near_match(name, allowed)}; allowed: {', '.join(allowed)}")
    corpus = open_corpus(directory)
    chosen = tuple(dict.fromkeys(names))
    documents = {language: len(rows) for language, rows in _values(corpus, SCORE).items()}
    rules, fewest = [], dict(documents)
    for rule, method in (test for name in chosen for test in _tests(name)):
        bounds = {}
        if method is not None:
            values = _values(corpus, rule.signal or "")
            _check_reference(rule, method, values, reference, least)
            bounds = {name: _bounds(rule, method, values, name, reference) for name in values if len(values[name])}
            fewest = {name: min(count, len(values.get(name, ()))) for name, count in fewest.items()}
        rules.append((rule, bounds))
    few = tuple(name for name, count in fewest.items() if count < least)
    plain = [_plain(rule, {name: bounds[name] for name in bounds if name not in few}) for rule, bounds in rules]
    parse(Filter, {"rules": plain}, "thresholds")
    return LanguageThresholds(corpus, chosen, plain, documents, few, least)


def _tests(name: str) -> list[tuple[Rule, Method | None]]:
    """Return the rules of `name`, a rule set or the language score. Each comes with the method that adapts
    its bounds to a language, or None.
    """
    if name == SCORE:
        return [(Rule(signal=SCORE, at_least=LOWEST), "median_std")]
    family = FAMILIES[name.partition("@")[0]]
    return [(rule, family.method if _bare(rule) in family.signals else None) for rule in RULE_SETS[name]]


def _bare(rule: Rule) -> str:
    return (rule.signal or "").removesuffix(_DATATROVE)


def _values(corpus: Corpus, signal: str) -> dict[str, np.ndarray]:
    """Return the values of a column by language, in ascending order, leaving out nulls, NaNs and documents of
    an unknown language.
    """
    chunks: dict[str, list[np.ndarray]] = {}
    parts = [part for part in corpus.parts() if part.has(LANGUAGE) and part.has(signal)]
    for part in parts:
        table = part.table((LANGUAGE, signal))
        values = table[signal].combine_chunks().to_numpy(zero_copy_only=False)
        languages = group_names(table[LANGUAGE]).dictionary_encode()
        codes = np.where(np.isnan(values), len(languages.dictionary), languages.indices.to_numpy())
        for code, language in enumerate(languages.dictionary.to_pylist()):
            if language not in ("", UNDETERMINED):
                chunks.setdefault(language, []).append(values[codes == code])
    if not parts:
        steps = [f"`{writers()[name].split()[0]}`" for name in (LANGUAGE, signal)]
        raise UserError(
            f"thresholds: no source of the corpus {corpus.manifest.corpus!r} has both {LANGUAGE} and {signal}; add the "
            f"steps {' and '.join(dict.fromkeys(steps))}, and build it again"
        )
    return {language: np.sort(np.concatenate(chunks[language])) for language in sorted(chunks)}


def _check_reference(rule: Rule, method: Method, values: Values, reference: str, least: int) -> None:
    count = len(values.get(reference, ()))
    if method in ("quantile", "mean_std") and count < least:
        raise UserError(
            f"thresholds: {rule.reason()}: the corpus has {count:,} values of {rule.signal} in {reference!r}, the language "
            f"that the bounds were made for, expected {least:,} or more; add documents, or use --reference or --least"
        )


def _bounds(rule: Rule, method: Method, values: Values, language: str, reference: str) -> dict[str, float]:
    if method == "median_std":
        middle = float(np.median(values[language]) - np.std(values[language]))
        return {"at_least": _shortest(max(LOWEST, min(HIGHEST, middle)))}
    sides = {side: rule.bound(side) for side in ("at_least", "at_most")}
    bounds = {side: float(bound) for side, bound in sides.items() if bound is not None}
    if language == reference:
        return bounds
    result = {}
    for side, bound in bounds.items():
        if method == "mean_std":
            carried = _by_deviations(bound, values[language], values[reference])
        else:
            dropped = TAIL if method == "tail" else _share_beyond(bound, side, values[reference])
            carried = _cut(values[language], side, dropped)
        result[side] = _shortest(carried)
    return result


def _by_deviations(bound: float, values: np.ndarray, reference: np.ndarray) -> float:
    """Return the value with the same z-score in `values` as `bound` has in `reference`, or `bound` itself if
    all values of `reference` are equal.
    """
    spread = float(np.std(reference, dtype=np.float64))
    if spread == 0:
        return bound
    deviations = (bound - float(np.mean(reference, dtype=np.float64))) / spread
    return float(np.mean(values, dtype=np.float64) + deviations * np.std(values, dtype=np.float64))


def _share_beyond(bound: float, side: str, values: np.ndarray) -> Fraction:
    """Return the share of `values` that a bound drops. The values must be in ascending order."""
    edge = values.dtype.type(bound)
    if side == "at_least":
        return Fraction(int(np.searchsorted(values, edge, "left")), len(values))
    return Fraction(len(values) - int(np.searchsorted(values, edge, "right")), len(values))


def _cut(values: np.ndarray, side: str, dropped: Fraction) -> float:
    """Return the tightest bound among the ascending `values` that drops at most the share `dropped` of them."""
    rank = min(int(dropped * len(values)), len(values) - 1)
    return float(values[rank] if side == "at_least" else values[len(values) - 1 - rank])


def _shortest(value: float) -> float:
    """Return the decimal number with the fewest digits that rounds to the same float32 as `value`. Columns of
    ratios are float32.
    """
    return float(str(np.float32(value)))


def _plain(rule: Rule, bounds: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    entry: dict[str, Any] = {"signal": rule.signal}
    sides = {side: rule.bound(side) for side in ("at_least", "at_most")}
    if _bare(rule) == _STOP_WORDS:
        entry |= {"per": LANGUAGE, "at_least": {"en": sides["at_least"], DEFAULT: None}}
    elif bounds:
        entry["per"] = LANGUAGE
        for side, bound in sides.items():
            if bound is not None:
                entry[side] = {**{name: of[side] for name, of in bounds.items()}, DEFAULT: bound}
    else:
        entry |= {side: bound for side, bound in sides.items() if bound is not None}
    extra = {"name": rule.name, "null": rule.null}
    return entry | {key: value for key, value in extra.items() if value is not None}
