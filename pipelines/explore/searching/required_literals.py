"""Find literals such that every match of a regular expression contains at least one of them. A search looks
them up in an index to find the documents that may match.
"""

import re

_ONE_CHARACTER = frozenset("dDsSwWbBAzafnrtv")  # escapes that stand for one character of a class, or for a place
_REPEAT = re.compile(r"(?:[*?+]|\{\d+(?:,\d*)?\})\??")
_CLASS = re.compile(r"\[\^?+\]?+(?:\[:\^?\w+:\]|\\[^QECpPx0-9]|\\[pP](?:\w|\{\^?\w+\})|[^\]\\\[])*\]")
_GROUP = re.compile(r"\((?:\?:|\?P?<\w+>)?(?!\?)")


def required_literals(pattern: str) -> list[str] | None:
    """Return one literal for each alternative of a regular expression in RE2's syntax, such that every match
    contains at least one of them in the same case. Return None if no such literals can be found with
    certainty.
    """
    literals = []
    at = 0
    while at <= len(pattern):
        alternative = _read_alternative(pattern, at)
        if alternative is None or not alternative[0]:
            return None
        literals.append(alternative[0])
        at = alternative[1] + 1
    return literals


def _read_alternative(pattern: str, at: int) -> tuple[str, int] | None:
    """Return (literal, end) for the alternative that begins at the offset `at`, or None if its meaning is
    uncertain. Every match contains the literal, which may be empty.
    """
    runs: list[str] = [""]
    while at < len(pattern) and pattern[at] != "|":
        item = _read_item(pattern, at)
        if item is None:
            return None
        literal, at = item
        if repeat := _REPEAT.match(pattern, at):
            at = repeat.end()
            if _REPEAT.match(pattern, at):
                return None
            runs[-1] += literal if repeat[0].startswith("+") else ""
            runs.append("")
        elif literal:
            runs[-1] += literal
        else:
            runs.append("")
    return max(runs, key=len), at


def _read_item(pattern: str, at: int) -> tuple[str, int] | None:
    """Return (literal, end) for the item of a regular expression that begins at the offset `at`: a character,
    an escape, a class or a group. The literal is the character that the item matches, or empty if it can
    match several or none. `end` is the offset after the item. Return None for an item that is not understood.
    """
    character = pattern[at]
    if character == "\\":
        escaped = pattern[at + 1 : at + 2]
        if escaped in _ONE_CHARACTER:
            return "", at + 2
        return (escaped, at + 2) if escaped.isascii() and not escaped.isalnum() else None
    if character == "[":
        found = _CLASS.match(pattern, at)
        return ("", found.end()) if found else None
    if character == "(":
        return _skip_group(pattern, at)
    if character in ".^$":
        return "", at + 1
    return None if character in "*+?{}])" else (character, at + 1)


def _skip_group(pattern: str, at: int) -> tuple[str, int] | None:
    opened = _GROUP.match(pattern, at)
    if not opened:
        return None
    at = opened.end()
    while at < len(pattern) and pattern[at] != ")":
        repeat = _REPEAT.match(pattern, at)
        item = ("", repeat.end()) if repeat else ("", at + 1) if pattern[at] == "|" else _read_item(pattern, at)
        if item is None:
            return None
        at = item[1]
    return ("", at + 1) if at < len(pattern) else None
