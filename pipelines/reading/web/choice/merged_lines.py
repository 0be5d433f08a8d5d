"""Merge the lines of two texts that were extracted from the same page, in the order of the page.

Lines are compared by their letters and digits, so punctuation, emphasis and white space make no difference.
In Markdown, a table counts as one line, and so does a block of code.
"""

import re
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import NamedTuple

_NO_LETTERS = re.compile(r"[\W_]+")
_LOWER = bytes(range(256)).lower()
_OTHER = bytes(each for each in range(128) if not chr(each).isalnum())
_FENCE = re.compile(r" *(`{3,})[^`]*")
_HEAD = 24  # letters by which lines begin alike
_WITHIN = 8  # letters of a line that is looked for within other lines
_WORK = 1 << 28  # letters searched for such lines in a text: half a second; later lines count as not found


class Line(NamedTuple):
    """A line of a page. `key` is its letters and digits, case-folded. `gap` says whether an empty line
    precedes it. `first` and `second` say whether the first and the second of two merged texts contain it.
    """

    text: str
    key: str
    gap: bool
    first: bool = True
    second: bool = False


def letters_of(text: str) -> str:
    """Return the letters and digits of a text, case-folded."""
    if text.isascii():
        return text.encode().translate(_LOWER, _OTHER).decode()
    return _NO_LETTERS.sub("", text).casefold()


def split_lines(text: str, markdown: bool = False) -> list[Line]:
    """Return the lines of a text that have letters or digits. With `markdown`, a table is one line, and so is
    a block of code.
    """
    lines, gap = [], False
    for block in _blocks(text) if markdown else text.split("\n"):
        if key := letters_of(block):
            lines.append(Line(block, key, gap))
            gap = False
        elif not block.strip():
            gap = True
    return lines


def join_lines(lines: list[Line]) -> str:
    """Join lines into a text. An empty line comes before each line with a `gap`, except the first line."""
    return "".join(("\n\n" if line.gap else "\n") + line.text for line in lines).lstrip("\n")


def _blocks(text: str) -> list[str]:
    blocks: list[str] = []
    fence = ""
    table = False
    for line in text.split("\n"):
        row = line.startswith("|")
        if fence or (row and table):
            blocks[-1] += "\n" + line
            fence = "" if line.strip() == fence else fence
            continue
        blocks.append(line)
        table = row
        opened = _FENCE.fullmatch(line)
        fence = opened[1] if opened else ""
    return blocks


def merge_lines(first: list[Line], second: list[Line], keep: re.Pattern[str] | None = None) -> list[Line]:
    """Merge two texts: return all lines of `second` in order, with the lines that only `first` contains
    inserted at their places. The fields `first` and `second` of a returned line say which texts contain it.

    Two lines are the same if their keys are equal, or if their keys begin with the same _HEAD letters and no
    other line of either text begins with these. A line that both texts contain is returned once: in its form
    in `first` if `keep` matches anywhere in that form, otherwise in its form in `second`. Texts may divide
    lines differently, so a key of at least _WITHIN letters is also searched for in the joined keys of the
    other text. A line of `first` that is found there is left out.
    """
    same = _pairs(first, second)
    within_second, within_first = _Text(second), _Text(first)
    only: dict[int, list[Line]] = {}
    at = -1  # the line of `second` that the last line of `first` was
    written = {}
    for number, line in enumerate(first):
        if number in same:
            at = max(at, same[number])
            written[same[number]] = line
        elif not within_second.has(line.key):
            only.setdefault(at, []).append(line)
    merged = only.get(-1, [])
    for number, line in enumerate(second):
        twin = written.get(number)
        there = twin is not None or within_first.has(line.key)
        chosen = twin if twin is not None and keep is not None and keep.search(twin.text) else line
        merged.append(chosen._replace(first=there, second=True))
        merged += only.get(number, ())
    return merged


def _pairs(first: list[Line], second: list[Line]) -> dict[int, int]:
    """Map the index of each line of `first` to the index of the same line in `second`. Lines are matched by
    key, then by head if no other line of either text has that head.
    """
    places: dict[str, deque[int]] = {}
    for number, line in enumerate(second):
        places.setdefault(line.key, deque()).append(number)
    pairs = {}
    for number, line in enumerate(first):
        if queue := places.get(line.key):
            pairs[number] = queue.popleft()
    taken = set(pairs.values())
    left = [number for number in range(len(first)) if number not in pairs]
    heads = [Counter(_head(line) for line in lines) for lines in (first, second)]
    begins = {_head(line): number for number, line in enumerate(second) if number not in taken}
    for number in left:
        head = _head(first[number])
        if len(head) == _HEAD and head in begins and heads[0][head] == heads[1][head] == 1:
            pairs[number] = begins[head]
    return pairs


def _head(line: Line) -> str:
    return line.key[:_HEAD]


@dataclass
class _Text:
    """The letters of a text, which are searched for the lines of another text. Each search costs time in
    proportion to the length of the letters, so `left` limits how many letters all searches may read. Once the
    limit is reached, no line is found.
    """

    lines: list[Line]
    left: int = _WORK
    letters: str = field(init=False)

    def __post_init__(self) -> None:
        self.letters = "".join(line.key for line in self.lines)

    def has(self, key: str) -> bool:
        if len(key) < _WITHIN or len(self.letters) > self.left:
            return False
        self.left -= len(self.letters)
        return key in self.letters
