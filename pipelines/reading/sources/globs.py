"""Globs over relative paths, as in a shell: `*` stays within a name, `**` crosses directories.

`*`, `?` and `[abc]` do not match a leading dot, and `**` does not cross a name that begins with a dot, so
hidden files are read only where a pattern spells out the dot. `**/` may match nothing: `**/*.py` also matches
`setup.py` in the top directory. Keys of an object store can contain an empty name, as in `a//b`; `*` and `**`
match it too.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

_CLASS_SPECIAL = re.compile(r"[\\^\[\]&~|]")


def matches(path: str, patterns: Sequence[str]) -> bool:
    """Return whether a relative POSIX path matches at least one pattern."""
    return any(compile_glob(pattern).fullmatch(path) for pattern in patterns)


def may_contain(directory: str, patterns: Sequence[str]) -> bool:
    """Return whether a file below a relative directory could match one of the patterns. Nothing is checked
    from the first `**` of a pattern on, so the result may be True although no file can match.
    """
    names = directory.split("/")
    return any(_may_contain(names, pattern.split("/")) for pattern in patterns)


def covers(directory: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    """Return whether a walk can skip a relative directory because `exclude` has a pattern `P/**` whose `P`
    matches the directory. Such a pattern does not reject hidden files, so the result is False if `include`
    may match a hidden file below the directory.
    """
    hidden = any(_spells_dot(p) and may_contain(directory, [p]) for p in include)
    return not hidden and any(p.endswith("/**") and compile_glob(p[:-3]).fullmatch(directory) for p in exclude)


def _spells_dot(pattern: str) -> bool:
    return pattern.startswith(".") or "/." in pattern


def _may_contain(names: list[str], segments: list[str]) -> bool:
    for position, name in enumerate(names):
        if position >= len(segments):
            return False
        if segments[position] == "**":
            return True
        if not compile_glob(segments[position]).fullmatch(name):
            return False
    return len(segments) > len(names)


@lru_cache(maxsize=1024)
def compile_glob(pattern: str) -> re.Pattern[str]:
    """Compile a glob to a regular expression whose `fullmatch` accepts exactly the relative paths that the
    glob matches. Raises ValueError for a range in descending order, such as `[z-a]`.
    """
    segments = pattern.split("/")
    parts = []
    for position, segment in enumerate(segments):
        last = position == len(segments) - 1
        if segment == "**":
            parts.append(r"(?:(?!\.)[^/]*/)*(?!\.)[^/]+" if last else r"(?:(?!\.)[^/]*/)*")
        else:
            parts.append(_segment(segment) + ("" if last else "/"))
    try:
        return re.compile("".join(parts), re.DOTALL)
    except re.error as error:
        raise ValueError(
            f"got {pattern!r}: {error.msg}; expected a range from the lower to the higher character"
        ) from None


def _segment(segment: str) -> str:
    out = r"(?!\.)" if segment[:1] in ("*", "?", "[") else ""
    position = 0
    while position < len(segment):
        character = segment[position]
        position += 1
        first = position + segment.startswith("!", position)  # a `]` at the beginning of a class is a literal
        end = segment.find("]", first + 1) if character == "[" else -1
        if character == "*":
            out += "[^/]*"
        elif character == "?":
            out += "[^/]"
        elif end > 0:
            negated, body, position = "^" if first > position else "", segment[first:end], end + 1
            out += "(?!/)[" + negated + _CLASS_SPECIAL.sub(r"\\\g<0>", body) + "]"
        else:
            out += re.escape(character)
    return out
