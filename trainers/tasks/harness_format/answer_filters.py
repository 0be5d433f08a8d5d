"""Filters that process a generated answer before it is compared, and the options of exact match."""

import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import regex

from gristmill.config import parse
from gristmill.errors import ConfigError, UserError

_NO_MATCH = "[invalid]"  # the library's answer where a pattern finds nothing
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_NO_DIGITS = str.maketrans("", "", string.digits)
_SECONDS = 10.0  # a sensible pattern takes milliseconds; one that backtracks without end would stop an evaluation
_PLAIN = ("take_first", "remove_whitespace", "lowercase", "uppercase")


@dataclass(frozen=True)
class FilterStep:
    """One step of a filter. `function` is `regex`, `take_first` (changes nothing), `remove_whitespace`
    (removes one leading space), `lowercase` or `uppercase`.

    `regex` returns the match of `pattern` with index `group` (counted from the end if negative), or
    `fallback` if there is no such match. If the pattern has groups in parentheses, only the first non-empty
    one is returned.
    """

    function: str
    pattern: str = r"#### (\-?[0-9\.\,]+)"
    group: int = 0
    fallback: str = _NO_MATCH

    def apply(self, text: str) -> str:
        """Return the text after this step."""
        if self.function == "remove_whitespace":
            return text.removeprefix(" ")
        if self.function in ("lowercase", "uppercase"):
            return text.lower() if self.function == "lowercase" else text.upper()
        if self.function == "take_first":  # of several answers to an item, of which there is one
            return text
        matches = _bounded(self.pattern, partial(regex.findall, self.pattern, text, timeout=_SECONDS))
        if not -len(matches) <= self.group < len(matches):
            return self.fallback
        found = matches[self.group]
        return (next((part for part in found if part), "") if isinstance(found, tuple) else found).strip()


@dataclass(frozen=True)
class AnswerFilter:
    """A named sequence of steps that are applied to an answer before it is compared."""

    name: str
    steps: tuple[FilterStep, ...] = ()

    def apply(self, text: str) -> str:
        """Return the text after all steps, applied in order."""
        for step in self.steps:
            text = step.apply(text)
        return text


@dataclass(frozen=True)
class TextComparison:
    """The options of exact match: what is ignored when two texts are compared."""

    regexes_to_ignore: tuple[str, ...] = ()
    ignore_case: bool = False
    ignore_punctuation: bool = False
    ignore_numbers: bool = False

    def plain(self, text: str) -> str:
        """Return the text that exact match compares: without the parts to ignore and, with `ignore_case`, in
        lower case.
        """
        for pattern in self.regexes_to_ignore:
            text = _bounded(pattern, partial(regex.sub, pattern, "", text, timeout=_SECONDS))
        text = text.lower() if self.ignore_case else text
        text = text.translate(_NO_PUNCTUATION) if self.ignore_punctuation else text
        return text.translate(_NO_DIGITS) if self.ignore_numbers else text


_Found = TypeVar("_Found")


def _bounded(pattern: str, match: Callable[[], _Found]) -> _Found:
    try:
        return match()
    except TimeoutError:
        raise UserError(
            f"the pattern {pattern!r} of a task file took more than {_SECONDS:.0f} s on one answer; "
            f"write it without nested repetition"
        ) from None


def read_comparison(place: str, options: Mapping[str, Any]) -> TextComparison:
    """Parse the options of the exact-match metric. Raises ConfigError for unknown options and invalid
    patterns.
    """
    known = {name: value for name, value in options.items() if name in TextComparison.__dataclass_fields__}
    if others := sorted(set(options) - set(known)):
        raise ConfigError(
            f"{place}: {others[0]}: is not read here; {', '.join(TextComparison.__dataclass_fields__)} are"
        )
    comparison = parse(TextComparison, {name: value for name, value in known.items() if value is not None}, place)
    for pattern in comparison.regexes_to_ignore:
        _check_pattern(f"{place}: regexes_to_ignore", pattern)
    return comparison


def read_filters(path: Path, given: Any) -> tuple[AnswerFilter, ...]:
    """Return the filters of a task file. If it has none, return a single filter that changes nothing. Raises
    ConfigError for invalid entries.
    """
    if not given:
        return (AnswerFilter("none"),)
    if not isinstance(given, dict | list):
        raise ConfigError(f"{path}: filter_list: got {given!r}, expected a list of filters")
    filters = []
    for number, entry in enumerate(given.values() if isinstance(given, dict) else given):
        place = f"{path}: filter_list[{number}]"
        if not isinstance(entry, dict) or not {"name", "filter"} <= set(entry) or "metric_list" in entry:
            raise ConfigError(f"{place}: expected a name and a filter, and metrics in the metric_list of the task")
        if not isinstance(entry["filter"], list):
            raise ConfigError(f"{place}: filter: got {entry['filter']!r}, expected a list of functions")
        filters.append(AnswerFilter(str(entry["name"]), tuple(_step(place, step) for step in entry["filter"])))
    return tuple(filters)


def _step(place: str, step: Any) -> FilterStep:
    function = step.get("function") if isinstance(step, dict) else None
    if function in _PLAIN:
        return FilterStep(function)
    if function != "regex":
        raise ConfigError(f"{place}: function: got {function!r}, expected one of {', '.join(('regex', *_PLAIN))}")
    pattern = step.get("regex_pattern", FilterStep.pattern)
    _check_pattern(f"{place}: regex_pattern", pattern)
    group = step.get("group_select", 0)
    if not isinstance(group, int):
        raise ConfigError(f"{place}: group_select: got {group!r}, expected the number of a match, counted from 0")
    return FilterStep("regex", pattern, group, str(step.get("fallback", _NO_MATCH)))


def _check_pattern(place: str, pattern: Any) -> None:
    try:
        regex.compile(pattern)
    except (regex.error, TypeError) as error:
        raise ConfigError(f"{place}: {pattern!r} is not a regular expression: {error}") from None
