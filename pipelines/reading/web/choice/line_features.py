"""The features by which `extract: best` chooses lines: the form of a line, its neighbours, and which
extractors took it for content.

Features of blocks and their neighbours tell content from boilerplate (Kohlschütter et al. 2010, "Boilerplate
Detection using Shallow Text Features"). No feature looks for words of a particular language.
"""

import math
import re
from collections.abc import Callable, Sequence
from itertools import accumulate
from string import ascii_uppercase, digits

from pipelines.reading.web.choice.merged_lines import Line, letters_of

TEXT_FEATURES = (
    "log_letters", "ends", "sentences", "is_link", "has_mark", "has_bar", "has_date", "has_address", "digits", "capitals",
    "short", "begins_low", "asks", "position", "prose_next", "prose_before", "prose_later", "prose_earlier",
    "log_letters_next", "log_letters_before", "after_prose", "log_page", "page_prose", "page_links",
)  # fmt: skip
"""Features of a line, its neighbours and its page, in the order of `text_features`."""
BOTH_FEATURES = ("shared_next", "shared_before", "log_distance", "after_second", "page_shared", "log_ratio",
                 "only_first", "only_second")  # fmt: skip
"""Features that depend on which of the two texts have the line and its neighbours, in the order of `both_features`."""

_MARKS, _QUOTES = tuple(".!?…:;。！？"), "\"'”’»)]"
_SENTENCE = re.compile(r"[.!?。！？](?:\s|$)")
_MARK = re.compile(r"\s*(?:[•*+-]|\d+\.)\s")
_BAR, _SLASH = re.compile(r"[|»›→·]"), re.compile(r"\s/\s")
_DATE = re.compile(r"\d{1,2}[./:-]\d{1,2}|(?:19|20)\d\d")
_ADDRESS = re.compile(r"https?:|www\.|@\w|©|\(c\)", re.IGNORECASE)
_ADDRESS_PARTS = ("http", "www.", "@", "©", "(c)")  # one is in every match, in lower case
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_DIGITS, _CAPITALS = digits.encode(), ascii_uppercase.encode()
_SENTENCE_LETTERS = 40


def find_prose(text: str) -> list[str]:
    """Return the key (`letters_of`) of each line that looks like prose: long enough for a sentence, and
    ending like one.
    """
    ends = (line for line in text.split("\n") if len(line) >= _SENTENCE_LETTERS and _ends(line.rstrip()))
    return [key for key in map(letters_of, ends) if len(key) >= _SENTENCE_LETTERS]


Forms = dict[str, list[float]]


def text_features(lines: Sequence[Line], links: frozenset[str], forms: Forms | None = None) -> list[list[float]]:
    """Return TEXT_FEATURES of each line; no line may have an empty `key`. `links` are the keys (`letters_of`)
    of the page's link texts. `forms` is a cache; share it only between calls with the same `links`.
    """
    rows = _forms(lines, links, {} if forms is None else forms)
    letters = [len(line.key) for line in lines]
    total = sum(letters)
    prose = [row[1] * min(1.0, row[0] / 5) for row in rows]
    sure = [number for number, share in enumerate(prose) if share > 0.8 and lines[number].first]
    last = sure[-1] if sure else len(lines)
    page = [
        math.log1p(total),
        sum(share * size for share, size in zip(prose, letters, strict=True)) / max(1, total),
        sum(row[3] * size for row, size in zip(rows, letters, strict=True)) / max(1, total),
    ]
    near = [0.0, 0.0, 0.0, *prose, 0.0, 0.0, 0.0]
    sizes = [0.0, *map(math.log1p, letters), 0.0]
    for number, (row, end) in enumerate(zip(rows, accumulate(letters), strict=True)):
        row += [
            (end - letters[number] / 2) / total,
            near[number + 4],
            near[number + 2],
            near[number + 5] + near[number + 6],
            near[number + 1] + near[number],
            sizes[number + 2],
            sizes[number],
            float(number > last),
            *page,
        ]
    return rows


def both_features(lines: Sequence[Line]) -> list[list[float]]:
    """Return BOTH_FEATURES of each line."""
    shared = [float(line.first and line.second) for line in lines]
    total = sum(len(line.key) for line in lines)
    first = sum(len(line.key) for line in lines if line.first)
    second = sum(len(line.key) for line in lines if line.second)
    both = first + second - total
    last = max((number for number, line in enumerate(lines) if line.second), default=-1)
    page = [both / max(1, total), math.log((1 + first) / (1 + second))]
    return [
        [
            _at(shared, number + 1),
            _at(shared, number - 1),
            math.log1p(distance),
            float(number > last),
            *page,
            float(not line.second),
            float(not line.first),
        ]
        for number, (line, distance) in enumerate(zip(lines, _distances(shared), strict=True))
    ]


def _forms(lines: Sequence[Line], links: frozenset[str], known: Forms) -> list[list[float]]:
    rows = []
    for line in lines:
        form = known.get(line.text)
        if form is None:
            form = known[line.text] = _form(line, links)
        rows.append(form[:])
    return rows


def _form(line: Line, links: frozenset[str]) -> list[float]:
    text, key = line.text.strip(), line.key
    count = _count(key, _DIGITS, str.isdigit)
    lower = text.lower()
    return [
        math.log1p(len(key)),
        float(_ends(text)),
        min(5.0, len(_SENTENCE.findall(text))),
        float(key in links),
        float(_MARK.match(line.text) is not None),
        float(_BAR.search(text) is not None or ("/" in text and _SLASH.search(text) is not None)),
        float(count > 0 and _DATE.search(text) is not None),
        float(any(part in lower for part in _ADDRESS_PARTS) and _ADDRESS.search(text) is not None),
        count / len(key),
        _count(text, _CAPITALS, str.isupper) / len(text),
        float(len(text.split(maxsplit=3)) <= 3),
        float(text[0].islower()),
        float(text[-1] == "?"),
    ]


def _ends(text: str) -> bool:
    """Return whether a text, which must not end with white space, ends like a sentence."""
    return text.rstrip(_QUOTES).endswith(_MARKS)


def _count(text: str, some: bytes, is_one: Callable[[str], bool]) -> int:
    """Return how many characters of a text satisfy `is_one`. `some` lists the ASCII characters that do."""
    coded = text.encode("utf-8", "surrogatepass")
    count = len(coded) - len(coded.translate(None, some))
    return count if len(coded) == len(text) else count + sum(map(is_one, _NOT_ASCII.findall(text)))


def _at(values: Sequence[float], number: int) -> float:
    return values[number] if 0 <= number < len(values) else 0.0


def _distances(shared: Sequence[float]) -> list[int]:
    """Return for each line how many lines away the nearest shared line is, or the number of lines if none is
    shared.
    """
    most = len(shared)
    forth = list(accumulate(shared, lambda away, here: 0 if here else min(most, away + 1), initial=most))[1:]
    back = list(accumulate(reversed(shared), lambda away, here: 0 if here else min(most, away + 1), initial=most))[1:]
    return [min(pair) for pair in zip(forth, reversed(back), strict=True)]
